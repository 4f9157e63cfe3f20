//! What is known of a prompt before it is answered.

use super::{Agent, AgentError, Question};
use crate::local::assembled;
use baton_generate::thinking::begins_in_thinking;

impl Agent {
    /// Returns the number of the prompt's tokens, by the tokenizer and the template of the device's model.
    ///
    /// # Errors
    /// [`AgentError::NoDevice`] if there is no model, and [`AgentError::Prompt`] if its template refuses the
    /// prompt.
    pub fn prompt_tokens(&self, question: &Question) -> Result<usize, AgentError> {
        let device = self.device.as_ref().ok_or(AgentError::NoDevice)?;
        if let Some(own) = &question.own {
            return Ok(own.ids.len());
        }
        let offered = question.tools.as_ref().map_or(&[][..], |tools| &tools.tools);
        let prompt = assembled(&device.model, &question.segments, offered).map_err(AgentError::Prompt)?;
        Ok(prompt.ids.len())
    }

    /// Returns whether the template of the device's model begins answers inside their thinking.
    pub fn begins_in_thinking(&self) -> bool {
        self.device.as_ref().is_some_and(|device| begins_in_thinking(device.model.template()))
    }

    /// Returns the tokens of prompt and answer together that the device has room for, if it has a model.
    pub fn context_tokens(&self) -> Option<usize> {
        self.device.as_ref().map(|device| device.worker.context_tokens())
    }
}
