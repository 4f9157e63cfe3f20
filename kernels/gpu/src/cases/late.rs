//! A device in host memory that orders loads and commands by marks and waits alone.
//!
//! On most devices a load is done before the command that needs it, even if nobody waited for it. Here what
//! is not ordered takes effect in the wrong order, so a mark or a wait that is missing shows as wrong bits.
//! Commands are kept, and run when something must be behind them: a read, a load or a save.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::HostDevice;
use crate::device::{Buffer, Device, Facts, GpuError, Launch, Mark, Tiles};
use crate::kernel::Kernel;

/// When a load takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loads {
    /// When the call returns, before every command that its mark does not name. A command that must see the
    /// old bytes, and is not before the mark, sees the new ones.
    Early,
    /// At the first wait for it, and never without one. A command that must see the new bytes, and is not
    /// behind a wait, sees the old ones.
    Late,
}

impl Loads {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Early, Self::Late];
}

/// A device in host memory that orders loads and commands by marks and waits alone.
#[derive(Debug)]
pub struct LateDevice {
    host: HostDevice,
    loads: Loads,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Commands that are to run, in order.
    commands: VecDeque<Command>,
    /// Commands that have run.
    ran: u64,
    /// Loads that have not taken effect, by number.
    pending: HashMap<u64, Write>,
    /// Loads so far.
    loads: u64,
}

/// Bytes on their way to a buffer.
#[derive(Debug)]
struct Write {
    to: Buffer,
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Command {
    Write(Write),
    Clear(Buffer),
    Copy {
        from: (Buffer, u64),
        to: (Buffer, u64),
        bytes: u64,
    },
    Launch {
        kernel: Kernel,
        groups: [u32; 3],
        params: Vec<u32>,
        buffers: Vec<Buffer>,
    },
    /// Waits for a load.
    Wait(u64),
}

/// The mark behind so many commands.
struct Commands(u64);

/// The mark of a load.
struct Load(u64);

impl LateDevice {
    /// Makes a device that gives out at most `budget` bytes.
    pub fn new(budget: Option<u64>, loads: Loads) -> Self {
        Self { host: HostDevice::new(budget), loads, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a command.
    fn tell(&self, command: Command) {
        self.state().commands.push_back(command);
    }

    /// Runs the commands before a mark.
    fn run_before(&self, state: &mut State, mark: &Mark) {
        if let Some(Commands(end)) = mark.raw() {
            self.run(state, *end);
        }
    }

    /// Runs commands until so many have run.
    fn run(&self, state: &mut State, end: u64) {
        while state.ran < end {
            let Some(command) = state.commands.pop_front() else { return };
            state.ran += 1;
            self.run_one(state, command);
        }
    }

    fn run_all(&self, state: &mut State) {
        self.run(state, u64::MAX);
    }

    fn run_one(&self, state: &mut State, command: Command) {
        match command {
            Command::Write(write) => self.write_now(&write),
            Command::Clear(buffer) => self.host.clear(&buffer),
            Command::Copy { from, to, bytes } => self.host.copy(&from.0, from.1, &to.0, to.1, bytes),
            Command::Launch { kernel, groups, params, buffers } => {
                let buffers: Vec<&Buffer> = buffers.iter().collect();
                self.host.launch(&Launch { kernel, groups, params: &params, buffers: &buffers });
            }
            Command::Wait(load) => {
                if let Some(write) = state.pending.remove(&load) {
                    self.write_now(&write);
                }
            }
        }
    }

    fn write_now(&self, Write { to, at, bytes }: &Write) {
        self.host.write(to, *at, bytes);
    }
}

impl Device for LateDevice {
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
        let buffer = self.host.alloc(bytes.len() as u64);
        // A buffer has whole words.
        let mut words = bytes.to_vec();
        words.resize(bytes.len().next_multiple_of(4), 0);
        self.write(&buffer, 0, &words);
        buffer
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        self.tell(Command::Write(Write { to: to.clone(), at, bytes: bytes.to_vec() }));
    }

    fn clear(&self, buffer: &Buffer) {
        self.tell(Command::Clear(buffer.clone()));
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        self.tell(Command::Copy { from: (from.clone(), from_at), to: (to.clone(), to_at), bytes });
    }

    fn launch(&self, launch: &Launch<'_>) {
        let buffers = launch.buffers.iter().map(|buffer| (*buffer).clone()).collect();
        let Launch { kernel, groups, params, .. } = *launch;
        self.tell(Command::Launch { kernel, groups, params: params.to_vec(), buffers });
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let state = &mut *self.state();
        self.run_all(state);
        self.host.read(from, at, out)
    }

    fn mark(&self) -> Mark {
        let state = self.state();
        Mark::new(Arc::new(Commands(state.ran + state.commands.len() as u64)))
    }

    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        let state = &mut *self.state();
        let write = Write { to: to.clone(), at, bytes: bytes.to_vec() };
        let number = state.loads;
        state.loads += 1;
        match self.loads {
            Loads::Early => {
                self.run_before(state, after);
                self.write_now(&write);
            }
            // Who waits for it does so behind the commands before `after`.
            Loads::Late => drop(state.pending.insert(number, write)),
        }
        Mark::new(Arc::new(Load(number)))
    }

    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        let state = &mut *self.state();
        self.run_before(state, after);
        self.host.read(from, at, out)
    }

    fn wait(&self, mark: &Mark) {
        if let Some(Load(number)) = mark.raw() {
            self.tell(Command::Wait(*number));
        }
    }

    fn fault(&self) -> Option<GpuError> {
        self.host.fault()
    }

    /// Runs all commands first: they hold buffers.
    fn used_bytes(&self) -> u64 {
        self.run_all(&mut self.state());
        self.host.used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.run_all(&mut self.state());
        self.host.free_bytes()
    }
}
