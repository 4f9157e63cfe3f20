//! What is asked of an engine, as HTTP requests of its own API.
//!
//! Pure. An engine that makes the same prompts as this service gets token ids, so nothing can be laid out in
//! another way. Others get messages; what messages cannot express is refused by name, never left out. What an
//! engine was found not to have is asked in the next form ([`Lack`]).
//!
//! Always: prompts of one tenant begin otherwise in an engine's prefix cache than those of another, behind
//! the text that the scene fixes. A salt does that, or a cache that is off, or a mark in the first message.

use std::collections::BTreeSet;

use baton_engine::tokenizer::TokenId;
use baton_openai::{AnswerFormat, Penalties};
use baton_protocol::{Role, Sampling, Segment};
use serde_json::{Value, json};

use super::facts::{Common, Facts, Kind, Lack};

/// Hexadecimal digits of a tenant's mark in a prompt.
const MARK_DIGITS: usize = 12;

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
    /// Whether there are several tenants, whose prefixes must be kept apart.
    pub(crate) has_tenants: bool,
    /// Decides which engine has the prefix.
    pub(crate) affinity: u64,
}

/// A prompt without token ids.
#[derive(Debug, Clone)]
pub(crate) enum AskPrompt {
    /// Parts of messages, in order: role and text.
    Parts {
        /// The parts.
        parts: Vec<(Role, String)>,
        /// How many of them the scene fixes.
        fixed: usize,
    },
    /// A text to continue as it is.
    Text(String),
}

impl AskPrompt {
    /// Makes the prompt of segments, of which the scene fixes the first `fixed`.
    pub(crate) fn of_segments(segments: &[Segment], fixed: usize) -> AskPrompt {
        let parts = segments.iter().map(|segment| (segment.role, segment.text.clone())).collect();
        AskPrompt::Parts { parts, fixed }
    }
}

/// Joins parts to messages: neighbours of one role are one message. A mark stands before the first part that
/// the scene does not fix.
fn messages(parts: &[(Role, String)], fixed: usize, mark: &str) -> Vec<Value> {
    let mut messages: Vec<(Role, String)> = Vec::new();
    for (at, (role, text)) in parts.iter().enumerate() {
        let mark = if at == fixed { mark } else { "" };
        match messages.last_mut() {
            Some((last, joined)) if last == role => joined.extend([mark, text.as_str()]),
            _ => messages.push((*role, format!("{mark}{text}"))),
        }
    }
    let message = |(role, text): &(Role, String)| json!({ "role": role.as_str(), "content": text });
    messages.iter().map(message).collect()
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
    /// What it has that can be asked in another form, if the engine refuses it.
    pub(crate) replaceable: BTreeSet<Lack>,
}

/// The form of a streamed reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// Chunks of OpenAI's chat or text completions.
    OpenAi {
        /// Whether each chunk has the ids of its tokens.
        ids: bool,
    },
    /// Chunks of llama.cpp's `/completion`.
    LlamaCpp {
        /// Whether each chunk has the ids of its tokens.
        ids: bool,
    },
}

impl ReplyForm {
    /// Returns whether the reply has token ids.
    pub(crate) fn has_ids(self) -> bool {
        matches!(self, ReplyForm::OpenAi { ids: true } | ReplyForm::LlamaCpp { ids: true })
    }

    /// Returns the same form without ids.
    pub(crate) fn without_ids(self) -> ReplyForm {
        match self {
            ReplyForm::OpenAi { .. } => ReplyForm::OpenAi { ids: false },
            ReplyForm::LlamaCpp { .. } => ReplyForm::LlamaCpp { ids: false },
        }
    }
}

impl Ask {
    /// Returns why an engine cannot be asked for this, or `None` if it can.
    pub(crate) fn refusal(&self, facts: &Facts) -> Option<(&'static str, &'static str)> {
        if self.is_marked(facts) && matches!(self.prompt, AskPrompt::Text(_)) {
            let message = "the engine of this model cannot keep texts of tenants apart: ask by messages";
            return Some(("prompt", message));
        }
        let message = match self.common(facts) {
            Common::Prompts if !facts.lack(Lack::AnswerIds) => return None,
            _ if facts.common == Common::Prompts => "the engine of this model does not do with token ids",
            _ => "the engine of this model has another tokenizer or chat template",
        };
        if self.has_tools {
            return Some(("tools", message));
        }
        (self.continued > 0).then_some(("continue_from", message))
    }

