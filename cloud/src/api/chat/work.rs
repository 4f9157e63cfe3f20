//! Decides what a request of the chat or text completion API asks the service for.

use baton_openai::{ChatRequest, FieldError};
use baton_protocol::AssistRequest;

use crate::service::citations::Citations;
use crate::service::completion::CompletionRequest;
use crate::service::logprobs::Logprobs;

/// The work that a request asks for.
#[derive(Debug)]
pub(super) enum ChatWork {
    /// The whole answer.
    Whole(Box<CompletionRequest>),
    /// The beginning of the answer, by a scene, and the most tokens that the caller accepts, whatever L is.
    Assisted(Box<AssistRequest>, Option<usize>),
}

impl ChatWork {
    /// Returns the work that a request asks for.
    ///
    /// # Errors
    /// [`FieldError`] if the field `baton` holds a value that the assist protocol does not allow.
    pub(super) fn of(mut request: ChatRequest) -> Result<ChatWork, FieldError> {
        if let Some(baton) = request.baton.take() {
            let max_tokens = request.max_tokens;
            return Ok(ChatWork::Assisted(Box::new(request.into_assist(baton)?), max_tokens));
        }
        Ok(ChatWork::Whole(Box::new(CompletionRequest {
            model: request.model,
            prompt: request.prompt,
            begun: request.begun,
            sampling: request.sampling,
            penalties: request.penalties,
            max_tokens: request.max_tokens,
            format: request.format,
            tools: request.tools,
            logprobs: request.logprobs.map(Logprobs::new),
            citations: request.citations.then(Citations::default),
        })))
    }
}

#[cfg(test)]
mod tests {
    use baton_openai::{AnswerFormat, Capabilities, parse};
    use serde_json::json;

    use super::*;

    fn work(extra: serde_json::Value) -> ChatWork {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ChatWork::of(parse(body.to_string().as_bytes(), &Capabilities::CLOUD).unwrap()).unwrap()
    }

    #[test]
    fn a_request_without_a_scene_asks_for_the_whole_answer() {
        let work =
            work(json!({ "max_tokens": 9, "logprobs": true, "response_format": { "type": "json_object" } }));
        let ChatWork::Whole(request) = work else { panic!("{work:?}") };
        assert_eq!((request.max_tokens, &request.format), (Some(9), &AnswerFormat::JsonObject));
        assert!(request.logprobs.is_some() && request.tools.is_none());
    }

    #[test]
    fn a_limit_is_no_wish_for_l() {
        for limit in [16, 1024, 100_000] {
            let work = work(json!({ "max_tokens": limit, "baton": { "scene": "doc-qa" } }));
            let ChatWork::Assisted(request, max_tokens) = work else { panic!("{work:?}") };
            assert_eq!((request.assist_tokens, max_tokens), (None, Some(limit)));
        }
    }
}
