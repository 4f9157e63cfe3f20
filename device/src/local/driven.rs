//! A device that its caller drives pass by pass, for evaluation and tests in virtual time.
//!
//! It has no thread and never waits. Answers are the same as those of a device with a thread.

use baton_engine::pace_emulation::PassContent;
use baton_engine::{Model, Sequences, StepControl};
use baton_generate::host::{Host, Pass};
use baton_generate::speculation::SpeculationStats;
use std::sync::Arc;

use super::{EngineCommand, EngineReport, LocalAnswer, LocalModel, LocalOptions, Reports};

/// A device's host with at most one answer, driven by hand.
pub struct Driven<S: Sequences> {
    host: Host<S>,
    local: LocalModel,
    answer: Option<(LocalAnswer, Reports)>,
    pass: Option<Pass>,
}

impl<S: Sequences> Driven<S> {
    /// Makes a device over `engine`.
    ///
    /// # Panics
    /// As [`LocalModel::host`].
    pub fn new(engine: S, options: LocalOptions) -> Driven<S> {
        let (host, local) = LocalModel::host(engine, options);
        Driven { host, local, answer: None, pass: None }
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.local.model()
    }

    /// Returns the host.
    pub fn host(&mut self) -> &mut Host<S> {
        &mut self.host
    }

    /// Takes a command; returns the reports that need no turn. `Open` ends the answer before.
    pub fn command(&mut self, command: EngineCommand) -> Vec<EngineReport> {
        if matches!(command, EngineCommand::Open { .. }) || self.answer.is_none() {
            self.answer = Some(LocalAnswer::new(&self.local));
        }
        if let Some((answer, _)) = &mut self.answer {
            answer.command(command);
        }
        self.reports()
    }

    /// Computes the next pass, unless one waits for [`Self::commit`]. Returns what it has computed; none if
    /// there is nothing to do, or `control` has stopped it and so ended the answer.
    pub fn turn(&mut self, control: &mut dyn StepControl) -> Option<PassContent> {
        if self.pass.is_none() {
            self.pass = self.host.turn_under(control);
        }
        self.pass.as_ref().map(Pass::content)
    }

    /// Ends the pass that was computed, if there is one: its reports can be read.
    pub fn commit(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.host.commit(pass);
        }
    }

    /// Returns the reports that have come since the last call.
    pub fn reports(&mut self) -> Vec<EngineReport> {
        let reports = self.answer.as_mut().map(|(_, reports)| reports);
        reports.map_or_else(Vec::new, |reports| std::iter::from_fn(|| reports.try_recv()).collect())
    }

    /// Returns what came of the proposals of the last answer.
    pub fn speculation(&self) -> Option<SpeculationStats> {
        self.answer.as_ref().and_then(|(answer, _)| answer.speculation())
    }
}
