//! The disk of a worker: looks what is here of a model, and writes what comes, one work after the other.

use std::sync::Arc;

use baton_terminal::chain;

use super::Monitor;
use super::worker::WorkerHost;
use super::{By, Wakes, caught};
use crate::core::DiskId;
use crate::core::worker::{DiskEvent, DiskWork, Event, PartOf, WorkerCore};
use crate::weights::{Part, PieceStore, Places, WeightsError};

/// The disk, and the store of the model that was looked for last.
pub(super) struct DiskWorker {
    places: Places,
    store: Option<PieceStore>,
}

impl DiskWorker {
    pub(super) fn new(places: Places) -> Self {
        Self { places, store: None }
    }

    /// Works until the monitor ends.
    pub(super) fn run(mut self, monitor: &Arc<Monitor<WorkerCore>>) {
        while let Some((id, work)) =
            monitor.wait_for(Wakes::Disk, None, |desk: &mut WorkerHost| desk.disk.pop_front())
        {
            let told = |event| monitor.step(By::Other, Event::Disk(id, event));
            let mut progress = |done, total| told(DiskEvent::Progress { done, total });
            let mut aborted = || monitor.has_ended() || monitor.desk(|desk| desk.aborted.contains(&id));
            let event = if aborted() {
                DiskEvent::Aborted
            } else {
                self.perform_caught(work, &mut aborted, &mut progress)
            };
            monitor.desk(|desk| desk.aborted.remove(&id));
            told(event);
        }
    }

    /// As [`Self::perform`]. After a panic the store is opened anew.
    fn perform_caught(
        &mut self,
        work: DiskWork,
        aborted: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> DiskEvent {
        caught("the disk's thread", || self.perform(work, aborted, progress)).unwrap_or_else(|words| {
            self.store = None;
            DiskEvent::Failed(words)
        })
    }

    fn perform(
        &mut self,
        work: DiskWork,
        aborted: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> DiskEvent {
        let done = match work {
            DiskWork::Look { model, part, layers } => self.look((model, &part, &layers), aborted, progress),
            DiskWork::Keep { model, list } => self.places.keep(model, &list).map(|()| DiskEvent::Done),
            DiskWork::Put { index, bytes, missing } => self.put(index, &bytes, missing),
            DiskWork::Sync { missing } => self.sync(missing),
            DiskWork::ForgetChecked => {
                self.places.checked.forget();
                Ok(DiskEvent::Done)
            }
        };
        done.unwrap_or_else(|err| match err {
            WeightsError::Superseded => DiskEvent::Aborted,
            WeightsError::Forged { index } => DiskEvent::Forged(index),
            err => DiskEvent::Failed(chain(&err)),
        })
    }

    fn look(
        &mut self,
        (model, part, layers): ([u8; 32], &PartOf, &[usize]),
        aborted: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DiskEvent, WeightsError> {
        let mut go_on = || if aborted() { Err(WeightsError::Superseded) } else { Ok(()) };
        if *part == PartOf::Header
            && let Some(path) = self.places.whole(model, layers, &mut go_on, progress)?
        {
            return Ok(DiskEvent::Whole(path));
        }
        if self.store.as_ref().is_none_or(|store| store.manifest().digest() != model) {
            self.store = self.places.store(model)?;
        }
        let Some(store) = &mut self.store else { return Ok(DiskEvent::NoList) };
        let part = match part {
            PartOf::Header => Part::Header,
            PartOf::Layers(layers) => Part::Layers(layers),
        };
        let pieces = self.places.lacks(store, part, &mut go_on, progress)?;
        Ok(DiskEvent::Lacks { pieces, path: store.path().to_owned() })
    }

    fn put(&mut self, index: u32, bytes: &[u8], missing: u64) -> Result<DiskEvent, WeightsError> {
        let store = self.store.as_mut().ok_or(WeightsError::NoSuchPiece { index, count: 0 })?;
        store.put(index, bytes, missing)?;
        Ok(DiskEvent::Done)
    }

    fn sync(&mut self, missing: u64) -> Result<DiskEvent, WeightsError> {
        if let Some(store) = &mut self.store {
            store.sync(missing, &self.places.checked)?;
        }
        Ok(DiskEvent::Done)
    }
}

/// One work of the disk.
pub(super) type DiskTask = (DiskId, DiskWork);

#[cfg(test)]
mod tests;
