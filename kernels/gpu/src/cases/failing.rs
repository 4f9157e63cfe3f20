//! A device in host memory that fails at a stated call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HostDevice;
use crate::device::{Buffer, Device, Facts, GpuError, Launch, Mark, Tiles};

/// A kind of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// [`Device::alloc`] and [`Device::upload`].
    Alloc,
    /// [`Device::write`].
    Write,
    /// [`Device::launch`].
    Launch,
    /// [`Device::read`].
    Read,
    /// [`Device::load`].
    Load,
    /// [`Device::save`].
    Save,
}

impl Call {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Alloc, Self::Write, Self::Launch, Self::Read, Self::Load, Self::Save];
}

/// How a call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The device has this fault, and keeps it.
    Fault(GpuError),
    /// The calling thread panics, as it does for a bug of a kernel set. Nothing is printed.
    Panic,
}

#[derive(Debug)]
struct Plan {
    call: Call,
    /// Calls of this kind that come before.
    left: usize,
    failure: Failure,
}

/// A device in host memory that fails at a stated call.
#[derive(Debug)]
pub struct FailingDevice {
    host: HostDevice,
    plan: Mutex<Option<Plan>>,
}

impl FailingDevice {
    /// Makes a device that gives out at most `budget` bytes, and does not fail yet.
    pub fn new(budget: Option<u64>) -> Self {
        Self { host: HostDevice::new(budget), plan: Mutex::default() }
    }

    /// Lets a call fail: of those of this kind from now on, the one with `nth` before it. Replaces what was
    /// planned.
    pub fn fail_at(&self, call: Call, nth: usize, failure: Failure) {
        *self.plan() = Some(Plan { call, left: nth, failure });
    }

    /// Forgets what is planned. Returns whether there was something, so that no call has failed yet.
    pub fn forget(&self) -> bool {
        self.plan().take().is_some()
    }

    fn plan(&self) -> MutexGuard<'_, Option<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and lets it fail if it is the planned one. With a fault, the host's device then does
    /// nothing.
    fn begin(&self, call: Call) {
        let mut plan = self.plan();
        let Some(next) = plan.as_mut().filter(|plan| plan.call == call) else { return };
        if next.left > 0 {
            next.left -= 1;
            return;
        }
        let failure = plan.take().map(|plan| plan.failure);
        drop(plan);
        match failure {
            Some(Failure::Fault(fault)) => self.host.fail(fault),
            Some(Failure::Panic) => {
                std::panic::resume_unwind(Box::new(format!("planned for a call of {call:?}")))
            }
            None => {}
        }
    }
}

impl Device for FailingDevice {
    fn facts(&self) -> &Facts {
        self.host.facts()
    }

    fn tiles(&self) -> Tiles {
        self.host.tiles()
    }

    fn joins(&self) -> bool {
        self.host.joins()
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        self.begin(Call::Alloc);
        self.host.alloc(bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.begin(Call::Alloc);
        self.host.upload(bytes)
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        self.begin(Call::Write);
        self.host.write(to, at, bytes);
    }

    fn clear(&self, buffer: &Buffer) {
        self.host.clear(buffer);
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        self.host.copy(from, from_at, to, to_at, bytes);
    }

    fn launch(&self, launch: &Launch<'_>) {
        self.begin(Call::Launch);
        self.host.launch(launch);
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.begin(Call::Read);
        self.host.read(from, at, out)
    }

    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        self.begin(Call::Load);
        self.host.load(to, at, bytes, after)
    }

    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        self.begin(Call::Save);
        self.host.save(from, at, out, after)
    }

    fn fault(&self) -> Option<GpuError> {
        self.host.fault()
    }

    fn used_bytes(&self) -> u64 {
        self.host.used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.host.free_bytes()
    }
}
