//! The commands of one answer on their way to the device's engine.
//!
//! A command may tokenize a long prompt. So each answer has a task for it on a thread of its own, which the
//! loop of the answer never waits for. Always: commands are done in order, and the answer ends with the task.

use baton_generate::speculation::SpeculationStats;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::local::{Attended, EngineCommand, LocalAnswer};

/// Most commands that may wait; an answer has a handful.
const COMMANDS_MAX: usize = 64;

/// Takes the commands of one answer. Dropping it ends the answer.
pub(super) struct Commands {
    sender: mpsc::Sender<EngineCommand>,
    task: JoinHandle<Ended>,
}

/// What the device's own answer leaves.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// What came of proposals.
    pub(super) speculation: Option<SpeculationStats>,
    /// What the answer attended to.
    pub(super) attended: Option<Attended>,
}

impl Commands {
    pub(super) fn begin(mut answer: LocalAnswer) -> Commands {
        let (sender, mut commands) = mpsc::channel(COMMANDS_MAX);
        let task = tokio::task::spawn_blocking(move || {
            while let Some(command) = commands.blocking_recv() {
                answer.command(command);
            }
            Ended { attended: answer.attended(), speculation: answer.speculation() }
        });
        Commands { sender, task }
    }

    /// Gives a command; returns false if the task has failed.
    pub(super) async fn send(&self, command: EngineCommand) -> bool {
        self.sender.send(command).await.is_ok()
    }

    /// Waits until all commands are done, and ends the answer; returns what it leaves.
    pub(super) async fn end(self) -> Ended {
        drop(self.sender);
        // A task that panicked has already printed its message.
        self.task.await.unwrap_or_default()
    }
}
