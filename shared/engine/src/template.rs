//! Chat templates: the Jinja text in a model file that lays out a conversation.
//!
//! A template is an untrusted program. It runs without I/O and clock, with a limit of steps (fuel) and of
//! recursion, and with a budget for every byte that it makes. It is parsed and run on a thread of its own
//! with a deep stack, and always returns text or a typed error. Never changes message text by itself; never
//! reads the time (`strftime_now` returns one fixed day).
//!
//! The budget is enforced by writing the parsed template out again ([`rewrite`]). Every operator, filter and
//! slice that can make a value grow, or that walks through a whole value in one step, is replaced by a
//! counting one. Called functions are counted too ([`runtime`], [`counted`]). The language is minijinja with
//! the settings of Hugging Face's `apply_chat_template` (`trim_blocks`, `lstrip_blocks`) and the Python
//! methods that real templates use.

mod counted;
mod lint;
mod methods;
mod rewrite;
mod runtime;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::thread;

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
        what: &'static str,
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
    #[error("render chat template")]
    Render(#[source] Box<minijinja::Error>),
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

/// A conversation with tools, in the form that Hugging Face's templates expect. Messages are objects with
/// `role` and `content`, and optionally `tool_calls`, `tool_call_id` or `name`. Tools are objects with `type`
/// and `function`. Arguments of calls are objects, not text.
#[derive(Debug, Clone, Copy)]
pub struct ToolChat<'a> {
    /// The messages, including calls and results.
    pub messages: &'a [serde_json::Value],
    /// The tools that may be called; the template sees `none` if there are none.
    pub tools: &'a [serde_json::Value],
}

/// A checked chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// The rewritten source.
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
            lint::check(source)?;
            let rewritten = rewrite::bounded(source)?;
            runtime::check(&rewritten)?;
            Ok(rewritten)
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
        on_deep_stack(|| runtime::render(self, messages, add_generation_prompt))
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
        on_deep_stack(|| runtime::render_with_tools(self, chat, add_generation_prompt))
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
