//! The streamed replies of a scripted engine.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use baton_engine::detokenize::Detokenizer;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use futures_util::Stream;
use serde_json::{Value, json};

/// Time in which written frames leave for their reader.
const FLUSHED: Duration = Duration::from_millis(200);

/// Whose API the engine speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's.
    Vllm,
    /// That of llama.cpp's server.
    LlamaCpp,
}

/// What the engine does with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Writes the answer.
    Write,
    /// Writes the answer, with this time before the first token.
    Slow(Duration),
    /// Writes the answer, with this time before each token.
    Paced(Duration),
    /// Refuses with this status, and the seconds after which to ask again.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// The value of `retry-after`.
        retry_after: Option<u32>,
    },
    /// After so many tokens, dies as vLLM's engine core does: an error in the stream, then `[DONE]`.
    Die(usize),
    /// After so many tokens, the connection is closed.
    Cut(usize),
    /// After so many tokens, nothing comes any more, as after SIGTERM.
    Silence(usize),
    /// After so many tokens, a line that is no JSON.
    Garble(usize),
    /// Writes more tokens than were asked for.
    TooMany,
    /// Writes the answer without token ids, whatever was asked.
    NoIds,
    /// Sends ids with so many tokens, and text alone from then on.
    NoIdsAfter(usize),
    /// Refuses requests that have one of these fields, as a server with strict models does.
    Strict(&'static [&'static str]),
    /// Replies with this status, kind of content and body.
    Say {
        /// The HTTP status.
        status: u16,
        /// The content type.
        kind: &'static str,
        /// The body.
        body: &'static str,
    },
    /// Writes the whole answer as one JSON object, though a stream was asked for.
    Whole,
    /// Writes comments between the events, bytes cut anywhere, and no `[DONE]`.
    Ragged,
    /// Has no path but those of answers.
    Bare,
    /// Says that the reply is compressed.
    Compressed,
    /// Fails its health check. What is asked all the same is answered.
    Unhealthy,
}

/// One reply.
pub(super) struct Reply {
    pub(super) dialect: Dialect,
    pub(super) is_chat: bool,
    pub(super) ids: bool,
    pub(super) max_tokens: usize,
    pub(super) prompt: Vec<TokenId>,
    pub(super) answer: Vec<TokenId>,
    pub(super) tokenizer: Arc<Tokenizer>,
}

/// One step of a stream.
enum Step {
    Frame(String),
    Wait(Duration),
    Hang,
    Cut,
}

/// Returns the frames of a reply. `held` lives as long as the stream.
pub(super) fn frames<T: Send + 'static>(
    reply: Reply,
    act: Act,
    held: T,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
    let mut steps = reply.steps(&act);
    if act == Act::Ragged {
        steps = ragged(steps);
    }
    let steps = steps.into_iter();
    futures_util::stream::unfold((steps, held), |(mut steps, held)| async move {
        loop {
            match steps.next()? {
                Step::Frame(frame) => return Some((Ok(Bytes::from(frame)), (steps, held))),
                Step::Wait(time) => tokio::time::sleep(time).await,
                Step::Hang => std::future::pending::<()>().await,
                Step::Cut => return Some((Err(std::io::Error::other("cut on command")), (steps, held))),
            }
        }
    })
}

/// Puts comments between frames, leaves `[DONE]` out, and cuts the bytes into pieces of seven.
fn ragged(steps: Vec<Step>) -> Vec<Step> {
    let frame = |step: Step| match step {
        Step::Frame(text) => Some(text.replace("data: [DONE]\n\n", "").replace("\n\n", "\r\n\r\n")),
        _ => None,
    };
    let text: String = steps.into_iter().filter_map(frame).map(|text| format!(": ping\n\n{text}")).collect();
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(7).map(|piece| Step::Frame(piece.iter().collect())).collect()
}

impl Reply {
    /// Makes the body of an engine that does not stream.
    pub(super) fn whole(&self) -> Value {
        let mut detokenizer = Detokenizer::new(self.tokenizer.clone());
        let ids = self.answer.iter().take(self.max_tokens);
        let text: String = ids.map(|&id| detokenizer.push(id)).collect();
        let reason = if self.max_tokens < self.answer.len() { "length" } else { "stop" };
        let mut choice = json!({ "index": 0, "finish_reason": reason });
        if self.is_chat {
            choice["message"] = json!({ "role": "assistant", "content": text });
        } else {
            choice["text"] = text.into();
        }
        json!({ "object": "completion", "choices": [choice], "usage": { "prompt_tokens": self.prompt.len() } })
    }

