//! The assist request: what a device asks the cloud.
//!
//! Strict: an unknown field, a wrong type or a number out of its range is refused with a message that names the
//! field. Nothing else is checked here (whether the scene exists, or the prompt fits the model, the service knows).

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::PROTOCOL_VERSION;
use crate::error::{ErrorBody, ErrorCode};
use crate::range::OutOfRange;
use crate::shape::{ShapeError, check_shape};

/// What a parser's message may add to an error.
const MESSAGE_CHARS_MAX: usize = 400;

/// What the fields of a request may hold.
pub mod limits {
    use crate::range::NumberRange;

    /// Most segments of a prompt.
    pub const SEGMENTS_MAX: usize = 1024;
    /// Most bytes of text in all segments and `continue_from` together.
    pub const TEXT_BYTES_MAX: usize = 16 << 20;
    /// Most bytes of a name (scene, model, class, network, mode).
    pub const NAME_BYTES_MAX: usize = 128;
    /// Most stop strings.
    pub const STOPS_MAX: usize = 16;
    /// Most bytes of one stop string; as many as the engine takes, so that a device and a cloud refuse the same.
    pub const STOP_BYTES_MAX: usize = 1_024;
    /// Share of the refinable content that is kept (r, xi).
    pub const RATIO: NumberRange = NumberRange::new(0.01, 1.0);
    /// Tokens that the cloud writes (L).
    pub const ASSIST_TOKENS: NumberRange = NumberRange::new(1.0, 65_536.0);
    /// Largest tolerable gap between shown tokens, in milliseconds (tau).
    pub const TAU_MS: NumberRange = NumberRange::new(1.0, 60_000.0);
    /// Prefill time per token, in milliseconds (k_d).
    pub const PREFILL_MS_PER_TOKEN: NumberRange = NumberRange::new(0.0, 10_000.0);
    /// Prefill time per squared token, in milliseconds (q_d).
    pub const PREFILL_MS_PER_TOKEN2: NumberRange = NumberRange::new(0.0, 10.0);
    /// Decoding time per token, in milliseconds (TPOT_d).
    pub const DECODE_MS: NumberRange = NumberRange::new(0.0, 60_000.0);
    /// What a network adds to the time to the first token, in milliseconds.
    pub const NETWORK_MS: NumberRange = NumberRange::new(0.0, 60_000.0);
    /// Sampling temperature; 0 is greedy.
    pub const TEMPERATURE: NumberRange = NumberRange::new(0.0, 10.0);
    /// Number of most probable tokens sampled from.
    pub const TOP_K: NumberRange = NumberRange::new(1.0, 1_000_000.0);
    /// Probability mass sampled from.
    pub const TOP_P: NumberRange = NumberRange::new(0.0, 1.0);
    /// Smallest probability sampled, relative to the largest.
    pub const MIN_P: NumberRange = NumberRange::new(0.0, 1.0);
    /// Divisor of positive logits of tokens already written.
    pub const REPETITION_PENALTY: NumberRange = NumberRange::new(0.1, 10.0);
}

/// Who says a segment of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the application.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

impl Role {
    /// The role as on the wire and as chat templates know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One part of the prompt. Its end is a hard boundary: segments are tokenized and split into sentences alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Who says it.
    pub role: Role,
    /// The text.
    pub text: String,
    /// Sentences of it may be left out. The device says so, the cloud never guesses.
    #[serde(default)]
    pub refine: bool,
}

impl Segment {
    /// A segment that stays whole.
    pub fn fixed(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), refine: false }
    }

    /// A segment whose sentences may be left out.
    pub fn refinable(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), refine: true }
    }
}

/// `POST /v1/assist`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssistRequest {
    /// Protocol version; must be [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Names this request; the same id within a short time gives the same stream.
    pub request_id: Uuid,
    /// Scene id.
    pub scene: String,
    /// Scene version the device has; `None`: whatever is current.
    #[serde(default)]
    pub scene_version: Option<u32>,
    /// Model name, or `default`.
    pub model: String,
    /// Digest of the device's tokenizer, 64 lower-case hex digits; ids are used only where it equals the cloud's.
    #[serde(default)]
    pub tokenizer_sha256: Option<String>,
    /// The prompt, in order.
    pub segments: Vec<Segment>,
    /// Text of this answer that was already accepted, when the cloud is asked to go on.
    #[serde(default)]
    pub continue_from: Option<String>,
    /// The device as it is now; `None`: what the service knows about its like.
    #[serde(default)]
    pub device: Option<DeviceInfo>,
    /// How the answer is sampled.
    #[serde(default)]
    pub sampling: Sampling,
    /// How the content is refined.
    #[serde(default)]
    pub refine: RefineOptions,
    /// Tokens the cloud shall write (L); `None`: the scene's setting or the optimizer's answer.
    #[serde(default)]
    pub assist_tokens: Option<u32>,
    /// The stream may be taken up again after a disconnect.
    #[serde(default)]
    pub resume: bool,
}

