//! Chat templates: the Jinja text in a model file that lays out a conversation.
//!
//! A template is an untrusted program. It runs without I/O and clock, with a limit of steps and of recursion,
//! and with a budget for every byte that it makes or reads. It is parsed and run on a thread of its own with
//! a deep stack, and always returns text or a typed error. Never changes message text by itself; never reads
//! the time (`strftime_now` returns one fixed day).
//!
//! The language is Jinja2 as Hugging Face's `apply_chat_template` sets it up. It is a sandbox in which values
//! do not change. It has `trim_blocks`, `lstrip_blocks`, loop controls, the tag `generation`, and
//! `json.dumps` as `tojson`. It is parsed by minijinja ([`source`]). It is run here ([`run`]), not by
//! minijinja, for two reasons. Each byte of a text must keep its origin ([`text`]) while templates test and
//! cut it, so that no text of a conversation becomes a control token. Values must behave as Python's do
//! ([`value`]).

mod args;
mod budget;
mod filters;
mod format;
mod functions;
mod methods;
mod ops;
mod predicates;
mod run;
mod source;
mod strings;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod text;
mod value;
mod write;

use std::io;
use std::thread;

use minijinja::machinery::parse;
use serde_json::{Map, Value as Json, json};

use self::budget::{Budget, Outcome, Stop};
use self::run::Run;
use self::text::{Origin, Source, Text};
use self::value::Value;

/// The most bytes of a template's source.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Stack of the thread that parses and runs a template: large enough to walk and drop the deepest values and
/// expressions that the limits allow. The memory is reserved, not used.
const STACK_BYTES: usize = 128 << 20;

/// Why a template was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than [`SOURCE_BYTES_MAX`].
    #[error("chat template has {len} bytes, at most {max} are read")]
    SourceTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The source is not valid Jinja.
    #[error("parse chat template")]
    Parse(#[source] Box<minijinja::Error>),
    /// The source uses a construct that is not supported, or is too complex.
    #[error("chat template uses {what}, which is not supported")]
    Unsupported {
        /// The construct.
        what: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("chat template refuses the messages: {message}")]
    Raised {
        /// The template's message.
        message: String,
    },
    /// The template ran too many steps.
    #[error("chat template ran more than {max} steps")]
    OutOfFuel {
        /// The limit.
        max: u64,
    },
    /// The template made more bytes of text or values than its budget.
    #[error("chat template made more than its budget of {max} bytes")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// The template failed in another way (undefined names, wrong types, deep recursion).
    #[error("chat template fails on the messages: {message}")]
    Failed {
        /// What failed, as Python says it.
        message: String,
    },
    /// The template's thread could not be started.
    #[error("start the template's thread")]
    Thread(#[source] io::Error),
    /// The template's thread panicked: a bug of ours or of the template library.
    #[error("the template's thread panicked")]
    Panicked,
}

/// A message of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The speaker's role: `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// The text of the message.
    pub content: &'a str,
}

/// A conversation in the form that Hugging Face's templates expect. Messages are objects with `role` and
/// `content`, and optionally `tool_calls`, `tool_call_id`, `name` or `reasoning_content`. Tools are objects
/// with `type` and `function`. Arguments of calls are objects, not text.
#[derive(Debug, Clone, Copy)]
pub struct ToolChat<'a> {
    /// The messages, including calls and results.
    pub messages: &'a [Json],
    /// The tools that may be called; the template sees `none` if there are none.
    pub tools: &'a [Json],
    /// Further variables for the template, such as `enable_thinking`, if there are any.
    pub variables: Option<&'a Map<String, Json>>,
}

/// A message whose texts keep their origin.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'a> {
    /// The speaker's role.
    pub(crate) role: &'a str,
    /// The pieces of its text, each with its index among the texts whose tokens are wanted.
    pub(crate) content: Vec<(Option<usize>, &'a str)>,
    /// Further fields.
    pub(crate) fields: Option<&'a Map<String, Json>>,
}

