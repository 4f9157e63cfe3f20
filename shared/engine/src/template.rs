//! Chat templates: the Jinja text of a model file that lays out a conversation.
//!
//! A template is somebody else's program, so it runs with no I/O, no clock, bounded steps (fuel),
//! bounded recursion, and a budget for every byte that it makes; it is parsed and run on a thread of
//! its own with a deep stack, and whatever it does comes back as text or as a typed error. Never
//! changes message text by itself; never reads the time (`strftime_now` answers one fixed day).
//!
//! How the budget holds: the parsed template is written out again with every operator, filter and slice
//! that can make a value grow, and all that walks through a whole value in one step, replaced by a counting
//! one ([`rewrite`]); what it calls is counted too ([`runtime`], [`counted`]). Language: minijinja with the settings of Hugging Face's `apply_chat_template`
//! (`trim_blocks`, `lstrip_blocks`) and the Python methods that real templates use.

mod counted;
mod lint;
mod methods;
mod rewrite;
mod runtime;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::thread;

/// Most bytes of a template's source.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Stack of the thread that parses and runs a template: lets the deepest values and expressions that
/// the limits allow be walked and dropped. Reserved, not used, memory.
const STACK_BYTES: usize = 128 << 20;

/// Why a template was refused or gave no text.
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
    /// The source uses something that templates of one file cannot, or is too complex.
    #[error("chat template uses {what}, which is not supported")]
    Unsupported {
        /// The construct.
        what: &'static str,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("chat template refuses the messages: {message}")]
    Raised {
        /// What the template says.
        message: String,
    },
    /// The template ran too many steps.
    #[error("chat template ran more than {max} steps")]
    OutOfFuel {
        /// The limit.
        max: u64,
    },
    /// The template made more text or values than its budget.
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
    /// The template's thread ended by a panic: a fault of ours or of the template library.
    #[error("the template's thread panicked")]
    Panicked,
}

/// A message of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who speaks: `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// What is said.
    pub content: &'a str,
}

/// A conversation with tools, in the shape that Hugging Face's templates expect: messages are objects
/// with `role` and `content`, and `tool_calls`, `tool_call_id` or `name` where they have them; tools are
/// objects with `type` and `function`. Arguments of calls are objects, not text.
#[derive(Debug, Clone, Copy)]
pub struct ToolChat<'a> {
    /// What was said and called.
    pub messages: &'a [serde_json::Value],
    /// What may be called; the template sees `none` where there is nothing.
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
    /// Parses and checks a template; `bos` and `eos` are the texts it knows as `bos_token` and
    /// `eos_token`.
    ///
    /// # Errors
    /// The source is too long, not Jinja, or uses what is not supported.
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

    /// Lays out a conversation; with `add_generation_prompt`, up to where the model goes on.
    ///
    /// # Errors
    /// The template refuses the messages, fails, or runs into one of its limits.
    pub fn render(
        &self,
        messages: &[Message<'_>],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        on_deep_stack(|| runtime::render(self, messages, add_generation_prompt))
    }

    /// Lays out a conversation with tools; with `add_generation_prompt`, up to where the model goes on.
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

    /// Whether the template's source has this text: how one recognizes which form of tool calls a model
    /// was trained on.
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }
}

/// Runs parsing or rendering on a thread with a deep stack, so that deep values cannot overflow it.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        let handle = builder.spawn_scoped(scope, work).map_err(TemplateError::Thread)?;
        handle.join().unwrap_or(Err(TemplateError::Panicked))
    })
}
