//! The assist request, which a device sends to the cloud.
//!
//! Parsing is strict: an unknown field, a wrong type or a number out of its range is refused, and the message
//! names the field. Nothing else is checked here; the service checks that the scene exists and that the
//! prompt fits the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::PROTOCOL_VERSION;
use crate::error::{ErrorBody, ErrorCode};
use crate::pair::ModelPair;
use crate::range::OutOfRange;
use crate::shape::{ShapeError, check_shape};
use crate::tools::{AnswerFormat, PastCall, ToolUse};

/// Most characters of a parser's message in an error.
const MESSAGE_CHARS_MAX: usize = 400;

/// Limits of the fields of a request.
pub mod limits {
    use crate::range::NumberRange;

    /// Most segments of a prompt.
    pub const SEGMENTS_MAX: usize = 1024;
    /// Most functions that an answer may call, and most calls of one segment.
    pub const TOOLS_MAX: usize = 512;
    /// Most bytes of a function's name.
    pub const TOOL_NAME_BYTES_MAX: usize = 128;
    /// Most bytes of text in all segments, tools, the form and `continue_from` together.
    pub const TEXT_BYTES_MAX: usize = 16 << 20;
    /// Most bytes of a name (scene, model, class, network, mode).
    pub const NAME_BYTES_MAX: usize = 128;
    /// Most stop strings.
    pub const STOPS_MAX: usize = 16;
    /// Most bytes of one stop string; the engine has the same limit, so that a device and a cloud refuse the
    /// same strings.
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
    /// Time that a network adds to the time to the first token, in milliseconds.
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

/// Who wrote a segment of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The application, with instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool, with its result.
    Tool,
}

impl Role {
    /// Returns the role as written on the wire and in chat templates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One part of the prompt. Its end is a hard boundary of sentences: each segment is split into sentences
/// separately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Who wrote it.
    pub role: Role,
    /// The text.
    pub text: String,
    /// Sentences of it may be left out. The device decides this; the cloud never guesses.
    #[serde(default)]
    pub refine: bool,
    /// Calls that the model made at the end of this message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PastCall>,
    /// Id of the call whose result this message is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

impl Segment {
    /// Makes a segment that stays whole.
    pub fn fixed(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), refine: false, calls: Vec::new(), call_id: None }
    }

    /// Makes a segment whose sentences may be left out.
    pub fn refinable(role: Role, text: impl Into<String>) -> Self {
        Self { refine: true, ..Self::fixed(role, text) }
    }

    /// Returns whether it has calls or the result of one.
    pub fn is_about_tools(&self) -> bool {
        !self.calls.is_empty() || self.call_id.is_some()
    }

    /// Returns its text, and the names and arguments of its calls.
    pub fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        let called = self.calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
        std::iter::once(self.text.as_str()).chain(called)
    }

    fn text_bytes(&self) -> usize {
        let called: usize = self.calls.iter().map(PastCall::text_bytes).sum();
        self.text.len() + called + self.call_id.as_ref().map_or(0, String::len)
    }

    fn check(&self, at: usize) -> Result<(), RequestError> {
        let field = |name: &str| format!("segments[{at}].{name}");
        let form = |name: &str, want| Err(RequestError::Form { field: field(name), want });
        check_len(&field("calls"), self.calls.len(), limits::TOOLS_MAX)?;
        for (i, call) in self.calls.iter().enumerate() {
            call.check(&field(&format!("calls[{i}]")))?;
        }
        if !self.calls.is_empty() && (self.role != Role::Assistant || self.refine) {
            return form("calls", "in a message of the model that stays whole");
        }
        match &self.call_id {
            Some(_) if self.role != Role::Tool => form("call_id", "in the result of a tool"),
            Some(id) => check_name(&field("call_id"), id),
            None => Ok(()),
        }
    }
}

