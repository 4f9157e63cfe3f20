//! A device with stated speeds. It computes in host memory, and a clock of its own says how long that would
//! have taken with these speeds. No time of it is the speed of a real GPU.
//!
//! There are two engines, one for commands and one for loads and saves. Each does one thing after the other.
//! The host takes no time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::HostDevice;
use crate::device::{Buffer, Device, Facts, GpuError, Launch, Mark, Tiles};
use crate::kernel::Kernel;

/// The speeds of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// Bytes a second that are copied between host and device.
    pub copy_bytes_per_s: f64,
    /// Seconds until a copy begins.
    pub copy_s: f64,
    /// Bytes of weights a second that products read.
    pub read_bytes_per_s: f64,
    /// Seconds of a kernel besides.
    pub launch_s: f64,
}

/// What an engine did.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// A kernel's name, `load`, `save`, `write` or `read`.
    pub what: String,
    /// Seconds on the device's clock.
    pub start_s: f64,
    /// Seconds on the device's clock.
    pub end_s: f64,
    /// Bytes that were copied, or of the weights that were read.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Clock {
    commands_s: f64,
    loads_s: f64,
    commands: Vec<Span>,
    loads: Vec<Span>,
}

/// A device in host memory, with a clock.
#[derive(Debug)]
pub struct TimedDevice {
    host: HostDevice,
    speeds: Speeds,
    clock: Mutex<Clock>,
}

/// Returns the end of something that begins at `start_s`, and notes it.
fn spend(done: &mut Vec<Span>, what: String, start_s: f64, took_s: f64, bytes: u64) -> f64 {
    let end_s = start_s + took_s;
    done.push(Span { what, start_s, end_s, bytes });
    end_s
}

/// Returns the bytes of the weights that a product reads; 0 for other kernels.
fn weight_bytes(launch: &Launch<'_>) -> u64 {
    let (Kernel::MatVec { format, .. }
    | Kernel::MatMul { format }
    | Kernel::MatVecFloat { format, .. }
    | Kernel::MatMulFloat { format }
    | Kernel::MatVecChosen { format }) = launch.kernel
    else {
        return 0;
    };
    let [rows, cols, pairs] = [0, 1, 2].map(|i| launch.params[i] as usize);
    let matrices = if matches!(launch.kernel, Kernel::MatVecChosen { .. }) { pairs } else { 1 };
    (matrices * rows * format.row_bytes(cols).unwrap_or(0)) as u64
}

impl TimedDevice {
    /// Makes a device that gives out at most `budget` bytes.
    pub fn new(budget: Option<u64>, speeds: Speeds) -> Self {
        Self { host: HostDevice::new(budget), speeds, clock: Mutex::default() }
    }

    /// Keeps a fault, as if the device had it.
    pub fn fail(&self, fault: GpuError) {
        self.host.fail(fault);
    }

    /// Returns the seconds that have passed.
    pub fn now_s(&self) -> f64 {
        self.clock().commands_s
    }

    /// Returns what commands and loads have done since the last call: commands, then loads.
    pub fn take_spans(&self) -> [Vec<Span>; 2] {
        let mut clock = self.clock();
        [std::mem::take(&mut clock.commands), std::mem::take(&mut clock.loads)]
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a command.
    fn command(&self, what: String, took_s: f64, bytes: u64) {
        let clock = &mut *self.clock();
        clock.commands_s = spend(&mut clock.commands, what, clock.commands_s, took_s, bytes);
    }

    fn copy_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.speeds.copy_bytes_per_s
    }
}

impl Device for TimedDevice {
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
        self.host.alloc(bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.command("write".to_owned(), self.copy_s(bytes.len() as u64), bytes.len() as u64);
        self.host.upload(bytes)
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        let took_s = self.speeds.copy_s + self.copy_s(bytes.len() as u64);
        self.command("write".to_owned(), took_s, bytes.len() as u64);
        self.host.write(to, at, bytes);
    }

    fn clear(&self, buffer: &Buffer) {
        self.host.clear(buffer);
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        self.host.copy(from, from_at, to, to_at, bytes);
    }

    fn launch(&self, launch: &Launch<'_>) {
        let bytes = weight_bytes(launch);
        let took_s = self.speeds.launch_s + bytes as f64 / self.speeds.read_bytes_per_s;
        self.command(launch.kernel.name(), took_s, bytes);
        self.host.launch(launch);
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let took_s = self.speeds.copy_s + self.copy_s(out.len() as u64);
        self.command("read".to_owned(), took_s, out.len() as u64);
        self.host.read(from, at, out)
    }

    fn mark(&self) -> Mark {
        Mark::new(Arc::new(self.now_s()))
    }

    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        let after_s = after.raw::<f64>().copied().unwrap_or_default();
        let (len, clock) = (bytes.len() as u64, &mut *self.clock());
        let start_s = clock.loads_s.max(after_s);
        let took_s = self.speeds.copy_s + self.copy_s(len);
        clock.loads_s = spend(&mut clock.loads, "load".to_owned(), start_s, took_s, len);
        // Under the clock's lock: commands of other threads are before or behind.
        self.host.write(to, at, bytes);
        Mark::new(Arc::new(clock.loads_s))
    }

    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        let after_s = after.raw::<f64>().copied().unwrap_or_default();
        let (len, clock) = (out.len() as u64, &mut *self.clock());
        let start_s = clock.loads_s.max(after_s);
        let took_s = self.speeds.copy_s + self.copy_s(len);
        clock.loads_s = spend(&mut clock.loads, "save".to_owned(), start_s, took_s, len);
        self.host.read(from, at, out)
    }

    fn loads_beside_commands(&self) -> bool {
        true
    }

    fn wait(&self, mark: &Mark) {
        let end_s = mark.raw::<f64>().copied().unwrap_or_default();
        let mut clock = self.clock();
        clock.commands_s = clock.commands_s.max(end_s);
    }

    fn fault(&self) -> Option<GpuError> {
        self.host.fault()
    }

    fn recover(&self) -> bool {
        self.host.recover()
    }

    fn generation(&self) -> u64 {
        self.host.generation()
    }

    fn used_bytes(&self) -> u64 {
        self.host.used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.host.free_bytes()
    }

    fn rounding_bytes(&self, bytes: u64) -> u64 {
        self.host.rounding_bytes(bytes)
    }

    fn headroom_bytes(&self) -> u64 {
        self.host.headroom_bytes()
    }
}