/// What the device says about itself, for the optimizer. Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceInfo {
    /// Kind of device, e.g. `phone`.
    pub class: String,
    /// Model on the device.
    pub model: String,
    /// Prefill time per token (k_d); `None`: what devices of its class usually take, q_d with it.
    #[serde(default)]
    pub prefill_ms_per_token: Option<f64>,
    /// Prefill time per squared token, from attention (q_d).
    #[serde(default)]
    pub prefill_ms_per_token2: f64,
    /// Time per output token (TPOT_d); `None`: what devices of its class usually take.
    #[serde(default)]
    pub decode_ms: Option<f64>,
    /// Kind of network, e.g. `wifi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// What the network added to its last times to first token (median): seen by the device less what the cloud said it
    /// took itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
}

/// How the answer is sampled. Randomness is keyed by (seed, token index).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// Sample from this many most probable tokens only.
    pub top_k: Option<u32>,
    /// Sample from the most probable tokens of this mass only.
    pub top_p: Option<f32>,
    /// Sample only tokens of at least this share of the largest probability.
    pub min_p: Option<f32>,
    /// Penalty on tokens that the answer already holds; 1: none.
    pub repetition_penalty: f32,
    /// Seed of the randomness.
    pub seed: u64,
    /// Strings at which the answer ends; not part of it.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
        }
    }
}

/// How the content is refined; what is `None`, the scene or the optimizer decides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RefineOptions {
    /// Share of the refinable content to keep (r).
    pub ratio: Option<f32>,
    /// Name of the refiner's mode, e.g. `attention`.
    pub mode: Option<String>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// Not JSON, a missing or unknown field, or a value of the wrong type.
    #[error("{}{message}", json_place(field))]
    Json {
        /// Path of the field; `.` where the whole is to blame.
        field: String,
        /// What the parser says.
        message: String,
    },
    /// A text of too many values, or with a name of a field that is too long.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A number out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A protocol version that this build does not speak.
    #[error("field `protocol` is {got}, this service speaks {}", PROTOCOL_VERSION)]
    Protocol {
        /// What was sent.
        got: u32,
    },
    /// A text or list that is too long.
    #[error("field `{field}` has length {len}, at most {max} are allowed")]
    TooLong {
        /// Path of the field.
        field: String,
        /// Its length, in bytes or items.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A text or list that must not be empty.
    #[error("field `{field}` is empty")]
    Empty {
        /// Path of the field.
        field: String,
    },
    /// A text that is not of the form it must have.
    #[error("field `{field}` must be {want}")]
    Form {
        /// Path of the field.
        field: String,
        /// What it must be.
        want: &'static str,
    },
}

impl RequestError {
    /// Path of the field that is to blame.
    pub fn field(&self) -> &str {
        match self {
            Self::Json { field, .. }
            | Self::TooLong { field, .. }
            | Self::Empty { field }
            | Self::Form { field, .. } => field,
            Self::Range(range) => &range.field,
            Self::Protocol { .. } => "protocol",
            Self::Shape(_) => ".",
        }
    }

    /// The body of the answer.
    pub fn to_body(&self) -> ErrorBody {
        let code = match self {
            Self::Protocol { .. } => ErrorCode::UnsupportedProtocol,
            _ => ErrorCode::InvalidRequest,
        };
        let body = ErrorBody::new(code, self.to_string());
        if self.field() == "." { body } else { body.with_param(self.field()) }
    }
}

/// Path of the field that a parser stopped at; `.` if it names none, as it does where the text is not JSON.
pub(crate) fn json_field<E>(err: &serde_path_to_error::Error<E>) -> String {
    let path = err.path().to_string();
    match path.trim_end_matches('?').trim_end_matches('.') {
        "" => ".".to_owned(),
        field => field.to_owned(),
    }
}

/// How a message begins about what was read at `field`.
pub(crate) fn json_place(field: &str) -> String {
    if field == "." { "not the JSON that is wanted: ".to_owned() } else { format!("field `{field}`: ") }
}