/// `POST /v1/assist`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssistRequest {
    /// Protocol version; must be [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Unique id of this request; the same id within a short time gives the same stream.
    pub request_id: Uuid,
    /// Scene id.
    pub scene: String,
    /// Scene version that the device has; `None` accepts the current version.
    #[serde(default)]
    pub scene_version: Option<u32>,
    /// Model name, or `default`.
    pub model: String,
    /// Digest of the device's tokenizer, 64 lower-case hex digits. Token ids are used only if it equals the
    /// cloud's.
    #[serde(default)]
    pub tokenizer_sha256: Option<String>,
    /// The prompt, in order.
    pub segments: Vec<Segment>,
    /// The tools that the answer may call. A cloud that knows them says so in its scenes
    /// ([`crate::SceneInfo::call_markup`]); others refuse the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolUse>,
    /// The form that the answer must have; refused by the same clouds.
    #[serde(default, skip_serializing_if = "AnswerFormat::is_text")]
    pub format: AnswerFormat,
    /// Text of this answer that was already accepted, if the cloud is to continue the answer.
    #[serde(default)]
    pub continue_from: Option<String>,
    /// Current state of the device; `None` lets the service use what it knows about similar devices.
    #[serde(default)]
    pub device: Option<DeviceInfo>,
    /// How the answer is sampled.
    #[serde(default)]
    pub sampling: Sampling,
    /// How the content is refined.
    #[serde(default)]
    pub refine: RefineOptions,
    /// Tokens that the cloud is to write (L); `None` takes the scene's setting or the optimizer's result.
    #[serde(default)]
    pub assist_tokens: Option<u32>,
    /// The device may resume the stream after a disconnect.
    #[serde(default)]
    pub resume: bool,
    /// The device will have the tokens checked that it writes itself. A cloud that can do so says it in its
    /// scenes ([`crate::SceneSettings::verify`]); others refuse the field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify: bool,
}

/// What the device reports about itself, for the optimizer. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceInfo {
    /// Kind of device, e.g. `phone`.
    pub class: String,
    /// Model on the device.
    pub model: String,
    /// Versions of the model and its adapter, if the device has them from the service's registry. A pair that
    /// the registry does not allow is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<ModelPair>,
    /// Prefill time per token (k_d); `None` takes the usual k_d and q_d of the device's class.
    #[serde(default)]
    pub prefill_ms_per_token: Option<f64>,
    /// Prefill time per squared token, from attention (q_d).
    #[serde(default)]
    pub prefill_ms_per_token2: f64,
    /// Time per output token (TPOT_d); `None` takes the usual value of the device's class.
    #[serde(default)]
    pub decode_ms: Option<f64>,
    /// Kind of network, e.g. `wifi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Name of the model whose keys and values the device can take in place of a prefill, 64 lower-case hex
    /// digits. It is sent only in scenes that offer them ([`crate::SceneSettings::kv`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<String>,
    /// Time that the network added to recent times to first token (median). It is the time that the device
    /// measured, less the time that the cloud reported for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
}

/// How the answer is sampled. Random numbers depend only on the seed and the token index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Samples only from this many most probable tokens.
    pub top_k: Option<u32>,
    /// Samples only from the most probable tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Samples only tokens whose probability is at least this share of the largest one.
    pub min_p: Option<f32>,
    /// Penalty on tokens that the answer already holds; 1 means no penalty.
    pub repetition_penalty: f32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Strings that end the answer; they are not part of it.
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

/// How the content is refined. For a `None`, the scene or the optimizer decides.
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
    /// The body is not JSON, misses a field, or has an unknown field or a value of the wrong type.
    #[error("{}{message}", json_place(field))]
    Json {
        /// Path of the field; `.` if the whole body is meant.
        field: String,
        /// The parser's message.
        message: String,
    },
    /// The body has too many values, or a field name that is too long.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The build does not speak this protocol version.
    #[error("field `protocol` is {got}, this service speaks {}", PROTOCOL_VERSION)]
    Protocol {
        /// What was sent.
        got: u32,
    },
    /// A text or list is too long.
    #[error("field `{field}` has length {len}, at most {max} are allowed")]
    TooLong {
        /// Path of the field.
        field: String,
        /// Its length, in bytes for a text, in items for a list.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A text or list is empty that must not be.
    #[error("field `{field}` is empty")]
    Empty {
        /// Path of the field.
        field: String,
    },
    /// A text does not have the required form.
    #[error("field `{field}` must be {want}")]
    Form {
        /// Path of the field.
        field: String,
        /// The required form.
        want: &'static str,
    },
}

