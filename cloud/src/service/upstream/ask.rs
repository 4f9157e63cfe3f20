//! What is asked of an engine, as HTTP requests of its own API.
//!
//! Pure. An engine that makes the same prompts as this service gets token ids, so nothing can be laid out in
//! another way. Others get messages; what messages cannot express is refused by name, never left out.

use baton_engine::tokenizer::TokenId;
use baton_openai::{AnswerFormat, Penalties};
use baton_protocol::{Role, Sampling, Segment};
use serde_json::{Value, json};

use super::facts::{Common, Facts, Kind};

/// Everything that an engine needs to know of one answer.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// The prompt's token ids by the scorer's tokenizer, with the accepted part of the answer behind it.
    pub(crate) ids: Vec<TokenId>,
    /// How many of the last ids are the accepted part of the answer.
    pub(crate) continued: usize,
    /// The prompt for people and other tokenizers.
    pub(crate) prompt: AskPrompt,
    /// How the answer is sampled.
    pub(crate) sampling: Sampling,
    /// Penalties for tokens that the answer already contains.
    pub(crate) penalties: Penalties,
    /// The form that the answer must have.
    pub(crate) format: AnswerFormat,
    /// Whether tools may be called, or were called before.
    pub(crate) has_tools: bool,
    /// Keeps the tenant's prefixes apart in the engine's cache.
    pub(crate) salt: String,
    /// Decides which engine has the prefix.
    pub(crate) affinity: u64,
}

/// A prompt without token ids.
#[derive(Debug, Clone)]
pub(crate) enum AskPrompt {
    /// Messages, in order: role and text.
    Messages(Vec<(Role, String)>),
    /// A text to continue as it is.
    Text(String),
}

impl AskPrompt {
    /// Joins segments to messages: neighbours of one role are one message.
    pub(crate) fn of_segments(segments: &[Segment]) -> AskPrompt {
        let mut messages: Vec<(Role, String)> = Vec::new();
        for segment in segments {
            match messages.last_mut() {
                Some((role, text)) if *role == segment.role => text.push_str(&segment.text),
                _ => messages.push((segment.role, segment.text.clone())),
            }
        }
        AskPrompt::Messages(messages)
    }
}

/// A request to an engine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// Path below the engine's address.
    pub(crate) path: &'static str,
    /// Its body.
    pub(crate) body: Value,
    /// How the reply is written.
    pub(crate) reply: ReplyForm,
}

/// The form of a streamed reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// Chunks of OpenAI's chat or text completions.
    OpenAi {
        /// Whether each chunk has the ids of its tokens.
        ids: bool,
    },
    /// Chunks of llama.cpp's `/completion`, with ids.
    LlamaCpp,
}

impl ReplyForm {
    /// Returns whether the reply has token ids.
    pub(crate) fn has_ids(self) -> bool {
        !matches!(self, ReplyForm::OpenAi { ids: false })
    }
}

impl Ask {
    /// Returns why an engine cannot be asked for this, or `None` if it can.
    pub(crate) fn refusal(&self, facts: &Facts) -> Option<(&'static str, &'static str)> {
        if facts.common == Common::Prompts {
            return None;
        }
        if self.has_tools {
            return Some(("tools", "the engine of this model has another tokenizer or chat template"));
        }
        if self.continued > 0 {
            return Some((
                "continue_from",
                "the engine of this model has another tokenizer or chat template",
            ));
        }
        None
    }

    /// Makes the request to an engine, for at most `max_tokens` tokens.
    pub(crate) fn call(&self, facts: &Facts, max_tokens: usize) -> Call {
        let by_ids = facts.common == Common::Prompts
            || (facts.common == Common::Tokens && matches!(self.prompt, AskPrompt::Text(_)));
        match (facts.kind, by_ids) {
            (Kind::LlamaCpp, true) => self.llamacpp(max_tokens),
            (Kind::Vllm, true) => {
                self.openai(facts, max_tokens, "v1/completions", json!({ "prompt": self.ids }))
            }
            _ => match &self.prompt {
                AskPrompt::Text(text) => {
                    self.openai(facts, max_tokens, "v1/completions", json!({ "prompt": text }))
                }
                AskPrompt::Messages(messages) => {
                    let message =
                        |(role, text): &(Role, String)| json!({ "role": role.as_str(), "content": text });
                    let messages: Vec<Value> = messages.iter().map(message).collect();
                    self.openai(facts, max_tokens, "v1/chat/completions", json!({ "messages": messages }))
                }
            },
        }
    }

