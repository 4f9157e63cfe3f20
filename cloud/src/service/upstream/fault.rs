//! What can go wrong between this service and an engine.
//!
//! An engine's own words may hold the text of a request. Never: are they in the log. [`Fault`] shows itself
//! without them; only the error that the asking client gets has their beginning, in quotation marks.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use baton_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;

use super::balance::Ended;
use super::facts::Lack;

/// Most characters of an engine's own message that are passed on.
const MESSAGE_CHARS_MAX: usize = 300;
/// Most bytes of a refusal that are searched for what it is about.
const SEARCHED_BYTES_MAX: usize = 64 << 10;
/// How long an engine rests that says it has no room and not for how long.
const BUSY: Duration = Duration::from_secs(1);

/// Words of an engine, of a bounded length and without control characters. Printed, they are a count.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineText(String);

impl EngineText {
    pub(crate) fn new(text: &str) -> EngineText {
        EngineText(short(text))
    }

    /// Returns a message followed by these words, marked as the engine's.
    fn behind(&self, message: &str) -> String {
        if self.0.is_empty() {
            return message.to_owned();
        }
        format!("{message}; it said: \"{}\"", self.0.replace('"', "'"))
    }
}

impl fmt::Debug for EngineText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} characters", self.0.chars().count())
    }
}

/// What a refusal is about, as far as it says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Parts of the request that it names.
    lacks: BTreeSet<Lack>,
    /// Whether it complains of a field, named or not.
    is_of_fields: bool,
    /// Whether it says that the prompt is too long.
    is_of_length: bool,
}

impl About {
    fn of(body: &str) -> About {
        const OF_FIELDS: &[&str] = &[
            "unknown",
            "unrecognized",
            "unexpected",
            "unsupported",
            "not support",
            "extra",
            "not permitted",
        ];
        let body = body.to_lowercase();
        let holds = |words: &[&str]| words.iter().any(|words| body.contains(words));
        About {
            lacks: Lack::ALL.into_iter().filter(|lack| lack.is_named_in(&body)).collect(),
            // One who says nothing may mean anything.
            is_of_fields: holds(OF_FIELDS) || body.trim().is_empty(),
            is_of_length: holds(OF_LENGTH),
        }
    }
}

/// Words of engines that say that a prompt is too long.
const OF_LENGTH: &[&str] = &["context length", "context size", "maximum length", "max_model_len", "too long"];

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
    #[error("the engine replied with status {status}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its own message.
        text: EngineText,
        /// What the message is about.
        about: About,
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
    #[error("the engine failed in the middle of an answer")]
    Broke {
        /// Its own message.
        text: EngineText,
    },
    /// It sent text without token ids, after it had sent ids.
    #[error("the engine's reply cannot be read: text without its token ids")]
    NoIds,
    /// It was found not to have what the request needs.
    #[error("{message}")]
    Unsupported {
        /// The field of the request.
        field: &'static str,
        /// Why.
        message: &'static str,
    },
    /// The stream ended without an end of the answer.
    #[error("the engine's reply was cut off")]
    CutOff,
}

impl Fault {
    /// Makes the fault of a reply with an error status. The body is an error in one of the usual forms.
    pub(crate) fn of_reply(status: u16, body: &[u8], retry_after: Option<Duration>) -> Fault {
        let body = String::from_utf8_lossy(&body[..body.len().min(SEARCHED_BYTES_MAX)]);
        let message = serde_json::from_str::<Value>(&body).ok().and_then(|json| message_in(&json));
        let text = EngineText::new(message.as_deref().unwrap_or(&body));
        Fault::Refused { status, text, about: About::of(&body), retry_after }
    }

    /// Returns which of these parts of a request the engine refused: those that it named. If it complains of
    /// a field that it does not name, returns all that can be left out. Empty if it refused something else.
    pub(super) fn refused(&self, sent: &BTreeSet<Lack>) -> BTreeSet<Lack> {
        let Fault::Refused { status: 400 | 415 | 422 | 501, about, .. } = self else {
            return BTreeSet::new();
        };
        let named: BTreeSet<Lack> = sent.intersection(&about.lacks).copied().collect();
        if !named.is_empty() || about.is_of_length || !about.is_of_fields {
            return named;
        }
        sent.iter().copied().filter(|lack| lack.can_be_left_out()).collect()
    }

