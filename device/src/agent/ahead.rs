//! Reads the whole conversation behind an answer of the relay, while nothing is asked.
//!
//! The relay's device has read only the refined prompt, with placeholders. The next turn's prompt begins with
//! the whole one and the answer, as they were given and shown. If the device has read that meanwhile, the
//! next turn computes only what is new, and the cloud is not needed. A new question ends the reading at once;
//! what was read until then stays.

use super::commands::Commands;
use super::prepare::Prepared;
use super::route::Routes;
use super::{Agent, AnswerReport};
use crate::local::{AnswerSpec, EngineCommand, EngineReport, PromptId, Reports, Scope, assembled};
use crate::machine::power::Power;
use crate::relay::RelayMode;
use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, Model};
use baton_protocol::{Role, Segment, ToolUse};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::debug;

/// A reading that is under way. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Reading {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What the next turn's prompt begins with.
struct Conversation {
    segments: Vec<Segment>,
    tools: Option<ToolUse>,
    answer: String,
    adapter: Option<AdapterId>,
}

impl Conversation {
    /// Makes the prompt of a turn without a question; `None` if it cannot be laid out, or the device should
    /// rest.
    fn spec(mut self, model: &Model) -> Option<AnswerSpec> {
        if Power::read(Path::new("/")).rests_when_idle() {
            return None;
        }
        self.segments.push(Segment::fixed(Role::Assistant, self.answer));
        let offered = self.tools.as_ref().map_or(&[][..], |tools| &tools.tools);
        let whole = assembled(model, &self.segments, offered).ok()?;
        Some(AnswerSpec {
            segments: self.segments.into(),
            adapter: self.adapter,
            sampling: SamplingParams::default(),
            tokens_max: 1,
            shorten: false,
            tools: self.tools.map(Arc::new),
            form: None,
            own: None,
            whole: Some(Arc::new(whole)),
            known_max: None,
            cites: None,
        })
    }
}

impl Agent {
    /// Begins to read the conversation of an answer, if the device has not read it itself, and computes
    /// nothing else.
    pub(super) fn read_ahead(&self, prepared: Prepared, report: &AnswerReport) {
        let Some(routes) = self.routes.clone().filter(|routes| routes.options().reads_ahead) else { return };
        let Some(device) = &self.device else { return };
        let is_whole = matches!(report.ending, "stop" | "length");
        let is_busy = self.turn.available_permits() < device.worker.answers();
        if is_busy || !is_whole || report.timeline.is_read_whole() || prepared.mode == RelayMode::DeviceOnly {
            return;
        }
        let Ok((answer, reports)) = device.worker.answer() else { return };
        let adapter = prepared.adapter;
        let conversation = Conversation {
            segments: prepared.given.segments,
            tools: prepared.given.tools,
            answer: report.answer.clone(),
            adapter,
        };
        let (stop, stopped) = oneshot::channel();
        let model = Arc::clone(&device.model);
        let task = tokio::spawn(async move {
            let Ok(Some(spec)) = tokio::task::spawn_blocking(move || conversation.spec(&model)).await else {
                return;
            };
            read(Commands::begin(answer), reports, spec, stopped, &routes).await;
        });
        *self.reading() = Some(Reading { stop, task });
    }

    /// Returns whether no reading is under way.
    pub(super) fn reading_has_ended(&self) -> bool {
        self.reading().as_ref().is_none_or(|reading| reading.task.is_finished())
    }

    /// Waits until a reading has ended by itself.
    #[cfg(test)]
    pub(super) async fn reading_ended(&self) {
        let reading = self.reading().take();
        reading.expect("a reading was begun").task.await.expect("it does not panic");
    }

    /// Ends a reading, and waits until the device is free.
    pub(super) async fn end_reading(&self) {
        let reading = self.reading().take();
        if let Some(Reading { stop, task }) = reading {
            // It may have ended by itself.
            let _ended = stop.send(());
            let _joined = task.await;
        }
    }
}

/// Lets the device read a prompt until it has, or it is told to stop.
async fn read(
    commands: Commands,
    mut reports: Reports,
    spec: AnswerSpec,
    stopped: oneshot::Receiver<()>,
    routes: &Routes,
) {
    let ids: Option<Arc<[TokenId]>> = spec.whole.as_ref().map(|whole| whole.ids.as_slice().into());
    let open = EngineCommand::Open { prompt: PromptId::default(), spec, scope: Scope::Whole };
    if commands.send(open).await {
        let ready = async {
            while let Some(report) = reports.recv().await {
                match report {
                    EngineReport::Ready { .. } => return true,
                    EngineReport::TooLong { .. } | EngineReport::Failed { .. } => return false,
                    _ => {}
                }
            }
            false
        };
        tokio::select! {
            biased;
            _ = stopped => {}
            is_read = ready => if let Some(ids) = ids.filter(|_| is_read) {
                debug!(tokens = ids.len(), "read the conversation for its next turn");
                routes.computed(ids);
            }
        }
    }
    commands.end().await;
}