impl AssistRequest {
    /// Reads and checks a request.
    ///
    /// Memory: the texts of `json` once, and at most some MiB for everything else.
    ///
    /// # Errors
    /// [`RequestError`] naming the field that is to blame.
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        check_shape(json)?;
        let mut parser = serde_json::Deserializer::from_slice(json);
        let request: Self = serde_path_to_error::deserialize(&mut parser)
            .map_err(|e| RequestError::Json { field: cut(&json_field(&e)), message: cut(e.inner()) })?;
        parser.end().map_err(|e| RequestError::Json { field: ".".to_owned(), message: e.to_string() })?;
        request.check()?;
        Ok(request)
    }

    /// Checks what types cannot say: version, ranges, lengths.
    ///
    /// # Errors
    /// [`RequestError`] naming the field that is to blame.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.protocol != PROTOCOL_VERSION {
            return Err(RequestError::Protocol { got: self.protocol });
        }
        check_name("scene", &self.scene)?;
        check_name("model", &self.model)?;
        if let Some(digest) = &self.tokenizer_sha256 {
            check_sha256("tokenizer_sha256", digest)?;
        }
        self.check_texts()?;
        if let Some(device) = &self.device {
            device.check()?;
        }
        self.sampling.check()?;
        limits::RATIO.check_opt("refine.ratio", self.refine.ratio)?;
        if let Some(mode) = &self.refine.mode {
            check_name("refine.mode", mode)?;
        }
        limits::ASSIST_TOKENS.check_opt("assist_tokens", self.assist_tokens)?;
        Ok(())
    }

    fn check_texts(&self) -> Result<(), RequestError> {
        check_len("segments", self.segments.len(), limits::SEGMENTS_MAX)?;
        let texts = self.segments.iter().map(|s| s.text.len()).sum::<usize>();
        if texts == 0 {
            return Err(RequestError::Empty { field: "segments".to_owned() });
        }
        check_len("segments", texts, limits::TEXT_BYTES_MAX)?;
        let answer = self.continue_from.as_ref().map_or(0, String::len);
        check_len("continue_from", answer, limits::TEXT_BYTES_MAX - texts)
    }
}

impl DeviceInfo {
    fn check(&self) -> Result<(), RequestError> {
        check_name("device.class", &self.class)?;
        check_name("device.model", &self.model)?;
        limits::PREFILL_MS_PER_TOKEN.check_opt("device.prefill_ms_per_token", self.prefill_ms_per_token)?;
        limits::PREFILL_MS_PER_TOKEN2.check("device.prefill_ms_per_token2", self.prefill_ms_per_token2)?;
        limits::DECODE_MS.check_opt("device.decode_ms", self.decode_ms)?;
        limits::NETWORK_MS.check_opt("device.network_ms", self.network_ms)?;
        self.network.as_ref().map_or(Ok(()), |network| check_name("device.network", network))
    }
}

impl Sampling {
    /// Checks the ranges of all numbers and the lengths of the stop strings.
    ///
    /// # Errors
    /// [`RequestError`] naming the field that is to blame.
    pub fn check(&self) -> Result<(), RequestError> {
        limits::TEMPERATURE.check("sampling.temperature", self.temperature)?;
        limits::TOP_K.check_opt("sampling.top_k", self.top_k)?;
        limits::TOP_P.check_opt("sampling.top_p", self.top_p)?;
        limits::MIN_P.check_opt("sampling.min_p", self.min_p)?;
        limits::REPETITION_PENALTY.check("sampling.repetition_penalty", self.repetition_penalty)?;
        check_len("sampling.stop", self.stop.len(), limits::STOPS_MAX)?;
        for (i, stop) in self.stop.iter().enumerate() {
            let field = format!("sampling.stop[{i}]");
            check_len(&field, stop.len(), limits::STOP_BYTES_MAX)?;
            if stop.is_empty() {
                return Err(RequestError::Empty { field });
            }
        }
        Ok(())
    }
}

/// The beginning of what a parser says: it repeats texts of a request, which may be long.
fn cut(message: &impl fmt::Display) -> String {
    struct Beginning(String);

    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = MESSAGE_CHARS_MAX - self.0.chars().count();
            self.0.extend(text.chars().take(room));
            if self.0.chars().count() < MESSAGE_CHARS_MAX { Ok(()) } else { Err(fmt::Error) }
        }
    }

    let mut beginning = Beginning(String::new());
    // Full is no failure.
    let _ = fmt::write(&mut beginning, format_args!("{message}"));
    beginning.0
}

fn check_len(field: &str, len: usize, max: usize) -> Result<(), RequestError> {
    if len > max {
        return Err(RequestError::TooLong { field: field.to_owned(), len, max });
    }
    Ok(())
}

/// A name is not empty, not long, and holds no control characters (it is shown in logs).
fn check_name(field: &str, name: &str) -> Result<(), RequestError> {
    if name.is_empty() {
        return Err(RequestError::Empty { field: field.to_owned() });
    }
    check_len(field, name.len(), limits::NAME_BYTES_MAX)?;
    if name.chars().any(char::is_control) {
        return Err(RequestError::Form { field: field.to_owned(), want: "free of control characters" });
    }
    Ok(())
}

fn check_sha256(field: &str, digest: &str) -> Result<(), RequestError> {
    let hex = digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !hex {
        return Err(RequestError::Form { field: field.to_owned(), want: "64 lower-case hex digits" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