    fn openai(&self, facts: &Facts, max_tokens: usize, path: &'static str, mut body: Value) -> Call {
        let sampling = &self.sampling;
        let is_vllm = facts.kind == Kind::Vllm;
        put(&mut body, "model", facts.model.as_str());
        put(&mut body, "stream", true);
        put(&mut body, "stream_options", json!({ "include_usage": true }));
        put(&mut body, "max_tokens", max_tokens);
        put(&mut body, "temperature", sampling.temperature);
        put(&mut body, "seed", seed(sampling));
        if let Some(top_p) = sampling.top_p.filter(|_| facts.kind == Kind::OpenAi) {
            put(&mut body, "top_p", top_p);
        }
        if !sampling.stop.is_empty() {
            put(&mut body, "stop", sampling.stop.as_slice());
        }
        self.put_penalties(&mut body);
        if facts.kind == Kind::OpenAi {
            self.put_asked_beyond_openai(&mut body);
        } else {
            let repetition = if is_vllm { "repetition_penalty" } else { "repeat_penalty" };
            self.put_beyond_openai(&mut body, repetition);
        }
        match &self.format {
            AnswerFormat::Text => {}
            AnswerFormat::JsonObject => put(&mut body, "response_format", json!({ "type": "json_object" })),
            AnswerFormat::JsonSchema(schema) => {
                let named = json!({ "name": "answer", "schema": schema, "strict": true });
                put(&mut body, "response_format", json!({ "type": "json_schema", "json_schema": named }));
            }
        }
        let ids = is_vllm && facts.common != Common::Text;
        if ids {
            put(&mut body, "return_token_ids", true);
        }
        if is_vllm {
            put(&mut body, "cache_salt", self.salt.as_str());
        }
        Call { path, body, reply: ReplyForm::OpenAi { ids } }
    }

    fn llamacpp(&self, max_tokens: usize) -> Call {
        let mut body = json!({
            "prompt": self.ids,
            "n_predict": max_tokens,
            "stream": true,
            "return_tokens": true,
            "cache_prompt": true,
            "temperature": self.sampling.temperature,
            "seed": seed(&self.sampling),
        });
        if !self.sampling.stop.is_empty() {
            put(&mut body, "stop", self.sampling.stop.as_slice());
        }
        self.put_penalties(&mut body);
        self.put_beyond_openai(&mut body, "repeat_penalty");
        match &self.format {
            AnswerFormat::Text => {}
            AnswerFormat::JsonObject => put(&mut body, "json_schema", json!({ "type": "object" })),
            AnswerFormat::JsonSchema(schema) => put(&mut body, "json_schema", schema.clone()),
        }
        Call { path: "completion", body, reply: ReplyForm::LlamaCpp }
    }

    fn put_penalties(&self, body: &mut Value) {
        let Penalties { frequency, presence, .. } = self.penalties;
        if frequency != 0.0 {
            put(body, "frequency_penalty", frequency);
        }
        if presence != 0.0 {
            put(body, "presence_penalty", presence);
        }
    }

    /// Adds what OpenAI's API does not have, if the request asks for it. An engine that does not know a field
    /// may refuse it; nothing is dropped here.
    fn put_asked_beyond_openai(&self, body: &mut Value) {
        let sampling = &self.sampling;
        if let Some(top_k) = sampling.top_k {
            put(body, "top_k", top_k);
        }
        if let Some(min_p) = sampling.min_p {
            put(body, "min_p", min_p);
        }
        if sampling.repetition_penalty != 1.0 {
            put(body, "repetition_penalty", sampling.repetition_penalty);
        }
    }

    /// Adds what OpenAI's API does not have, and what llama.cpp, or vLLM by a model's file, has other
    /// defaults for.
    fn put_beyond_openai(&self, body: &mut Value, repetition: &str) {
        let sampling = &self.sampling;
        put(body, "top_p", sampling.top_p.unwrap_or(1.0));
        put(body, "top_k", sampling.top_k.map_or(-1, i64::from));
        put(body, "min_p", sampling.min_p.unwrap_or(0.0));
        put(body, repetition, sampling.repetition_penalty);
    }
}

/// Returns the seed as engines take it: at most 63 bits.
fn seed(sampling: &Sampling) -> u64 {
    sampling.seed & (u64::MAX >> 1)
}