    /// Returns what can be used of that which the engine has in common with the scorer.
    fn common(&self, facts: &Facts) -> Common {
        if facts.lack(Lack::PromptIds) || self.is_marked(facts) {
            return facts.common.min(Common::Tokens);
        }
        facts.common
    }

    /// Returns whether only a mark in the prompt can keep tenants apart in the engine's prefix cache.
    fn is_marked(&self, facts: &Facts) -> bool {
        self.has_tenants && facts.lack(Lack::Salt) && facts.kind != Kind::LlamaCpp
    }

    /// Makes the request to an engine, for at most `max_tokens` tokens.
    pub(crate) fn call(&self, facts: &Facts, max_tokens: usize) -> Call {
        let common = self.common(facts);
        let is_text = matches!(self.prompt, AskPrompt::Text(_));
        let by_ids = common == Common::Prompts
            || (common == Common::Tokens && is_text && !facts.lack(Lack::PromptIds));
        match (facts.kind, by_ids) {
            (Kind::LlamaCpp, true) => self.llamacpp(facts, max_tokens),
            (Kind::Vllm, true) => {
                let mut call =
                    self.openai(facts, max_tokens, "v1/completions", json!({ "prompt": self.ids }));
                if !self.has_tools && self.continued == 0 {
                    call.replaceable.insert(Lack::PromptIds);
                }
                call
            }
            _ => match &self.prompt {
                AskPrompt::Text(text) => {
                    self.openai(facts, max_tokens, "v1/completions", json!({ "prompt": text }))
                }
                AskPrompt::Parts { parts, fixed } => {
                    let mark = self.mark().filter(|_| self.is_marked(facts)).unwrap_or_default();
                    let messages = messages(parts, *fixed, &mark);
                    self.openai(facts, max_tokens, "v1/chat/completions", json!({ "messages": messages }))
                }
            },
        }
    }

    /// Returns the mark of the tenant.
    fn mark(&self) -> Option<String> {
        self.salt.get(..MARK_DIGITS).map(|digits| format!("[{digits}]\n"))
    }

    fn openai(&self, facts: &Facts, max_tokens: usize, path: &'static str, mut body: Value) -> Call {
        let sampling = &self.sampling;
        let is_vllm = facts.kind == Kind::Vllm;
        let mut replaceable = BTreeSet::new();
        let mut may = |lack: Lack| !facts.lack(lack) && replaceable.insert(lack);
        put(&mut body, "model", facts.model.as_str());
        put(&mut body, "stream", true);
        if may(Lack::Usage) {
            put(&mut body, "stream_options", json!({ "include_usage": true }));
        }
        let limit = if may(Lack::MaxTokens) { "max_tokens" } else { "max_completion_tokens" };
        put(&mut body, limit, max_tokens);
        put(&mut body, "temperature", sampling.temperature);
        if may(Lack::Seed) {
            put(&mut body, "seed", seed(sampling));
        }
        let is_salted = is_vllm || (self.has_tenants && facts.kind == Kind::OpenAi);
        if is_salted && may(Lack::Salt) {
            put(&mut body, "cache_salt", self.salt.as_str());
        }
        let ids = is_vllm && facts.common != Common::Text && may(Lack::AnswerIds);
        if ids {
            put(&mut body, "return_token_ids", true);
        }
        if facts.kind == Kind::LlamaCpp {
            put(&mut body, "cache_prompt", !self.has_tenants);
        }
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
        Call { path, body, reply: ReplyForm::OpenAi { ids }, replaceable }
    }

