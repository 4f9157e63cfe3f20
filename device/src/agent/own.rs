//! Prompts that end in a text that is continued: only a model on this device does that.

use super::{Agent, AgentError};
use crate::local::assembled;
use baton_engine::prompt::verbatim;
use baton_engine::tokenizer::TokenId;
use baton_generate::thinking::begun_answer;
use baton_protocol::{Segment, Tool};
use baton_terminal::chain;
use std::sync::Arc;

/// A prompt that ends in a text that is continued.
#[derive(Debug, Clone)]
pub struct OwnPrompt {
    /// All tokens.
    pub ids: Arc<[TokenId]>,
    /// Whether the template laid out the conversation before the text, so that the end of a turn ends the
    /// answer.
    pub is_chat: bool,
}

impl Agent {
    /// Makes the prompt of a text that is continued as it is.
    ///
    /// # Errors
    /// [`AgentError::NoDeviceForText`] if there is no model on this device; [`AgentError::Prompt`] if the
    /// text has no tokens.
    pub fn text_prompt(&self, text: &str) -> Result<OwnPrompt, AgentError> {
        let device = self.device.as_ref().ok_or(AgentError::NoDeviceForText)?;
        let ids = verbatim(device.model.tokenizer(), text).map_err(|err| AgentError::Prompt(chain(&err)))?;
        Ok(OwnPrompt { ids: ids.into(), is_chat: false })
    }

    /// Makes the prompt of a conversation whose answer begins with a text.
    ///
    /// # Errors
    /// [`AgentError::NoDeviceForText`] if there is no model on this device; [`AgentError::Prompt`] if its
    /// template refuses the conversation.
    pub fn begun_prompt(
        &self,
        segments: &[Segment],
        offered: &[Tool],
        begun: &str,
    ) -> Result<OwnPrompt, AgentError> {
        let model = &self.device.as_ref().ok_or(AgentError::NoDeviceForText)?.model;
        let mut ids = assembled(model, segments, offered).map_err(AgentError::Prompt)?.ids;
        ids.extend(begun_answer(model.tokenizer(), model.template(), begun));
        Ok(OwnPrompt { ids: ids.into(), is_chat: true })
    }
}
