//! A request of the chat or text completion API, read and checked.
//!
//! Always: a field whose silent loss would give a wrong answer is refused by name; any other field is taken,
//! and named if it has no effect ([`crate::ignored`]). A value that asks for nothing (null, an empty list, a
//! penalty of 0) is accepted. Ranges and defaults are OpenAI's: the temperature is 1, and each answer is
//! different unless a seed is set.

mod messages;
mod parts;
mod text;
mod tools;
mod unsupported;

#[cfg(test)]
mod tests;

pub use baton_protocol::AnswerFormat;
use baton_protocol::{Sampling, check_shape};
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub(crate) use self::messages::checked as checked_messages;
pub(crate) use self::parts::{Unreadable, is_last_turn};
pub use self::text::parse_text;
pub(crate) use self::unsupported::NO_TOOLS;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::tools::{ChatMessage, ToolUse};
use crate::wire::{BatonBody, ChatCompletionRequest, Stop};

/// Name for the first model that a program serves.
pub const MODEL_DEFAULT: &str = "default";
/// The most characters of the client's own text that an error repeats.
const WORDS_MAX: usize = 200;

/// What an answer follows.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation, which the model's template lays out: at least one message, and not all of them empty.
    Chat(Vec<ChatMessage>),
    /// A text that is continued as it is.
    Text {
        /// The text.
        text: String,
        /// Whether the reply begins with the text.
        echo: bool,
    },
}

impl Prompt {
    /// Returns the messages; none if it is a text.
    pub fn messages(&self) -> &[ChatMessage] {
        match self {
            Prompt::Chat(messages) => messages,
            Prompt::Text { .. } => &[],
        }
    }

    /// Returns the messages; none if it is a text.
    pub(crate) fn into_messages(self) -> Vec<ChatMessage> {
        match self {
            Prompt::Chat(messages) => messages,
            Prompt::Text { .. } => Vec::new(),
        }
    }
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// Name of the model, or [`MODEL_DEFAULT`].
    pub model: String,
    /// What the answer follows.
    pub prompt: Prompt,
    /// Whether the answer is streamed while it is written.
    pub stream: bool,
    /// Whether a stream ends with a chunk that has the token counts.
    pub include_usage: bool,
    /// Whether chunks report the progress of the prompt until the first token.
    pub include_progress: bool,
    /// How the answer is sampled, and its stop strings.
    pub sampling: Sampling,
    /// Penalties for tokens that the answer already contains.
    pub penalties: Penalties,
    /// The most tokens of the answer, or `None` for as many as fit into the context.
    pub max_tokens: Option<usize>,
    /// The form that the answer must have.
    pub format: AnswerFormat,
    /// The tools that the answer may call, if any.
    pub tools: Option<ToolUse>,
    /// If set, log probabilities are sent, each with this many of the most probable tokens.
    pub logprobs: Option<usize>,
    /// Whether a prompt that does not fit is shortened.
    pub shorten: bool,
    /// Whether the answer cites sentences of the messages.
    pub citations: bool,
    /// The field `baton`: assistance by a scene.
    pub baton: Option<BatonBody>,
    /// Fields that were taken and have no effect.
    pub ignored: Ignored,
}

/// OpenAI's penalties: values from -2 to 2 that are subtracted from logits; 0 changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Penalties {
    /// Subtracted once for each time that the answer contains the token.
    pub frequency: f32,
    /// Subtracted once if the answer contains the token.
    pub presence: f32,
}

/// Reads and checks a request.
///
/// Memory: one copy of the texts in `json`, and at most a few MiB for everything else.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn parse(json: &[u8], can: &Capabilities) -> Result<ChatRequest, FieldError> {
    let (mut wire, mut ignored) = parsed::<ChatCompletionRequest>(json)?;
    unsupported::settle(&mut wire, can, &mut ignored)?;
    let messages = messages::read(std::mem::take(&mut wire.messages), can, &mut ignored)?;
    options(wire, Prompt::Chat(messages), can, ignored)
}

/// Checks a request of another dialect that was translated, and then its prompt. `field` gives a field's name
/// in that dialect; `ignored` has names of that dialect.
pub(crate) fn translated(
    mut wire: ChatCompletionRequest,
    can: &Capabilities,
    mut ignored: Ignored,
    field: fn(&str) -> String,
    prompt: impl FnOnce(&mut Ignored) -> Result<Prompt, FieldError>,
) -> Result<ChatRequest, FieldError> {
    let mut common = Ignored::default();
    unsupported::settle(&mut wire, can, &mut common).map_err(|err| err.renamed(field))?;
    let prompt = prompt(&mut ignored).map_err(|err| err.renamed(field))?;
    let mut request = options(wire, prompt, can, common).map_err(|err| err.renamed(field))?;
    ignored.extend(std::mem::take(&mut request.ignored), field);
    Ok(ChatRequest { ignored, ..request })
}

/// Parses a request and checks the types of its fields. Returns the fields that were passed over, too.
pub(crate) fn parsed<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Ignored), FieldError> {
    // Checked before parsing, because small values take many times their length in memory.
    check_shape(json).map_err(|err| FieldError::whole(err.to_string()))?;
    // A list would be read as the fields in their order.
    if json.trim_ascii_start().first() == Some(&b'[') {
        return Err(FieldError::whole("the body is not a request: it is a list"));
    }
    let mut parser = serde_json::Deserializer::from_slice(json);
    let mut track = serde_path_to_error::Track::new();
    let mut ignored = Ignored::default();
    let tracked = serde_path_to_error::Deserializer::new(&mut parser, &mut track);
    let wire = serde_ignored::deserialize(tracked, |path| ignored.add_path(&path));
    let wire = wire.map_err(|err| unreadable(&track.path().to_string(), &err))?;
    parser.end().map_err(|err| unreadable(".", &err))?;
    Ok((wire, ignored.without_null(json)?))
}