    /// Returns the word for it in figures.
    pub fn as_str(&self) -> &'static str {
        match self {
            Fault::Unreachable { .. } => "unreachable",
            Fault::Refused { status: 429, .. } => "busy",
            Fault::Refused { .. } => "refused",
            Fault::Late { .. } => "late",
            Fault::Silent { .. } => "silent",
            Fault::Garbled { .. } | Fault::NoIds => "garbled",
            Fault::Unsupported { .. } => "unsupported",
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
            Fault::Unsupported { .. } => Ended::Unused,
            _ if self.is_of_request() => Ended::Well,
            _ => Ended::Badly,
        }
    }

    /// Returns the error that the device gets. It holds no address. What the engine said stands behind `it
    /// said`, in quotation marks.
    pub(crate) fn to_body(&self) -> ErrorBody {
        let message = match self {
            Fault::Refused { text, .. } | Fault::Broke { text } => text.behind(&self.to_string()),
            _ => self.to_string(),
        };
        match self {
            Fault::Refused { status: 429, retry_after, .. } => {
                let ms = u64::try_from(retry_after.unwrap_or(BUSY).as_millis()).unwrap_or(u64::MAX);
                ErrorBody::new(ErrorCode::Overloaded, "every engine of this model is full")
                    .with_retry_after_ms(ms)
            }
            Fault::Refused { about, .. } if self.is_of_request() && about.is_of_length => {
                ErrorBody::new(ErrorCode::PromptTooLong, message)
            }
            Fault::Unsupported { field, .. } => {
                ErrorBody::new(ErrorCode::InvalidRequest, message).with_param(*field)
            }
            _ if self.is_of_request() => ErrorBody::new(ErrorCode::InvalidRequest, message),
            Fault::Late { .. } | Fault::Silent { .. } => ErrorBody::new(ErrorCode::Timeout, message),
            // The HTTP client's reason may have the engine's address.
            Fault::Unreachable { .. } => {
                let body = ErrorBody::new(ErrorCode::Unavailable, "no engine of this model can be reached");
                body.with_retry_after_ms(1000)
            }
            _ => ErrorBody::new(ErrorCode::Unavailable, message),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Fault {
        Fault::of_reply(status, body.as_bytes(), None)
    }

    #[test]
    fn errors_of_engines_are_read_in_their_own_forms_and_marked() {
        let said = |body: &str| {
            let message = refused(400, body).to_body().error.message;
            let said = message.strip_prefix("the engine replied with status 400; it said: \"");
            said.and_then(|said| said.strip_suffix('"')).unwrap_or_else(|| panic!("{message}")).to_owned()
        };
        assert_eq!(said(r#"{"error":{"message":"no such field","code":400}}"#), "no such field");
        assert_eq!(said(r#"{"object":"error","message":"a \"x\"","code":400}"#), "a 'x'");
        assert_eq!(
            said(r#"{"error":"Input validation error","error_type":"validation"}"#),
            "Input validation error"
        );
        assert_eq!(said(r#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(said("plain\u{7} text"), "plain text");
        assert_eq!(said(&"x".repeat(5000)).len(), MESSAGE_CHARS_MAX);
        assert_eq!(refused(400, "").to_body().error.message, "the engine replied with status 400");
    }

    #[test]
    fn what_an_engine_said_is_not_printed() {
        let broke = Fault::Broke { text: EngineText::new("the secret") };
        for fault in [refused(500, r#"{"error":{"message":"the secret"}}"#), broke] {
            assert!(fault.to_body().error.message.contains("\"the secret\""), "{fault}");
            assert!(!format!("{fault} {fault:?}").contains("secret"), "{fault:?}");
        }
    }

    #[test]
    fn a_refusal_is_of_what_it_names_or_of_every_part_that_can_be_left_out() {
        let sent = BTreeSet::from([Lack::Salt, Lack::AnswerIds]);
        let check = |status, body: &str, want: &[Lack]| {
            assert_eq!(Vec::from_iter(refused(status, body).refused(&sent)), want, "{body}");
        };
        check(400, "cache_salt: Extra inputs are not permitted", &[Lack::Salt]);
        check(422, r#"{"detail":[{"loc":["body","return_token_ids"]}]}"#, &[Lack::AnswerIds]);
        check(400, "unknown field", &[Lack::AnswerIds, Lack::Salt]);
        check(400, "refused on command", &[]);
        check(400, " ", &[Lack::AnswerIds, Lack::Salt]);
        check(400, "unexpected: the prompt is too long", &[]);
        check(500, "cache_salt: unknown", &[]);
        check(400, "unknown field `stream_options`", &[Lack::AnswerIds, Lack::Salt]);
    }

    #[test]
    fn each_fault_has_its_consequences() {
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
        check(Fault::Unsupported { field: "tools", message: "no" }, ErrorCode::InvalidRequest, Ended::Unused);
        let unreachable = Fault::Unreachable { reason: "http://10.0.0.7:8000 refused".into() };
        assert!(!unreachable.to_body().error.message.contains("10.0.0.7"));
        check(unreachable, ErrorCode::Unavailable, Ended::Badly);
    }
}