    fn llamacpp(&self, facts: &Facts, max_tokens: usize) -> Call {
        let ids = !facts.lack(Lack::AnswerIds);
        let mut body = json!({
            "prompt": self.ids,
            "n_predict": max_tokens,
            "stream": true,
            "return_tokens": ids,
            // It has no salts. Off, the cache tells no tenant what another has asked.
            "cache_prompt": !self.has_tenants,
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
        Call { path: "completion", body, reply: ReplyForm::LlamaCpp { ids }, replaceable: BTreeSet::new() }
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
            prompt: AskPrompt::of_segments(&segments, 1),
            sampling: Sampling { stop: vec!["END".into()], top_k: Some(40), ..Sampling::default() },
            penalties: Penalties::default(),
            format: AnswerFormat::Text,
            has_tools: false,
            salt: "0123456789abcdef0123456789abcdef".into(),
            has_tenants: false,
            affinity: 7,
        }
    }

    fn facts(kind: Kind, common: Common) -> Facts {
        Facts { kind, model: "m".into(), common, ..Facts::default() }
    }

    fn lacking(kind: Kind, common: Common, lacks: &[Lack]) -> Facts {
        Facts { lacks: lacks.iter().copied().collect(), ..facts(kind, common) }
    }

    #[test]
    fn what_an_engine_lacks_is_asked_in_the_next_form() {
        let all = lacking(Kind::Vllm, Common::Prompts, &Lack::ALL);
        let call = ask().call(&all, 5);
        assert_eq!((call.path, call.reply), ("v1/chat/completions", ReplyForm::OpenAi { ids: false }));
        for field in ["cache_salt", "return_token_ids", "stream_options", "seed", "max_tokens", "prompt"] {
            assert_eq!(call.body.get(field), None, "{field}");
        }
        assert_eq!((&call.body["max_completion_tokens"], call.replaceable.len()), (&json!(5), 0));
        // One by one, the rest stays.
        let salt = lacking(Kind::Vllm, Common::Prompts, &[Lack::Salt]);
        let call = ask().call(&salt, 5);
        assert_eq!((&call.body["prompt"], &call.body["return_token_ids"]), (&json!([1, 5, 9]), &json!(true)));
        let want = [Lack::AnswerIds, Lack::PromptIds, Lack::Usage, Lack::Seed, Lack::MaxTokens];
        assert_eq!(call.replaceable, BTreeSet::from(want));
        let ids = lacking(Kind::Vllm, Common::Prompts, &[Lack::AnswerIds]);
        let call = ask().call(&ids, 5);
        assert_eq!((call.reply, &call.body["prompt"]), (ReplyForm::OpenAi { ids: false }, &json!([1, 5, 9])));
    }

    #[test]
    fn tenants_are_kept_apart_with_and_without_salts() {
        let tenants = Ask { has_tenants: true, ..ask() };
        let llama = facts(Kind::LlamaCpp, Common::Prompts);
        assert_eq!(tenants.call(&llama, 5).body["cache_prompt"], json!(false));
        assert_eq!(ask().call(&llama, 5).body["cache_prompt"], json!(true));
        let llama = facts(Kind::LlamaCpp, Common::Text);
        assert_eq!(tenants.call(&llama, 5).body["cache_prompt"], json!(false));
        for kind in [Kind::Vllm, Kind::OpenAi] {
            let call = tenants.call(&facts(kind, Common::Text), 5);
            assert_eq!(call.body["cache_salt"], tenants.salt, "{kind}");
            let lacking = lacking(kind, Common::Prompts, &[Lack::Salt]);
            let call = tenants.call(&lacking, 5);
            let want = json!([
                { "role": "system", "content": "Answer." },
                { "role": "user", "content": "[0123456789ab]\nA document. What?" },
            ]);
            assert_eq!((call.path, &call.body["messages"]), ("v1/chat/completions", &want), "{kind}");
            let text = Ask { prompt: AskPrompt::Text("Once".into()), ..tenants.clone() };
            assert_eq!(text.refusal(&lacking).map(|(field, _)| field), Some("prompt"));
            assert!(!ask().call(&lacking, 5).body.to_string().contains("[0123456789ab]"));
        }
    }

    #[test]
    fn an_engine_with_the_same_prompts_gets_ids() {
        let vllm = ask().call(&facts(Kind::Vllm, Common::Prompts), 5);
        assert_eq!((vllm.path, vllm.reply), ("v1/completions", ReplyForm::OpenAi { ids: true }));
        let want = json!({
            "prompt": [1, 5, 9], "model": "m", "stream": true, "stream_options": { "include_usage": true },
            "max_tokens": 5, "temperature": 0.0, "seed": 0, "stop": ["END"], "top_k": 40, "top_p": 1.0,
            "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": true,
            "cache_salt": "0123456789abcdef0123456789abcdef",
        });
        assert_eq!(vllm.body, want);
        let llama = ask().call(&facts(Kind::LlamaCpp, Common::Prompts), 5);
        assert_eq!((llama.path, llama.reply), ("completion", ReplyForm::LlamaCpp { ids: true }));
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
        for lack in [Lack::AnswerIds, Lack::PromptIds] {
            let facts = lacking(Kind::Vllm, Common::Prompts, &[lack]);
            assert_eq!(tools.refusal(&facts).map(|(field, _)| field), Some("tools"));
            assert_eq!(continued.refusal(&facts).map(|(field, _)| field), Some("continue_from"));
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