impl RequestError {
    /// Returns the path of the field that caused the error; `.` for the whole body.
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

    /// Returns the body of the error answer.
    pub fn to_body(&self) -> ErrorBody {
        let code = match self {
            Self::Protocol { .. } => ErrorCode::UnsupportedProtocol,
            _ => ErrorCode::InvalidRequest,
        };
        let body = ErrorBody::new(code, self.to_string());
        if self.field() == "." { body } else { body.with_param(self.field()) }
    }
}

/// Returns the path of the field at which a parser stopped; `.` if it names none, e.g. because the text is
/// not JSON.
pub(crate) fn json_field<E>(err: &serde_path_to_error::Error<E>) -> String {
    let path = err.path().to_string();
    match path.trim_end_matches('?').trim_end_matches('.') {
        "" => ".".to_owned(),
        field => field.to_owned(),
    }
}

/// Returns the start of an error message about the field at `field`.
pub(crate) fn json_place(field: &str) -> String {
    if field == "." { "not the JSON that is wanted: ".to_owned() } else { format!("field `{field}`: ") }
}

impl AssistRequest {
    /// Reads and checks a request.
    ///
    /// Memory: the texts of `json` once, and a few MiB at most for everything else.
    ///
    /// # Errors
    /// [`RequestError`] names the field that caused it.
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        check_shape(json)?;
        let mut parser = serde_json::Deserializer::from_slice(json);
        let request: Self = serde_path_to_error::deserialize(&mut parser)
            .map_err(|e| RequestError::Json { field: cut(&json_field(&e)), message: cut(e.inner()) })?;
        parser.end().map_err(|e| RequestError::Json { field: ".".to_owned(), message: e.to_string() })?;
        request.check()?;
        Ok(request)
    }

    /// Checks what the types do not ensure: version, ranges, lengths.
    ///
    /// # Errors
    /// [`RequestError`] names the field that caused it.
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
        self.tools.as_ref().map_or(Ok(()), ToolUse::check)?;
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
        for (at, segment) in self.segments.iter().enumerate() {
            segment.check(at)?;
        }
        let mut texts = self.segments.iter().map(Segment::text_bytes).sum::<usize>();
        if texts == 0 {
            return Err(RequestError::Empty { field: "segments".to_owned() });
        }
        check_len("segments", texts, limits::TEXT_BYTES_MAX)?;
        texts += self.tools.as_ref().map_or(0, ToolUse::text_bytes);
        check_len("tools", texts, limits::TEXT_BYTES_MAX)?;
        texts += self.format.text_bytes();
        check_len("format", texts, limits::TEXT_BYTES_MAX)?;
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
        self.kv.as_ref().map_or(Ok(()), |name| check_sha256("device.kv", name))?;
        self.network.as_ref().map_or(Ok(()), |network| check_name("device.network", network))
    }
}

impl Sampling {
    /// Checks the ranges of all numbers and the lengths of the stop strings.
    ///
    /// # Errors
    /// [`RequestError`] names the field that caused it.
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

/// Returns the beginning of a parser's message, because it repeats texts of the request, which may be long.
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
    // The only error is a full buffer, and then the beginning is complete.
    let _ = fmt::write(&mut beginning, format_args!("{message}"));
    beginning.0
}

pub(crate) fn check_len(field: &str, len: usize, max: usize) -> Result<(), RequestError> {
    if len > max {
        return Err(RequestError::TooLong { field: field.to_owned(), len, max });
    }
    Ok(())
}

/// Checks that a name is not empty, not too long, and holds no control characters, because names appear in
/// logs.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), RequestError> {
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
