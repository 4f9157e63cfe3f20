//! Reads the streamed reply of an engine, event by event.
//!
//! Pure. Always: an answer counts as ended only if the engine says why it ended. vLLM sends `[DONE]` behind
//! an error too, so that word alone means nothing.

use baton_engine::tokenizer::TokenId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ask::ReplyForm;
use super::fault::{EngineText, Fault, message_in};

/// Most tokens of one event.
const TOKENS_MAX: usize = 4096;

/// A piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The ids of its tokens, if the reply has ids.
    pub(crate) ids: Vec<TokenId>,
    /// Its text.
    pub(crate) text: String,
}

/// Why an engine ended an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The answer is complete.
    Stop,
    /// It has as many tokens as were asked for, or as fit.
    Length,
}

/// What an engine counted for one answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineUsage {
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Of these, tokens that were in its prefix cache.
    pub(crate) cached: u64,
    /// Tokens that it wrote.
    pub(crate) completion: u64,
}

/// The state of one reply.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    form: ReplyForm,
    has_had_ids: bool,
    finish: Option<Finish>,
    usage: Option<EngineUsage>,
}

#[derive(Deserialize)]
struct OpenAiChunk {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct Choice {
    /// An engine that does not stream has `message` in its place.
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<TokenId>>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default, alias = "reasoning")]
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct OpenAiUsage {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct LlamaChunk {
    #[serde(default)]
    content: String,
    #[serde(default)]
    tokens: Option<Vec<TokenId>>,
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    stop_type: Option<String>,
    #[serde(default)]
    tokens_evaluated: u64,
    #[serde(default)]
    tokens_cached: u64,
    #[serde(default)]
    tokens_predicted: u64,
    #[serde(default)]
    timings: Option<LlamaTimings>,
}

#[derive(Deserialize)]
struct LlamaTimings {
    #[serde(default)]
    cache_n: Option<u64>,
}

impl ReplyReader {
    pub(crate) fn new(form: ReplyForm) -> ReplyReader {
        ReplyReader { form, has_had_ids: false, finish: None, usage: None }
    }

    /// Returns whether the reply has token ids. An engine that was asked for them and sends text without any
    /// has none from then on.
    pub(crate) fn has_ids(&self) -> bool {
        self.form.has_ids()
    }

    /// Takes the data of the next event; returns the piece of the answer in it, which may be empty.
    pub(crate) fn event(&mut self, data: &str) -> Result<Piece, Fault> {
        if data.trim() == "[DONE]" {
            return Ok(Piece::default());
        }
        let piece = match self.form {
            ReplyForm::OpenAi { .. } => self.openai(read(data)?)?,
            ReplyForm::LlamaCpp { .. } => self.llamacpp(read(data)?)?,
        };
        if piece.ids.len() > TOKENS_MAX {
            return Err(Fault::Garbled { reason: format!("{} tokens in one event", piece.ids.len()) });
        }
        Ok(piece)
    }

    /// Returns how the answer ended, if the engine has said it.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Returns what the engine counted, if it has said it.
    pub(crate) fn usage(&self) -> Option<EngineUsage> {
        self.usage
    }

    /// Makes a piece. Behind ids, text without ids counts only if the answer has not ended.
    fn piece(&mut self, tokens: Option<Vec<TokenId>>, text: String) -> Result<Piece, Fault> {
        if !self.has_ids() {
            return Ok(Piece { ids: Vec::new(), text });
        }
        let ids = tokens.unwrap_or_default();
        self.has_had_ids |= !ids.is_empty();
        if ids.is_empty() && !text.is_empty() {
            if !self.has_had_ids {
                self.form = self.form.without_ids();
            } else if self.finish.is_none() {
                return Err(Fault::NoIds);
            }
        }
        Ok(Piece { ids, text })
    }

    fn openai(&mut self, chunk: OpenAiChunk) -> Result<Piece, Fault> {
        if let Some(usage) = chunk.usage {
            let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.usage = Some(EngineUsage {
                prompt: usage.prompt_tokens.unwrap_or(0),
                cached: cached.unwrap_or(0),
                completion: usage.completion_tokens.unwrap_or(0),
            });
        }
        let Some(choice) = chunk.choices.unwrap_or_default().into_iter().next() else {
            return Ok(Piece::default());
        };
        let delta = choice.delta.unwrap_or(Delta { content: None, reasoning_content: None });
        let has_tokens = self.has_ids() && choice.token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        if !has_tokens && delta.reasoning_content.is_some_and(|text| !text.is_empty()) {
            let reason = "the engine takes thoughts out of the answer: start it without a reasoning parser";
            return Err(Fault::Garbled { reason: reason.to_owned() });
        }
        // Some engines write an empty reason in every chunk.
        if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
            self.finish = Some(finish(&reason)?);
        }
        let text = choice.text.or(delta.content).unwrap_or_default();
        self.piece(choice.token_ids, text)
    }

    fn llamacpp(&mut self, chunk: LlamaChunk) -> Result<Piece, Fault> {
        if chunk.stop {
            self.finish = Some(finish(chunk.stop_type.as_deref().unwrap_or_default())?);
            let cached = chunk.timings.and_then(|timings| timings.cache_n);
            self.usage = Some(EngineUsage {
                prompt: chunk.tokens_evaluated,
                cached: cached.unwrap_or(0).min(chunk.tokens_cached.max(chunk.tokens_evaluated)),
                completion: chunk.tokens_predicted,
            });
        }
        self.piece(chunk.tokens, chunk.content)
    }
}

