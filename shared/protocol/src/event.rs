//! The events of an assist stream. Each is a server-sent event: a name and one line of JSON.
//!
//! Unknown fields are ignored. Numbers that enter a computation are checked, so that a broken or hostile peer
//! gives a typed error and never a NaN in a schedule. On the wire the data of each event ends with a checksum
//! of the stream so far ([`crate::StreamChecksum`]).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::ErrorBody;
use crate::kv::KvTicket;
use crate::mask_event::MaskEvent;
use crate::progress::ProgressEvent;
use crate::range::{NumberRange, OutOfRange};
use crate::request::{json_field, json_place, limits};
use crate::scene::Corrector;
use crate::verify::VerifyOffer;

/// Most bytes of text of one token.
const TOKEN_TEXT_BYTES_MAX: usize = 4096;
const SHARE: NumberRange = NumberRange::new(0.0, 1.0);
const MILLIS: NumberRange = NumberRange::new(0.0, 86_400_000.0);

/// One event of an assist stream.
#[derive(Debug, Clone, PartialEq)]
pub enum AssistEvent {
    /// How much of the prompt is computed, while there is no token yet.
    Progress(ProgressEvent),
    /// Which sentences to keep. If a stream has no mask, all are kept.
    Mask(MaskEvent),
    /// The first token, and what the rest of the stream will hold.
    First(Box<FirstEvent>),
    /// A later token.
    Token(TokenEvent),
    /// The last event of a stream that succeeded.
    End(EndEvent),
    /// The last event of a stream that failed.
    Error(ErrorEvent),
}

/// Body of an `error` event: the same as the body of an HTTP error.
pub type ErrorEvent = ErrorBody;

/// The first token, and what the rest of the stream will hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstEvent {
    /// Protocol version of the stream.
    pub protocol: u32,
    /// Version of the scene that was used.
    pub scene_version: u32,
    /// Token index; 0 unless the stream continues an answer.
    pub index: u32,
    /// Token id in the cloud's vocabulary.
    pub id: u32,
    /// Its text; empty while a character is incomplete.
    pub text: String,
    /// Total number of tokens that the cloud writes (L).
    pub assist_tokens: u32,
    /// What limited L, e.g. `tau`.
    pub assist_bound_by: String,
    /// Largest tolerable gap between shown tokens, in milliseconds.
    pub tau_ms: f32,
    /// Whose token is used if cloud and device differ.
    #[serde(default)]
    pub corrector: Corrector,
    /// Name of the model that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Adapter of that model, if the scene has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Digest of the cloud's tokenizer. Token ids may be used only if it equals the device's digest.
    #[serde(default)]
    pub tokenizer_sha256: Option<String>,
    /// The times of the cloud so far.
    #[serde(default)]
    pub timing: Timing,
    /// The arm of an experiment that the answer takes part in, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<ArmEvent>,
    /// That the cloud checks what the device writes behind L, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyOffer>,
    /// Keys and values of the kept sentences, if the device asked for them and there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvTicket>,
}

/// The arm of an experiment that an answer takes part in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmEvent {
    /// The experiment.
    pub id: String,
    /// The arm.
    pub arm: String,
    /// What `POST /v1/feedback` takes as `token`; absent if the answer is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
}

/// The times of the cloud until the first token, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// From the request's arrival to the start of its prefill.
    pub queue_ms: f64,
    /// Prefill.
    pub prefill_ms: f64,
    /// Refining and encoding the mask.
    pub refine_ms: f64,
    /// Expected decode time per token.
    pub decode_ms: f64,
}

/// A later token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Token index; each index has exactly one event.
    pub index: u32,
    /// Token id in the cloud's vocabulary.
    pub id: u32,
    /// Its text; empty while a character is incomplete.
    pub text: String,
}

/// The last event of a stream that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndEvent {
    /// Why it ended.
    pub reason: EndReason,
    /// Tokens used.
    #[serde(default)]
    pub usage: Usage,
    /// How long the stream held the cloud, if the service reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<SlotTiming>,
}

/// How long a stream held the cloud, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotTiming {
    /// From the request's arrival until it got a slot.
    pub queue_ms: f64,
    /// From getting the slot to the first token.
    pub prefill_ms: f64,
    /// From the first token to the end.
    pub decode_ms: f64,
    /// Total time that the stream held a slot.
    pub slot_ms: f64,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    /// The answer is complete.
    Stop,
    /// L tokens were written; the device goes on.
    Cap,
    /// The device cancelled the stream.
    Cancelled,
}

/// What a stream used, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_prefix_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
}

