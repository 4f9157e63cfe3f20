//! What can go wrong between this service and an engine.

use std::time::Duration;

use baton_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;

use super::balance::Ended;

/// Most characters of an engine's own message that are passed on.
const MESSAGE_CHARS_MAX: usize = 300;
/// How long an engine rests that says it has no room and not for how long.
const BUSY: Duration = Duration::from_secs(1);

/// Why an engine did not write an answer, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No connection, or it broke before a reply.
    #[error("the engine cannot be reached: {reason}")]
    Unreachable {
        /// What the HTTP client said.
        reason: String,
    },
    /// It replied with an error.
    #[error("the engine replied with status {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its own message.
        message: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The first token did not come in time.
    #[error("the engine wrote no token within {} ms", within.as_millis())]
    Late {
        /// The time it had.
        within: Duration,
    },
    /// Nothing came for too long in the middle of an answer.
    #[error("the engine said nothing for {} ms", silence.as_millis())]
    Silent {
        /// How long.
        silence: Duration,
    },
    /// It sent what its API does not have.
    #[error("the engine's reply cannot be read: {reason}")]
    Garbled {
        /// What is wrong.
        reason: String,
    },
    /// It reported an error in the middle of an answer.
    #[error("the engine failed in the middle of an answer: {message}")]
    Broke {
        /// Its own message.
        message: String,
    },
    /// The stream ended without an end of the answer.
    #[error("the engine's reply was cut off")]
    CutOff,
}

impl Fault {
    /// Makes the fault of a reply with an error status. The body is an error in one of the usual forms.
    pub(crate) fn of_reply(status: u16, body: &[u8], retry_after: Option<Duration>) -> Fault {
        let text = String::from_utf8_lossy(body);
        let message = serde_json::from_str::<Value>(&text).ok().and_then(|json| message_in(&json));
        Fault::Refused { status, message: short(&message.unwrap_or_else(|| text.into_owned())), retry_after }
    }

    /// Returns the word for it in figures.
    pub fn as_str(&self) -> &'static str {
        match self {
            Fault::Unreachable { .. } => "unreachable",
            Fault::Refused { status: 429, .. } => "busy",
            Fault::Refused { .. } => "refused",
            Fault::Late { .. } => "late",
            Fault::Silent { .. } => "silent",
            Fault::Garbled { .. } => "garbled",
            Fault::Broke { .. } => "broke",
            Fault::CutOff => "cut_off",
        }
    }

    /// Returns whether the request itself is to blame, so that no other engine would take it.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(self, Fault::Refused { status: 400 | 413 | 422, .. })
    }

    /// Returns what it means for the engine.
    pub(crate) fn ended(&self) -> Ended {
        match self {
            Fault::Refused { status: 429 | 503, retry_after, .. } => Ended::Busy(retry_after.unwrap_or(BUSY)),
            _ if self.is_of_request() => Ended::Well,
            _ => Ended::Badly,
        }
    }

    /// Returns the error that the device gets. It holds no address.
    pub(crate) fn to_body(&self) -> ErrorBody {
        match self {
            Fault::Refused { status: 429, retry_after, .. } => {
                let ms = u64::try_from(retry_after.unwrap_or(BUSY).as_millis()).unwrap_or(u64::MAX);
                ErrorBody::new(ErrorCode::Overloaded, "every engine of this model is full")
                    .with_retry_after_ms(ms)
            }
            Fault::Refused { message, .. } if self.is_of_request() && is_about_length(message) => {
                ErrorBody::new(ErrorCode::PromptTooLong, self.to_string())
            }
            _ if self.is_of_request() => ErrorBody::new(ErrorCode::InvalidRequest, self.to_string()),
            Fault::Late { .. } | Fault::Silent { .. } => ErrorBody::new(ErrorCode::Timeout, self.to_string()),
            // The HTTP client's reason may have the engine's address.
            Fault::Unreachable { .. } => {
                let body = ErrorBody::new(ErrorCode::Unavailable, "no engine of this model can be reached");
                body.with_retry_after_ms(1000)
            }
            _ => ErrorBody::new(ErrorCode::Unavailable, self.to_string()),
        }
    }
}

/// Returns the message of an error in the forms of OpenAI, vLLM, llama.cpp and TGI.
pub(crate) fn message_in(json: &Value) -> Option<String> {
    let error = json.get("error").unwrap_or(json);
    let text = error.get("message").or_else(|| json.get("message")).or_else(|| json.get("detail"));
    let text = text.unwrap_or(error);
    match text {
        Value::String(text) => Some(short(text)),
        Value::Null => None,
        other if json.get("error").is_some() => Some(short(&other.to_string())),
        _ => None,
    }
}

/// Returns a text of a bounded length and without control characters.
pub(crate) fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

fn is_about_length(message: &str) -> bool {
    let message = message.to_lowercase();
    ["context length", "context size", "maximum length", "max_model_len", "too long"]
        .iter()
        .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_engines_are_read_in_their_own_forms() {
        let message = |body: &str| match Fault::of_reply(400, body.as_bytes(), None) {
            Fault::Refused { message, .. } => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(message(r#"{"error":{"message":"no such field","code":400}}"#), "no such field");
        assert_eq!(message(r#"{"object":"error","message":"too long","code":400}"#), "too long");
        assert_eq!(
            message(r#"{"error":"Input validation error","error_type":"validation"}"#),
            "Input validation error"
        );
        assert_eq!(message(r#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(message("plain\u{7} text"), "plain text");
        assert_eq!(message(&"x".repeat(5000)).len(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn each_fault_has_its_consequences() {
        let refused =
            |status, message: &str| Fault::Refused { status, message: message.into(), retry_after: None };
        let check = |fault: Fault, code: ErrorCode, ended: Ended| {
            assert_eq!((fault.to_body().error.code, fault.ended()), (code, ended), "{fault}");
        };
        check(refused(429, "full"), ErrorCode::Overloaded, Ended::Busy(BUSY));
        check(refused(503, "starting"), ErrorCode::Unavailable, Ended::Busy(BUSY));
        check(refused(400, "bad field"), ErrorCode::InvalidRequest, Ended::Well);
        let long = "This model's maximum context length is 2048 tokens";
        check(refused(400, long), ErrorCode::PromptTooLong, Ended::Well);
        check(refused(404, "no such model"), ErrorCode::Unavailable, Ended::Badly);
        check(refused(500, "oops"), ErrorCode::Unavailable, Ended::Badly);
        check(Fault::Silent { silence: BUSY }, ErrorCode::Timeout, Ended::Badly);
        check(Fault::CutOff, ErrorCode::Unavailable, Ended::Badly);
        let unreachable = Fault::Unreachable { reason: "http://10.0.0.7:8000 refused".into() };
        assert!(!unreachable.to_body().error.message.contains("10.0.0.7"));
        check(unreachable, ErrorCode::Unavailable, Ended::Badly);
    }
}