/// Reads the word for an answer's end, of OpenAI's API, llama.cpp or TGI.
fn finish(reason: &str) -> Result<Finish, Fault> {
    match reason {
        "stop" | "eos" | "word" | "eos_token" | "stop_sequence" | "end_turn" | "tool_calls" => {
            Ok(Finish::Stop)
        }
        "length" | "limit" | "max_tokens" => Ok(Finish::Length),
        other => Err(Fault::Broke { text: EngineText::new(other) }),
    }
}

/// Reads an event. An engine may send an error in the place of any of them.
fn read<T: DeserializeOwned>(data: &str) -> Result<T, Fault> {
    if data.contains("\"error\"") {
        let json: Value = serde_json::from_str(data).map_err(|err| garbled(&err))?;
        if json.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Fault::Broke { text: EngineText::new(&message_in(&json).unwrap_or_default()) });
        }
    }
    serde_json::from_str(data).map_err(|err| garbled(&err))
}

/// Makes the fault of JSON that cannot be read. It says where the error is; the parser's own words may hold
/// what the engine wrote.
pub(super) fn garbled(err: &serde_json::Error) -> Fault {
    let kind = if err.is_data() { "a value of the wrong type" } else { "no JSON" };
    Fault::Garbled { reason: format!("{kind} at line {}, column {}", err.line(), err.column()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: ReplyForm, events: &[&str]) -> (Vec<Piece>, Option<Finish>, Option<EngineUsage>) {
        let mut reader = ReplyReader::new(form);
        let pieces = events.iter().map(|data| reader.event(data).unwrap()).collect();
        (pieces, reader.finish(), reader.usage())
    }

    #[test]
    fn vllm_sends_ids_and_usage() {
        let (pieces, finish, usage) = read(
            ReplyForm::OpenAi { ids: true },
            &[
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":" The"},"token_ids":[12],"finish_reason":null}]}"#,
                r#"{"choices":[{"index":0,"text":" end","token_ids":[13,2],"finish_reason":"stop"}]}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}"#,
                "[DONE]",
            ],
        );
        let piece = |ids: &[u32], text: &str| Piece { ids: ids.to_vec(), text: text.into() };
        let none = || piece(&[], "");
        assert_eq!(pieces, [none(), piece(&[12], " The"), piece(&[13, 2], " end"), none(), none()]);
        assert_eq!(finish, Some(Finish::Stop));
        assert_eq!(usage, Some(EngineUsage { prompt: 2, cached: 1, completion: 3 }));
    }

    #[test]
    fn llamacpp_sends_ids_and_counts() {
        let (pieces, finish, usage) = read(
            ReplyForm::LlamaCpp { ids: true },
            &[
                r#"{"index":0,"content":"a","tokens":[7],"stop":false,"id_slot":0}"#,
                r#"{"index":0,"content":"","tokens":[],"stop":true,"stop_type":"limit","tokens_predicted":1,"tokens_evaluated":9,"tokens_cached":9,"timings":{"cache_n":4}}"#,
            ],
        );
        assert_eq!(pieces[0], Piece { ids: vec![7], text: "a".into() });
        assert_eq!(
            (finish, usage),
            (Some(Finish::Length), Some(EngineUsage { prompt: 9, cached: 4, completion: 1 }))
        );
    }

    #[test]
    fn an_error_in_the_stream_is_no_success_though_done_follows() {
        let mut reader = ReplyReader::new(ReplyForm::OpenAi { ids: false });
        let fault = reader.event(r#"{"error":{"message":"EngineCore died","type":"InternalServerError"}}"#);
        assert_eq!(fault, Err(Fault::Broke { text: EngineText::new("EngineCore died") }));
        reader.event("[DONE]").unwrap();
        assert_eq!(reader.finish(), None);
    }

    #[test]
    fn what_is_not_the_api_is_told() {
        let refused = |form, data: &str| ReplyReader::new(form).event(data).unwrap_err().as_str();
        let (text, ids) = (ReplyForm::OpenAi { ids: false }, ReplyForm::OpenAi { ids: true });
        assert_eq!(refused(text, "{\"choices\":[{"), "garbled");
        assert_eq!(refused(text, r#"{"choices":{}}"#), "garbled");
        assert_eq!(refused(ids, r#"{"choices":[{"delta":{"content":"x"},"token_ids":[-1]}]}"#), "garbled");
        assert_eq!(refused(text, r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#), "garbled");
        assert_eq!(refused(text, r#"{"choices":[{"delta":{},"finish_reason":"abort"}]}"#), "broke");
        let many = format!(r#"{{"content":"x","tokens":[{}0],"stop":false}}"#, "0,".repeat(TOKENS_MAX));
        assert_eq!(refused(ReplyForm::LlamaCpp { ids: true }, &many), "garbled");
    }

    #[test]
    fn an_answer_without_ids_is_read_as_text() {
        let whole = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":null}}"#;
        let chunk = r#"{"choices":[{"delta":{"content":"Yes."},"token_ids":null,"finish_reason":""}]}"#;
        let end = r#"{"choices":[{"delta":{"content":"Yes."},"finish_reason":"stop"}]}"#;
        let llama = r#"{"content":"Yes.","stop":false}"#;
        for (form, data) in [
            (ReplyForm::OpenAi { ids: true }, chunk),
            (ReplyForm::OpenAi { ids: true }, end),
            (ReplyForm::OpenAi { ids: true }, whole),
            (ReplyForm::LlamaCpp { ids: true }, llama),
        ] {
            let mut reader = ReplyReader::new(form);
            assert_eq!(reader.event(data), Ok(Piece { ids: Vec::new(), text: "Yes.".into() }), "{data}");
            assert!(!reader.has_ids(), "{data}");
        }
        let thought = r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#;
        let fault = ReplyReader::new(ReplyForm::OpenAi { ids: true }).event(thought).unwrap_err();
        assert_eq!(fault.as_str(), "garbled", "a thought without ids is lost");
        // Ids that stop coming are missed.
        let mut reader = ReplyReader::new(ReplyForm::OpenAi { ids: true });
        reader.event(r#"{"choices":[{"delta":{"content":"Y"},"token_ids":[7]}]}"#).unwrap();
        assert_eq!(reader.event(chunk), Err(Fault::NoIds));
    }

    #[test]
    fn empty_fields_are_no_faults() {
        let mut reader = ReplyReader::new(ReplyForm::OpenAi { ids: false });
        for data in [r#"{"choices":null}"#, r#"{"choices":[{}]}"#, r#"{"usage":{}}"#, r#"{"error":null}"#] {
            assert_eq!(reader.event(data), Ok(Piece::default()), "{data}");
        }
        let secret = r#"{"choices":["the secret"]}"#;
        assert!(!reader.event(secret).unwrap_err().to_string().contains("secret"));
    }
}