/// A checked chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// The source as the parser reads it.
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Parses and checks a template; it sees `bos` and `eos` as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// If the source is too long, is not Jinja, or uses an unsupported construct.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, TemplateError> {
        let (len, max) = (source.len(), SOURCE_BYTES_MAX);
        if len > max {
            return Err(TemplateError::SourceTooLong { len, max });
        }
        let source = on_deep_stack(|| {
            let prepared = source::prepared(source)?;
            source::check(&parsed(&prepared)?)?;
            Ok(prepared)
        })?;
        Ok(ChatTemplate { source, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Lays out a conversation; with `add_generation_prompt`, up to the beginning of the answer.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or exceeds one of its limits.
    pub fn render(
        &self,
        messages: &[Message<'_>],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let entry = |message: &Message<'_>| json!({ "role": message.role, "content": message.content });
        let messages: Vec<Json> = messages.iter().map(entry).collect();
        let chat = ToolChat { messages: &messages, tools: &[], variables: None };
        self.render_with_tools(chat, add_generation_prompt)
    }

    /// Lays out a conversation with tools; with `add_generation_prompt`, up to the beginning of the answer.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_with_tools(
        &self,
        chat: ToolChat<'_>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let bytes = chat.messages.iter().map(json_bytes).sum();
        let messages = |budget: &Budget| from_list(chat.messages, budget);
        let size = InputSize { messages: chat.messages.len(), bytes };
        let text = self.run(size, messages, Some(chat.tools), chat.variables, add_generation_prompt)?;
        Ok(text.as_str().to_owned())
    }

    /// Lays out a conversation up to the beginning of the answer; every byte keeps its origin.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub(crate) fn lay_out(
        &self,
        messages: &[Entry<'_>],
        tools: &[Json],
        variables: Option<&Map<String, Json>>,
    ) -> Result<Text, TemplateError> {
        let fields =
            |entry: &Entry<'_>| entry.fields.map_or(0, |fields| fields.values().map(json_bytes).sum());
        let texts = |entry: &Entry<'_>| entry.content.iter().map(|(_, text)| text.len()).sum::<usize>();
        let bytes = messages.iter().map(|entry| texts(entry) + fields(entry)).sum();
        let size = InputSize { messages: messages.len(), bytes };
        let values = |budget: &Budget| {
            let values = messages.iter().map(|entry| from_entry(entry, budget));
            Value::list(values.collect::<Outcome<_>>()?, budget)
        };
        match self.run(size, values, Some(tools), variables, true) {
            // Some templates loop over `tools` and fail if it is none; without the name there is no loop.
            Err(TemplateError::Failed { .. }) if tools.is_empty() => {
                self.run(size, values, None, variables, true)
            }
            laid_out => laid_out,
        }
    }

    fn run(
        &self,
        size: InputSize,
        messages: impl FnOnce(&Budget) -> Outcome<Value> + Send,
        given_tools: Option<&[Json]>,
        variables: Option<&Map<String, Json>>,
        add_generation_prompt: bool,
    ) -> Result<Text, TemplateError> {
        let tools = given_tools.unwrap_or_default();
        let bytes = size.bytes + tools.iter().map(json_bytes).sum::<usize>();
        on_deep_stack(|| {
            let template = parsed(&self.source)?;
            let budget = Budget::new(size.messages + tools.len(), bytes);
            let lay_out = || {
                let mut values = Vec::new();
                for (name, value) in variables.into_iter().flatten() {
                    values.push((name.as_str(), from_json(value, &budget)?));
                }
                let tools = if tools.is_empty() { Value::None } else { from_list(tools, &budget)? };
                values.push(("messages", messages(&budget)?));
                values.push(("add_generation_prompt", Value::Bool(add_generation_prompt)));
                values.push(("bos_token", Value::text(self.bos.as_str())));
                values.push(("eos_token", Value::text(self.eos.as_str())));
                values.extend(given_tools.map(|_| ("tools", tools)));
                values.push(("documents", Value::None));
                Run::new(&budget, values).template(&template)
            };
            lay_out().map_err(|stop| match stop {
                Stop::Raised(message) => TemplateError::Raised { message },
                Stop::Steps => TemplateError::OutOfFuel { max: budget.steps_max },
                Stop::Bytes => TemplateError::TooLarge { max: budget.bytes_max },
                Stop::Failed(message) => TemplateError::Failed { message },
            })
        })
    }

    /// Whether the template's source contains this text. It shows which form of tool calls a model was
    /// trained on.
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }
}

/// Parses or renders on a thread with a deep stack, so that deep values cannot overflow it.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        let handle = builder.spawn_scoped(scope, work).map_err(TemplateError::Thread)?;
        handle.join().unwrap_or(Err(TemplateError::Panicked))
    })
}

/// The size of a conversation, for its limits.
#[derive(Debug, Clone, Copy)]
struct InputSize {
    messages: usize,
    bytes: usize,
}

fn parsed(source: &str) -> Result<minijinja::machinery::ast::Stmt<'_>, TemplateError> {
    parse(source, "chat_template", source::syntax()).map_err(|err| TemplateError::Parse(Box::new(err)))
}

fn json_bytes(json: &Json) -> usize {
    json.to_string().len()
}

fn from_list(list: &[Json], budget: &Budget) -> Outcome<Value> {
    Value::list(list.iter().map(|json| from_json(json, budget)).collect::<Outcome<_>>()?, budget)
}

/// Converts a JSON value of the conversation, with its fields in their order.
fn from_json(json: &Json, budget: &Budget) -> Outcome<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number.into()),
            (None, Some(number)) => Value::Int(number.into()),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::made(Text::input(text)),
        Json::Array(items) => from_list(items, budget)?,
        Json::Object(fields) => {
            let entry = |(name, value): (&String, &Json)| {
                Ok((Value::made(Text::input(name)), from_json(value, budget)?))
            };
            Value::map(fields.iter().map(entry).collect::<Outcome<_>>()?, budget)?
        }
    })
}

/// Converts a message; its texts keep their index, its role is a name.
fn from_entry(entry: &Entry<'_>, budget: &Budget) -> Outcome<Value> {
    let mut content = Text::default();
    for &(index, text) in &entry.content {
        let source = index.map(|index| Source { index, start: 0, len: text.len() });
        content.push(text, Origin::Input(source));
    }
    let mut fields =
        vec![(Value::text("role"), Value::text(entry.role)), (Value::text("content"), Value::made(content))];
    for (name, value) in entry.fields.into_iter().flatten() {
        fields.push((Value::text(name.as_str()), from_json(value, budget)?));
    }
    Value::map(fields, budget)
}