/// Why an event was refused.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// An event with an unknown name, from a newer protocol; it may be skipped.
    #[error("unknown event `{name}`")]
    UnknownName {
        /// Its name.
        name: String,
    },
    /// The data is not the JSON that this event has.
    #[error("event `{name}`: {}{message}", json_place(field))]
    Json {
        /// Name of the event.
        name: String,
        /// Path of the field.
        field: String,
        /// The parser's message.
        message: String,
    },
    /// A number is out of its range.
    #[error("event `{name}`")]
    Range {
        /// Name of the event.
        name: String,
        /// The number and its range.
        #[source]
        err: OutOfRange,
    },
}

impl AssistEvent {
    /// Returns the name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Progress(_) => "progress",
            Self::Mask(_) => "mask",
            Self::First(_) => "first",
            Self::Token(_) => "token",
            Self::End(_) => "end",
            Self::Error(_) => "error",
        }
    }

    /// Returns the event as one line of JSON.
    pub fn data(&self) -> String {
        let written = match self {
            Self::Progress(event) => serde_json::to_string(event),
            Self::Mask(event) => serde_json::to_string(event),
            Self::First(event) => serde_json::to_string(event),
            Self::Token(event) => serde_json::to_string(event),
            Self::End(event) => serde_json::to_string(event),
            Self::Error(event) => serde_json::to_string(event),
        };
        written.expect("events have string keys only and write to memory")
    }

    /// Returns the token index that the event carries, which is also its SSE `id`.
    pub fn index(&self) -> Option<u32> {
        match self {
            Self::First(event) => Some(event.index),
            Self::Token(event) => Some(event.index),
            Self::Progress(_) | Self::Mask(_) | Self::End(_) | Self::Error(_) => None,
        }
    }

    /// Reads and checks an event.
    ///
    /// # Errors
    /// [`EventError::UnknownName`] for an event to skip. The other errors mean that the peer must not be
    /// trusted any further.
    pub fn parse(name: &str, data: &str) -> Result<Self, EventError> {
        let range = |err| EventError::Range { name: name.to_owned(), err };
        match name {
            "progress" => {
                let event: ProgressEvent = read(name, data)?;
                event.check().map_err(range)?;
                Ok(Self::Progress(event))
            }
            "mask" => {
                let event: MaskEvent = read(name, data)?;
                SHARE.check("ratio", event.ratio).map_err(range)?;
                SHARE.check("prompt_ratio", event.prompt_ratio).map_err(range)?;
                Ok(Self::Mask(event))
            }
            "first" => {
                let event: FirstEvent = read(name, data)?;
                event.check().map_err(range)?;
                Ok(Self::First(Box::new(event)))
            }
            "token" => {
                let event: TokenEvent = read(name, data)?;
                check_text(&event.text).map_err(range)?;
                Ok(Self::Token(event))
            }
            "end" => Ok(Self::End(read(name, data)?)),
            "error" => Ok(Self::Error(read(name, data)?)),
            _ => Err(EventError::UnknownName { name: name.chars().take(64).collect() }),
        }
    }
}

impl FirstEvent {
    fn check(&self) -> Result<(), OutOfRange> {
        check_text(&self.text)?;
        limits::ASSIST_TOKENS.check("assist_tokens", self.assist_tokens)?;
        limits::TAU_MS.check("tau_ms", self.tau_ms)?;
        self.kv.as_ref().map_or(Ok(()), KvTicket::check)?;
        let Timing { queue_ms, prefill_ms, refine_ms, decode_ms } = self.timing;
        MILLIS.check("timing.queue_ms", queue_ms)?;
        MILLIS.check("timing.prefill_ms", prefill_ms)?;
        MILLIS.check("timing.refine_ms", refine_ms)?;
        MILLIS.check("timing.decode_ms", decode_ms)?;
        self.verify.iter().try_for_each(VerifyOffer::check)
    }
}

fn check_text(text: &str) -> Result<(), OutOfRange> {
    NumberRange::new(0.0, TOKEN_TEXT_BYTES_MAX as f64).check("text", text.len() as f64)
}

