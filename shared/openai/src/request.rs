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
use baton_protocol::{NumberRange, Role, Sampling, check_shape, limits};
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

pub(crate) use self::messages::checked as checked_messages;
pub(crate) use self::parts::{Unreadable, is_last_turn, kind_of, text_of, text_of_part};
pub use self::text::parse_text;
pub(crate) use self::unsupported::NO_TOOLS;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::tools::{ChatMessage, ToolChoice, ToolUse};
use crate::wire::{BatonBody, ChatCompletionRequest, Stop};

/// Name for the first model that a program serves.
pub const MODEL_DEFAULT: &str = "default";
/// OpenAI's range of temperatures.
pub(crate) const TEMPERATURE: NumberRange = NumberRange::new(0.0, 2.0);
/// OpenAI's range of both penalties.
pub(crate) const PENALTY: NumberRange = NumberRange::new(-2.0, 2.0);
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
        /// What follows the continuation; not empty.
        suffix: Option<String>,
        /// Whether the reply begins with the text.
        echo: bool,
    },
}

/// Why a text that follows is refused.
pub const NO_INFILL: &str = "the vocabulary of this model has no tokens for a text that follows";
/// The texts of tokens before a text, before what follows it, and before what is written between them: of
/// Qwen, StarCoder and Granite, SantaCoder, DeepSeek, GLM.
const INFILL: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];

impl Prompt {
    /// Lays out a text and what follows it by the tokens that a model has for this. Returns false if it has
    /// none; `is_token` says whether a text is one token of its vocabulary.
    pub fn fill_in(&mut self, is_token: impl Fn(&str) -> bool) -> bool {
        let Prompt::Text { text, suffix, .. } = self else { return true };
        let Some(after) = suffix.take() else { return true };
        let known = INFILL.into_iter().find(|tokens| tokens.iter().all(|token| is_token(token)));
        let Some([before, behind, between]) = known else { return false };
        *text = format!("{before}{text}{behind}{after}{between}");
        true
    }

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
    /// The beginning of the answer, which the client wrote. The reply has what comes behind it.
    pub begun: Option<String>,
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
    let continues = wire.continue_final_message == Some(true);
    let mut request = options(wire, Prompt::Chat(messages), can, ignored)?;
    if continues && !request.continue_last()? {
        let message = "needs a last message of the assistant, without calls";
        return Err(FieldError::new("continue_final_message", message));
    }
    Ok(request)
}

impl ChatRequest {
    /// Makes the last message the beginning of the answer, if the assistant said it. Returns whether it is.
    ///
    /// # Errors
    /// [`FieldError`] if the answer must have a form, which a beginning may not have.
    pub(crate) fn continue_last(&mut self) -> Result<bool, FieldError> {
        let Prompt::Chat(messages) = &mut self.prompt else { return Ok(false) };
        let is_begun = |last: &mut ChatMessage| {
            last.role == Role::Assistant && last.calls.is_empty() && !last.is_empty()
        };
        if messages.len() < 2 {
            return Ok(false);
        }
        let Some(last) = messages.pop_if(is_begun) else { return Ok(false) };
        let must_call = self.tools.as_ref().is_some_and(|tools| tools.choice != ToolChoice::Auto);
        if must_call || !self.format.is_text() {
            let message = "the last message is the assistant's: an answer that must have a form, or call a tool, \
                cannot continue it";
            return Err(FieldError::new("messages", message));
        }
        self.begun = Some(last.text);
        Ok(true)
    }
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
    let wire = serde_ignored::deserialize(tracked, |path| ignored.add_path("", &path));
    let wire = wire.map_err(|err| unreadable(&track.path().to_string(), &err))?;
    parser.end().map_err(|err| unreadable(".", &err))?;
    Ok((wire, ignored.without_null(json)?))
}

/// Reads a part of a request whose type is known by now. Its fields that are null ask for nothing; those that
/// are passed over are named. `place` is its path in the request.
pub(crate) fn typed<T: DeserializeOwned>(
    place: &str,
    mut value: Value,
    ignored: &mut Ignored,
) -> Result<T, FieldError> {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| ignored.add_path(place, &path));
    read.map_err(|err: serde_json::Error| match track.path().to_string().as_str() {
        "." | "?" => unreadable(place, &err),
        path => unreadable(&format!("{place}.{path}"), &err),
    })
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
        frequency: within("frequency_penalty", wire.frequency_penalty, PENALTY)?.unwrap_or(0.0),
        presence: within("presence_penalty", wire.presence_penalty, PENALTY)?.unwrap_or(0.0),
    };
    let max_tokens = max_tokens(&wire, can)?;
    let top_logprobs = wire.top_logprobs.and_then(|top| usize::try_from(top).ok());
    let logprobs = (wire.logprobs == Some(true)).then(|| top_logprobs.unwrap_or(0));
    let tools = tools::tool_use(wire.tools, wire.tool_choice, wire.parallel_tool_calls, &mut ignored)?;
    let format = tools::format(wire.response_format)?;
    let request = ChatRequest {
        model,
        prompt,
        begun: None,
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

fn within(field: &str, value: Option<f64>, range: NumberRange) -> Result<Option<f32>, FieldError> {
    match value {
        Some(value) if !(range.min..=range.max).contains(&value) => {
            Err(FieldError::new(field, format!("is {value}, must be {} to {}", range.min, range.max)))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Reads the sampling parameters. OpenAI's fields have OpenAI's ranges; our own fields and stop strings have
/// the protocol's.
fn sampling(wire: &ChatCompletionRequest) -> Result<Sampling, FieldError> {
    let mut stop = match &wire.stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop.clone()],
        Some(Stop::Many(stops)) => stops.clone(),
    };
    // An empty one asks for nothing.
    stop.retain(|stop| !stop.is_empty());
    let top_k_max = limits::TOP_K.max as u32;
    let top_k = |count: i64| u32::try_from(count).map_or(top_k_max, |count| count.min(top_k_max));
    let sampling = Sampling {
        temperature: within("temperature", wire.temperature, TEMPERATURE)?.unwrap_or(1.0),
        // Below 1 it leaves nothing out, nor if it is more than any vocabulary has.
        top_k: wire.top_k.filter(|&count| count > 0).map(top_k),
        top_p: within("top_p", wire.top_p, limits::TOP_P)?,
        min_p: within("min_p", wire.min_p, limits::MIN_P)?,
        repetition_penalty: within(
            "repetition_penalty",
            wire.repetition_penalty,
            limits::REPETITION_PENALTY,
        )?
        .unwrap_or(1.0),
        seed: wire.seed.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed as u64),
        stop,
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