fn put(body: &mut Value, name: &str, value: impl serde::Serialize) {
    body[name] = serde_json::to_value(value).expect("plain values are JSON");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> Ask {
        let segments = [
            Segment::fixed(Role::System, "Answer."),
            Segment::refinable(Role::User, "A document. "),
            Segment::fixed(Role::User, "What?"),
        ];
        Ask {
            ids: vec![1, 5, 9],
            continued: 0,
            prompt: AskPrompt::of_segments(&segments),
            sampling: Sampling { stop: vec!["END".into()], top_k: Some(40), ..Sampling::default() },
            penalties: Penalties::default(),
            format: AnswerFormat::Text,
            has_tools: false,
            salt: "salt".into(),
            affinity: 7,
        }
    }

    fn facts(kind: Kind, common: Common) -> Facts {
        Facts { kind, model: "m".into(), common, context_tokens: None }
    }

    #[test]
    fn an_engine_with_the_same_prompts_gets_ids() {
        let vllm = ask().call(&facts(Kind::Vllm, Common::Prompts), 5);
        assert_eq!((vllm.path, vllm.reply), ("v1/completions", ReplyForm::OpenAi { ids: true }));
        let want = json!({
            "prompt": [1, 5, 9], "model": "m", "stream": true, "stream_options": { "include_usage": true },
            "max_tokens": 5, "temperature": 0.0, "seed": 0, "stop": ["END"], "top_k": 40, "top_p": 1.0,
            "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": true, "cache_salt": "salt",
        });
        assert_eq!(vllm.body, want);
        let llama = ask().call(&facts(Kind::LlamaCpp, Common::Prompts), 5);
        assert_eq!((llama.path, llama.reply), ("completion", ReplyForm::LlamaCpp));
        assert_eq!((&llama.body["prompt"], &llama.body["n_predict"]), (&json!([1, 5, 9]), &json!(5)));
        assert_eq!(llama.body["return_tokens"], json!(true));
    }

    #[test]
    fn other_engines_get_messages() {
        for (kind, common, ids) in [
            (Kind::Vllm, Common::Tokens, true),
            (Kind::Vllm, Common::Text, false),
            (Kind::LlamaCpp, Common::Tokens, false),
            (Kind::OpenAi, Common::Text, false),
        ] {
            let call = ask().call(&facts(kind, common), 5);
            assert_eq!((call.path, call.reply), ("v1/chat/completions", ReplyForm::OpenAi { ids }), "{kind}");
            let want = json!([
                { "role": "system", "content": "Answer." },
                { "role": "user", "content": "A document. What?" },
            ]);
            assert_eq!(call.body["messages"], want, "{kind}");
            assert_eq!(call.body.get("return_token_ids").is_some(), ids, "{kind}");
            assert_eq!(call.body.get("cache_salt").is_some(), kind == Kind::Vllm, "{kind}");
            assert_eq!(call.body["top_k"], 40, "{kind}");
            assert_eq!(call.body.get("min_p").is_some(), kind != Kind::OpenAi, "{kind}");
        }
    }

    #[test]
    fn what_messages_cannot_express_is_refused_by_name() {
        let tools = Ask { has_tools: true, ..ask() };
        let continued = Ask { continued: 2, ..ask() };
        for common in [Common::Text, Common::Tokens] {
            let facts = facts(Kind::Vllm, common);
            assert_eq!(tools.refusal(&facts).map(|(field, _)| field), Some("tools"));
            assert_eq!(continued.refusal(&facts).map(|(field, _)| field), Some("continue_from"));
            assert_eq!(ask().refusal(&facts), None);
        }
        for ask in [tools, continued] {
            assert_eq!(ask.refusal(&facts(Kind::Vllm, Common::Prompts)), None);
        }
    }

    #[test]
    fn forms_are_asked_in_the_words_of_the_engine() {
        let schema = json!({ "type": "object", "properties": {} });
        let formed = Ask { format: AnswerFormat::JsonSchema(schema.clone()), ..ask() };
        let vllm = formed.call(&facts(Kind::Vllm, Common::Prompts), 5);
        assert_eq!(vllm.body["response_format"]["json_schema"]["schema"], schema);
        assert_eq!(formed.call(&facts(Kind::LlamaCpp, Common::Prompts), 5).body["json_schema"], schema);
    }

    #[test]
    fn a_text_is_continued_as_it_is() {
        let text = Ask { prompt: AskPrompt::Text("Once".into()), ..ask() };
        let other = text.call(&facts(Kind::OpenAi, Common::Text), 5);
        assert_eq!((other.path, &other.body["prompt"]), ("v1/completions", &json!("Once")));
        let same = text.call(&facts(Kind::Vllm, Common::Tokens), 5);
        assert_eq!(same.body["prompt"], json!([1, 5, 9]));
    }
}