    fn steps(&self, act: &Act) -> Vec<Step> {
        let too_many = *act == Act::TooMany;
        let asked = if too_many { self.max_tokens + 50 } else { self.max_tokens };
        let mut answer: Vec<TokenId> = self.answer.iter().copied().take(asked).collect();
        if too_many {
            answer.resize(asked, self.answer.last().copied().unwrap_or_default());
        }
        let is_whole = answer.len() == self.answer.len() && asked > self.answer.len();
        let mut steps = Vec::new();
        if let Act::Slow(time) = act {
            steps.push(Step::Wait(*time));
        }
        if self.is_chat {
            steps.push(self.first_frame());
        }
        let mut detokenizer = Detokenizer::new(self.tokenizer.clone());
        for (index, &id) in answer.iter().enumerate() {
            match act {
                Act::Die(at) if *at == index => {
                    let error = json!({ "error": { "message": "EngineCore died", "code": 500 } });
                    steps.push(Step::Frame(format!("data: {error}\n\ndata: [DONE]\n\n")));
                    return steps;
                }
                Act::Cut(at) if *at == index => {
                    // What was written before must be on its way.
                    steps.push(Step::Wait(FLUSHED));
                    steps.push(Step::Cut);
                    return steps;
                }
                Act::Silence(at) if *at == index => {
                    steps.push(Step::Hang);
                    return steps;
                }
                Act::Garble(at) if *at == index => {
                    steps.push(Step::Frame("data: {\"choices\":[{\"del\n\n".to_owned()));
                    return steps;
                }
                Act::Paced(time) => steps.push(Step::Wait(*time)),
                _ => {}
            }
            let text = detokenizer.push(id);
            let has_ids = !matches!(act, Act::NoIdsAfter(from) if index >= *from);
            let ids: &[TokenId] = if has_ids { &[id] } else { &[] };
            steps.push(self.frame(json!({ "content": text }), ids, None));
        }
        let end: Vec<TokenId> = self.tokenizer.eos().into_iter().filter(|_| is_whole).collect();
        steps.push(self.frame(json!({ "content": "" }), &end, Some(is_whole)));
        steps.extend(self.counts(answer.len()));
        steps
    }

    /// Makes the event before the first token of a chat, in which vLLM also tells the prompt's ids.
    fn first_frame(&self) -> Step {
        let text = if self.dialect == Dialect::Vllm { json!("") } else { Value::Null };
        let delta = json!({ "role": "assistant", "content": text });
        let mut body =
            json!({ "object": "chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] });
        if self.ids && self.dialect == Dialect::Vllm {
            body["prompt_token_ids"] = json!(self.prompt);
        }
        Step::Frame(format!("data: {body}\n\n"))
    }

    /// Makes one event; `end` says whether the answer is whole, in its last event.
    fn frame(&self, delta: Value, ids: &[TokenId], end: Option<bool>) -> Step {
        let llama = self.dialect == Dialect::LlamaCpp && !self.is_chat;
        let body = if llama {
            let mut body = json!({ "index": 0, "content": delta["content"], "stop": end.is_some() });
            // llama.cpp does not send the id of the end token.
            body["tokens"] = if end.is_some() || !self.ids { json!([]) } else { json!(ids) };
            if let Some(whole) = end {
                body["stop_type"] = if whole { "eos" } else { "limit" }.into();
                body["tokens_evaluated"] = self.prompt.len().into();
                body["tokens_predicted"] = self.answer.len().min(self.max_tokens).into();
                body["timings"] = json!({ "cache_n": 0 });
            }
            body
        } else {
            let reason = end.map(|whole| if whole { "stop" } else { "length" });
            let mut choice = json!({ "index": 0, "finish_reason": reason });
            if self.is_chat {
                choice["delta"] = delta;
            } else {
                choice["text"] = delta["content"].clone();
            }
            if self.ids && self.dialect == Dialect::Vllm && !ids.is_empty() {
                choice["token_ids"] = json!(ids);
            }
            json!({ "object": "chunk", "choices": [choice] })
        };
        Step::Frame(format!("data: {body}\n\n"))
    }

    fn counts(&self, written: usize) -> Option<Step> {
        if self.dialect == Dialect::LlamaCpp && !self.is_chat {
            return None;
        }
        let usage = json!({ "prompt_tokens": self.prompt.len(), "completion_tokens": written });
        let body = json!({ "object": "chunk", "choices": [], "usage": usage });
        Some(Step::Frame(format!("data: {body}\n\ndata: [DONE]\n\n")))
    }
}
