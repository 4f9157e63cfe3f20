//! The device's engine between answers: how long nothing was asked, leaving the memory and coming back.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use baton_pacing::DeviceCost;

use super::{Agent, AgentError, NO_DEVICE};
use crate::relay::RelayMode;

impl Agent {
    /// Returns the device's measured cost, if there is a device model. Waits until it is measured.
    pub(super) async fn cost(&self, mode: RelayMode) -> Result<DeviceCost, AgentError> {
        match &self.device {
            Some(device) if mode != RelayMode::CloudOnly => {
                let worker = Arc::clone(&device.worker);
                tokio::task::spawn_blocking(move || worker.cost()).await.map_err(AgentError::Prepare)
            }
            _ => Ok(NO_DEVICE),
        }
    }

    /// Frees the memory of the device's engine and of its weights, if no answer is under way and the engine
    /// can be made again. The next question makes it again. Returns whether there was something to free.
    pub async fn unload(&self) -> bool {
        let Some(device) = &self.device else { return false };
        let all = u32::try_from(device.worker.answers()).unwrap_or(u32::MAX);
        let Ok(_turns) = self.turn.try_acquire_many(all) else { return false };
        let (worker, model) = (Arc::clone(&device.worker), Arc::clone(&device.model));
        let stop = move || {
            let stopped = worker.stop();
            if stopped {
                model.let_go();
            }
            stopped
        };
        let stopped = tokio::task::spawn_blocking(stop).await.unwrap_or(false);
        if let Some(routes) = self.routes.as_ref().filter(|_| stopped) {
            routes.forget();
        }
        stopped
    }

    /// Returns for how long nothing was asked of it.
    pub fn idle_for(&self) -> Duration {
        self.used().elapsed()
    }

    pub(super) fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device's engine is in memory.
    pub fn is_loaded(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.worker.is_running())
    }

    /// Makes the device's engine again, if it was unloaded.
    ///
    /// # Errors
    /// [`AgentError::Engine`] if that fails.
    pub(crate) async fn load(&self) -> Result<(), AgentError> {
        let Some(device) = self.device.as_ref().filter(|device| !device.worker.is_running()) else {
            return Ok(());
        };
        let worker = Arc::clone(&device.worker);
        let restarted = tokio::task::spawn_blocking(move || worker.restart()).await;
        restarted.map_err(AgentError::Prepare)?.map_err(AgentError::Engine)
    }
}
