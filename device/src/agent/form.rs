//! Tools and forms of answers: who may write such an answer, and the forms that hold it.

use super::{Agent, AgentError, Question};
use crate::local::OnceForm;
use crate::privacy::Quoting;
use crate::relay::{FormGuard, RelayMode};
use baton_constrain::tools::ToolForm;
use baton_constrain::{Constraint, ConstraintError, FormError, Grammars, constraint};
use baton_engine::Model;
use baton_protocol::{AnswerFormat, Markup, SceneInfo, Segment, ToolUse};
use std::sync::{Arc, OnceLock};

/// The compiler of forms for the device's model; made when the first form is asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Forms(Arc<OnceLock<Result<Grammars, ConstraintError>>>);

/// The forms of one answer.
#[derive(Default)]
pub(super) struct AnswerForms {
    /// The one that holds this device's tokens, and those that it takes over.
    pub(super) own: Option<OnceForm>,
    /// The one that looks on while the cloud writes.
    pub(super) guard: Option<FormGuard>,
}

impl Forms {
    /// Compiles the forms of an answer. `thought_tokens` is the most tokens of the thinking that its prompt
    /// opens.
    ///
    /// # Errors
    /// [`FormError`] if no answer can have the form.
    pub(super) fn compile(
        &self,
        model: &Model,
        mode: RelayMode,
        tools: Option<&ToolUse>,
        format: &AnswerFormat,
        thought_tokens: Option<usize>,
    ) -> Result<AnswerForms, FormError> {
        let own = self.constraint(model, tools, format, thought_tokens)?.map(OnceForm::new);
        let guard = match mode {
            RelayMode::Relay => self.constraint(model, tools, format, thought_tokens)?.map(FormGuard::new),
            RelayMode::CloudOnly | RelayMode::DeviceOnly => None,
        };
        Ok(AnswerForms { own, guard })
    }

    fn constraint(
        &self,
        model: &Model,
        tools: Option<&ToolUse>,
        format: &AnswerFormat,
        thought_tokens: Option<usize>,
    ) -> Result<Option<Constraint>, FormError> {
        let grammars =
            || self.0.get_or_init(|| Grammars::new(model.tokenizer())).as_ref().map_err(Clone::clone);
        constraint(grammars, ToolForm::of(model.template()).markup, tools, format, thought_tokens)
    }
}

impl Question {
    /// Returns whether only a cloud that knows tools and forms may help to answer it.
    fn has_form(&self) -> bool {
        self.tools.is_some() || !self.format.is_text() || self.segments.iter().any(Segment::is_about_tools)
    }

    /// Returns where restored values stand inside JSON.
    pub(super) fn quoting(&self, markup: Option<Markup>) -> Quoting {
        match (&self.tools, markup) {
            _ if !self.format.is_text() => Quoting::Always,
            (None, _) => Quoting::Never,
            (Some(_), markup) => Quoting::Calls(markup.unwrap_or(Markup::Tagged)),
        }
    }
}

impl Agent {
    /// Returns how calls look in answers to this question: as the device's model writes them, or the cloud's
    /// if the device has none.
    pub fn call_markup(&self, scene: &SceneInfo) -> Option<Markup> {
        let own = self.device.as_ref().map(|device| ToolForm::of(device.model.template()).markup);
        own.or(scene.call_markup)
    }

    /// Returns whether the cloud may help to answer with tools, or in a form. Both models must write calls in
    /// the same way, because one may begin a call and the other end it.
    pub(crate) fn cloud_knows_tools(&self, scene: &SceneInfo) -> bool {
        self.cloud.is_some() && scene.call_markup.is_some() && self.call_markup(scene) == scene.call_markup
    }

    /// Returns who may write the answer.
    ///
    /// # Errors
    /// [`AgentError`] if nobody may.
    pub(super) fn mode(&self, question: &Question) -> Result<RelayMode, AgentError> {
        let (is_text, wanted) = (question.own.is_some(), question.mode);
        if is_text || (question.has_form() && !self.cloud_knows_tools(&question.scene)) {
            return match (wanted, self.device.is_some()) {
                (RelayMode::DeviceOnly | RelayMode::Relay, true) => Ok(RelayMode::DeviceOnly),
                _ if is_text => Err(AgentError::NoDeviceForText),
                (RelayMode::DeviceOnly, false) => Err(AgentError::NoDevice),
                _ => Err(AgentError::NoDeviceForTools),
            };
        }
        match (wanted, self.cloud.is_some(), self.device.is_some()) {
            (RelayMode::CloudOnly, false, _) => Err(AgentError::NoCloud),
            (RelayMode::DeviceOnly, _, false) => Err(AgentError::NoDevice),
            (RelayMode::Relay, false, false) => Err(AgentError::Nobody),
            (RelayMode::Relay, false, true) => Ok(RelayMode::DeviceOnly),
            (RelayMode::Relay, true, false) => Ok(RelayMode::CloudOnly),
            (mode, _, _) => Ok(mode),
        }
    }
}
