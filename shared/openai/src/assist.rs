//! Turns a chat request with the field `baton` into a request of the assist protocol.
//!
//! The cloud writes the beginning of such an answer and the caller continues it. So the request may not ask
//! for anything that the caller could not continue: tools, formats, penalties or log probabilities.

use std::collections::BTreeSet;

use baton_protocol::{AssistRequest, PROTOCOL_VERSION, RefineOptions, Segment};
use uuid::Uuid;

use crate::error::FieldError;
use crate::request::{AnswerFormat, ChatRequest};
use crate::tools::ChatMessage;
use crate::wire::BatonBody;

impl ChatRequest {
    /// Checks that the other fields are allowed together with `baton`, and that `baton.refine` names messages
    /// that exist.
    pub(crate) fn check_baton(&self) -> Result<(), FieldError> {
        let Some(baton) = &self.baton else { return Ok(()) };
        let plain = [
            ("tools", self.tools.is_none()),
            ("response_format", self.format == AnswerFormat::Text),
            ("logprobs", self.logprobs.is_none()),
            ("frequency_penalty", self.penalties.frequency == 0.0),
            ("presence_penalty", self.penalties.presence == 0.0),
        ];
        if let Some((field, _)) = plain.into_iter().find(|(_, fine)| !fine) {
            return Err(FieldError::new(
                field,
                "a device could not continue with it; leave it or `baton` out",
            ));
        }
        let messages = self.prompt.messages();
        if let Some(at) = messages.iter().position(ChatMessage::is_about_tools) {
            let message = "tools are not supported together with `baton`";
            return Err(FieldError::new(format!("messages[{at}]"), message));
        }
        if let Some(at) = baton.refine.iter().position(|&message| message >= messages.len()) {
            let want = format!("must be below {}, the number of messages", messages.len());
            return Err(FieldError::new(format!("baton.refine[{at}]"), want));
        }
        Ok(())
    }

    /// Converts this request to the assist protocol. The caller takes `baton` out of [`ChatRequest::baton`]
    /// first.
    ///
    /// # Errors
    /// [`FieldError`] if a value is out of the protocol's range.
    pub fn into_assist(self, baton: BatonBody) -> Result<AssistRequest, FieldError> {
        let refine: BTreeSet<usize> = baton.refine.into_iter().collect();
        let segment =
            |(at, message): (usize, ChatMessage)| Segment { refine: refine.contains(&at), ..message.into() };
        let request = AssistRequest {
            protocol: PROTOCOL_VERSION,
            request_id: Uuid::new_v4(),
            scene: baton.scene,
            scene_version: baton.scene_version,
            model: self.model,
            tokenizer_sha256: None,
            segments: self.prompt.into_messages().into_iter().enumerate().map(segment).collect(),
            tools: None,
            format: AnswerFormat::Text,
            continue_from: None,
            device: baton.device,
            sampling: self.sampling,
            refine: RefineOptions { ratio: baton.ratio, mode: None },
            assist_tokens: baton.assist_tokens,
            resume: false,
            verify: false,
        };
        request.check()?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use baton_protocol::Role;
    use serde_json::{Value, json};

    use super::*;
    use crate::capabilities::Capabilities;
    use crate::request::parse;

    fn assist(extra: Value) -> Result<AssistRequest, FieldError> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut request = parse(body.to_string().as_bytes(), &Capabilities::CLOUD)?;
        let baton = request.baton.take().expect("the request has the field");
        request.into_assist(baton)
    }

    #[track_caller]
    fn refused(baton: Value, param: &str) {
        let err = assist(json!({ "baton": baton })).unwrap_err();
        assert_eq!(err.param(), Some(param), "{baton}: {err}");
        assert!(err.to_string().contains(&format!("field `{param}`")), "{err}");
    }

    #[test]
    fn a_scene_makes_it_an_assist_request() {
        let baton = json!({ "scene": "doc-qa", "assist_tokens": 50, "refine": [0] });
        let request = assist(json!({ "max_tokens": 40, "baton": baton })).unwrap();
        assert_eq!((request.scene.as_str(), request.assist_tokens), ("doc-qa", Some(50)));
        assert_eq!(request.segments, [Segment::refinable(Role::User, "hello")]);
        let unset = assist(json!({ "max_tokens": 100_000, "baton": { "scene": "doc-qa" } })).unwrap();
        assert_eq!(unset.assist_tokens, None, "a limit is no wish for L");
    }

    #[test]
    fn ranges_of_the_protocol_are_told_by_the_names_of_the_chat() {
        refused(json!({ "scene": "" }), "baton.scene");
        refused(json!({ "scene": "s", "assist_tokens": 0 }), "baton.assist_tokens");
        refused(json!({ "scene": "s", "ratio": 2 }), "baton.ratio");
        let device = json!({ "class": "", "model": "m" });
        refused(json!({ "scene": "s", "device": device }), "baton.device.class");
    }
}
