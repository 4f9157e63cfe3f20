//! Texts that are continued as they are: only a model on this device does that.

use super::{Agent, AgentError};
use baton_engine::prompt::verbatim;
use baton_engine::tokenizer::TokenId;
use baton_terminal::chain;
use std::sync::Arc;

impl Agent {
    /// Makes the prompt of a text that is continued as it is.
    ///
    /// # Errors
    /// [`AgentError::NoDeviceForText`] if there is no model on this device; [`AgentError::Prompt`] if the
    /// text has no tokens.
    pub fn text_prompt(&self, text: &str) -> Result<Arc<[TokenId]>, AgentError> {
        let device = self.device.as_ref().ok_or(AgentError::NoDeviceForText)?;
        let ids = verbatim(device.model.tokenizer(), text).map_err(|err| AgentError::Prompt(chain(&err)))?;
        Ok(ids.into())
    }
}
