//! Prompts that only the model on this device takes: texts to continue, tools, and forms of answers.

use super::{Agent, AgentError};
use crate::local::{OnceForm, OwnPrompt};
use baton_constrain::tools::{ToolForm, prompt};
use baton_constrain::{ConstraintError, Grammars, constraint};
use baton_engine::prompt::{PromptError, verbatim};
use baton_engine::tokenizer::Tokenizer;
use baton_openai::tools::Markup;
use baton_openai::{AnswerFormat, ChatMessage, ToolUse};
use baton_terminal::chain;

impl Agent {
    /// Makes the prompt of a text that is continued as it is.
    ///
    /// # Errors
    /// [`AgentError::NoDeviceForText`] if there is no model on this device; [`AgentError::Prompt`] if the
    /// text has no tokens.
    pub fn text_prompt(&self, text: &str) -> Result<OwnPrompt, AgentError> {
        let device = self.device.as_ref().ok_or(AgentError::NoDeviceForText)?;
        let ids = verbatim(device.model.tokenizer(), text).map_err(|err| refused(&err))?;
        Ok(OwnPrompt { ids: ids.into(), form: None, is_chat: false })
    }

    /// Makes the prompt of a conversation with tools, or with a form for its answer. Returns `None` for any
    /// other conversation: a cloud may help to answer it.
    ///
    /// # Errors
    /// [`AgentError::NoDevice`] if there is no model on this device, [`AgentError::Prompt`] if its template
    /// refuses the messages, and [`AgentError::Form`] if no answer can have the form.
    pub fn tool_prompt(
        &self,
        messages: &[ChatMessage],
        tools: Option<&ToolUse>,
        format: &AnswerFormat,
    ) -> Result<Option<OwnPrompt>, AgentError> {
        let is_plain = *format == AnswerFormat::Text && !messages.iter().any(ChatMessage::is_about_tools);
        if is_plain && tools.is_none() {
            return Ok(None);
        }
        let device = self.device.as_ref().ok_or(AgentError::NoDevice)?;
        let (tokenizer, template) = (device.model.tokenizer(), device.model.template());
        let markup = ToolForm::of(template).markup;
        let constraint = constraint(|| self.grammars(tokenizer), markup, tools, format)?;
        let offered = tools.map_or(&[][..], |tools| &tools.tools);
        let ids = prompt(tokenizer, template, messages, offered).map_err(|err| refused(&err))?;
        Ok(Some(OwnPrompt { ids: ids.into(), form: constraint.map(OnceForm::new), is_chat: true }))
    }

    /// Returns how the device's model writes calls, if there is a model.
    pub fn call_markup(&self) -> Option<Markup> {
        self.device.as_ref().map(|device| ToolForm::of(device.model.template()).markup)
    }

    /// Returns the compiler of forms for the device's model; made when the first form is asked for.
    fn grammars(&self, tokenizer: &Tokenizer) -> Result<&Grammars, ConstraintError> {
        self.grammars.get_or_init(|| Grammars::new(tokenizer)).as_ref().map_err(Clone::clone)
    }
}

fn refused(err: &PromptError) -> AgentError {
    AgentError::Prompt(chain(err))
}