fn read<T: DeserializeOwned>(name: &str, data: &str) -> Result<T, EventError> {
    let mut parser = serde_json::Deserializer::from_str(data);
    let error = |field: String, message: String| EventError::Json { name: name.to_owned(), field, message };
    let event = serde_path_to_error::deserialize(&mut parser)
        .map_err(|e| error(json_field(&e), e.inner().to_string()))?;
    parser.end().map_err(|e| error(".".to_owned(), e.to_string()))?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::error::ErrorCode;
    use crate::progress::ProgressStage;

    #[track_caller]
    fn reads_back(event: AssistEvent, want: &str) {
        let data = event.data();
        assert!(!data.contains('\n'));
        assert_eq!(data, want);
        assert_eq!(AssistEvent::parse(event.name(), &data).unwrap(), event);
    }

    fn first() -> FirstEvent {
        FirstEvent {
            protocol: 1,
            scene_version: 7,
            index: 0,
            id: 464,
            text: "The".to_owned(),
            assist_tokens: 24,
            assist_bound_by: "tau".to_owned(),
            tau_ms: 100.0,
            corrector: Corrector::Cloud,
            model: None,
            adapter: None,
            tokenizer_sha256: None,
            timing: Timing { queue_ms: 1.5, prefill_ms: 200.0, refine_ms: 3.0, decode_ms: 20.0 },
            experiment: None,
            verify: None,
            kv: None,
        }
    }

    #[test]
    fn events_read_back() {
        reads_back(
            AssistEvent::Token(TokenEvent { index: 1, id: 989, text: " report\n".into() }),
            r#"{"index":1,"id":989,"text":" report\n"}"#,
        );
        reads_back(
            AssistEvent::End(EndEvent {
                reason: EndReason::Cap,
                usage: Usage { prompt_tokens: 8123, cached_prefix_tokens: 640, completion_tokens: 24 },
                timing: None,
            }),
            r#"{"reason":"cap","usage":{"prompt_tokens":8123,"cached_prefix_tokens":640,"completion_tokens":24}}"#,
        );
        let mut error = ErrorBody::new(ErrorCode::Overloaded, "busy").with_retry_after_ms(800);
        reads_back(
            AssistEvent::Error(error.clone()),
            r#"{"error":{"code":"overloaded","message":"busy","type":"rate_limit_error","retry_after_ms":800}}"#,
        );
        error.error.kind.clear();
        let short = r#"{"error":{"code":"overloaded","message":"busy","retry_after_ms":800}}"#;
        assert_eq!(AssistEvent::parse("error", short).unwrap(), AssistEvent::Error(error));
        let progress =
            ProgressEvent { stage: ProgressStage::Prefill, computed: 512, total: 4096, eta_ms: Some(900.0) };
        reads_back(
            AssistEvent::Progress(progress),
            r#"{"stage":"prefill","computed":512,"total":4096,"eta_ms":900.0}"#,
        );
        let event = AssistEvent::First(Box::new(first()));
        assert_eq!(AssistEvent::parse("first", &event.data()).unwrap(), event);
        assert_eq!(event.index(), Some(0));
    }

    #[test]
    fn newer_fields_are_ignored_and_newer_events_named() {
        let token = AssistEvent::parse("token", r#"{"index":1,"id":2,"text":"x","logprob":-0.5}"#).unwrap();
        assert_eq!(token.index(), Some(1));
        assert!(
            matches!(AssistEvent::parse("hint", "{}"), Err(EventError::UnknownName { name }) if name == "hint")
        );
    }

    #[test]
    fn broken_events_are_refused() {
        #[track_caller]
        fn check(name: &str, data: &str, want: &str) {
            let error = AssistEvent::parse(name, data).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(format!("{error} {source}").contains(want), "{error} {source}");
        }
        check("token", r#"{"index":-1,"id":2,"text":"x"}"#, "index");
        check("token", r#"{"index":1,"id":2}"#, "text");
        check("token", "", "EOF");
        check("token", r#"{"index":1,"id":2,"text":"x"}}"#, "trailing");
        check("end", r#"{"reason":"tired"}"#, "reason");
        check("mask", "[1]", "mask");
        check("progress", r#"{"stage":"queue","computed":2,"total":1}"#, "computed");
        check("progress", r#"{"stage":"prefill","computed":1,"total":2,"eta_ms":-1}"#, "eta_ms");
        let long = serde_json::json!({"index": 1, "id": 2, "text": "x".repeat(5000)}).to_string();
        check("token", &long, "text");
        let bad = |change: fn(&mut Value)| {
            let mut json = serde_json::to_value(first()).unwrap();
            change(&mut json);
            json.to_string()
        };
        check("first", &bad(|j| j["tau_ms"] = serde_json::json!(0)), "tau_ms");
        check("first", &bad(|j| j["tau_ms"] = serde_json::json!(1e39)), "tau_ms");
        check("first", &bad(|j| j["assist_tokens"] = serde_json::json!(0)), "assist_tokens");
        check("first", &bad(|j| j["timing"]["queue_ms"] = serde_json::json!(-1)), "timing.queue_ms");
    }
}