/// Reads everything but the prompt.
fn options(
    mut wire: ChatCompletionRequest,
    prompt: Prompt,
    can: &Capabilities,
    mut ignored: Ignored,
) -> Result<ChatRequest, FieldError> {
    let options = wire.stream_options.take();
    let include_usage = options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let include_progress = options.and_then(|options| options.include_progress).unwrap_or(false);
    let model = model(wire.model.take(), can)?;
    let sampling = sampling(&wire)?;
    let penalties = Penalties {
        frequency: within("frequency_penalty", wire.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0),
        presence: within("presence_penalty", wire.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0),
    };
    let max_tokens = max_tokens(&wire, can)?;
    let top_logprobs = wire.top_logprobs.and_then(|top| usize::try_from(top).ok());
    let logprobs = (wire.logprobs == Some(true)).then(|| top_logprobs.unwrap_or(0));
    let tools = tools::tool_use(wire.tools, wire.tool_choice, wire.parallel_tool_calls, &mut ignored)?;
    let format = tools::format(wire.response_format)?;
    let request = ChatRequest {
        model,
        prompt,
        stream: wire.stream.unwrap_or(false),
        include_usage,
        include_progress,
        sampling,
        penalties,
        max_tokens,
        format,
        tools,
        logprobs,
        shorten: wire.truncation.as_deref() == Some("auto"),
        citations: wire.citations == Some(true),
        baton: wire.baton,
        ignored,
    };
    request.check_baton()?;
    Ok(request)
}

/// Makes the error for a body that is not JSON, or for a field that is unknown, missing or of the wrong type.
/// For an unknown or missing field the parser gives the path of the object around it. The client needs the
/// field's name.
fn unreadable(path: &str, err: &serde_json::Error) -> FieldError {
    let words = short(&err.to_string());
    if err.is_syntax() || err.is_eof() || err.is_io() {
        return FieldError::whole(format!("the body is not JSON: {words}"));
    }
    for (said, message) in [("unknown field `", "is not supported"), ("missing field `", "is missing")] {
        if let Some(name) = words.strip_prefix(said).and_then(|rest| rest.split('`').next()) {
            return FieldError::new(joined(path, name), message);
        }
    }
    match path {
        "." | "?" => FieldError::whole(format!("the body is not a request: {words}")),
        path => FieldError::new(short(path), words),
    }
}

/// Joins a path and a field name, unless the path ends with the name already.
fn joined(path: &str, name: &str) -> String {
    match path {
        "." | "?" => name.to_owned(),
        path if path == name || path.ends_with(&format!(".{name}")) => short(path),
        path => short(&format!("{path}.{name}")),
    }
}

fn short(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect()
}

fn model(asked: Option<String>, can: &Capabilities) -> Result<String, FieldError> {
    match asked.filter(|name| !name.is_empty()) {
        Some(name) => Ok(name),
        None if can.model_required => Err(FieldError::new("model", "is missing")),
        None => Ok(MODEL_DEFAULT.to_owned()),
    }
}

fn within(field: &str, value: Option<f64>, min: f64, max: f64) -> Result<Option<f32>, FieldError> {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(FieldError::new(field, format!("is {value}, must be {min} to {max}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Reads the sampling parameters. OpenAI's fields have OpenAI's ranges; our own fields and stop strings have
/// the protocol's.
fn sampling(wire: &ChatCompletionRequest) -> Result<Sampling, FieldError> {
    let sampling = Sampling {
        temperature: within("temperature", wire.temperature, 0.0, 2.0)?.unwrap_or(1.0),
        // Below 1 it leaves nothing out; too many are refused by their range.
        top_k: wire.top_k.filter(|&count| count > 0).map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
        top_p: within("top_p", wire.top_p, 0.0, 1.0)?,
        min_p: within("min_p", wire.min_p, 0.0, 1.0)?,
        repetition_penalty: within("repetition_penalty", wire.repetition_penalty, 0.1, 10.0)?.unwrap_or(1.0),
        seed: wire.seed.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed as u64),
        stop: match &wire.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        },
    };
    sampling.check()?;
    Ok(sampling)
}

/// Returns the limit of tokens: the smaller value of its two fields, and at most what the program allows.
fn max_tokens(wire: &ChatCompletionRequest, can: &Capabilities) -> Result<Option<usize>, FieldError> {
    let limits = [("max_tokens", wire.max_tokens), ("max_completion_tokens", wire.max_completion_tokens)];
    if let Some((field, _)) = limits.iter().find(|(_, value)| *value == Some(0)) {
        return Err(FieldError::new(*field, "is 0, must be at least 1, or -1 for as many as fit"));
    }
    let tokens = |value: i64| u64::try_from(value).unwrap_or(u64::MAX);
    let asked = limits.into_iter().filter_map(|(_, value)| value).map(tokens).min();
    let asked = asked.map(|tokens| tokens.min(can.tokens_max.unwrap_or(u64::MAX)));
    Ok(asked.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)).or(can.tokens_default))
}
