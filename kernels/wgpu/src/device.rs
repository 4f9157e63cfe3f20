//! A GPU behind wgpu as the engine sees it.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use baton_kernels_gpu::{Buffer, Device, Facts, GpuError, Kernel, Launch, Tiles};

use crate::adapters::free_of;
use crate::bindings::View;
use crate::fault::{Fault, lock};
use crate::memory::{Block, Memory};
use crate::pages::Slice;
use crate::pipelines::{Pipeline, Pipelines};
use crate::probe;
use crate::record::{Dispatch, Recorder, Target};
use crate::shaders::TILES;

/// The most bytes that are read in one piece.
const READ_MAX: usize = 32 << 20;

/// How long a read waits at a time for another thread to say that its bytes are there.
const MAPPED_WAIT: Duration = Duration::from_millis(20);

/// How often it waits so before the device counts as lost. On a busy machine the other thread may not run for
/// long.
const MAPPED_WAITS_MAX: u32 = 1_500;

/// A GPU that wgpu reaches. Commands are recorded under a lock, so calls of several threads take effect one
/// after another.
#[derive(Debug)]
pub struct WgpuDevice {
    device: wgpu::Device,
    queue: wgpu::Queue,
    facts: Facts,
    fault: Fault,
    memory: Memory,
    pipelines: Pipelines,
    recorder: Mutex<Recorder>,
    /// Host-visible buffers that reads have used.
    staging: Mutex<Vec<wgpu::Buffer>>,
}

/// This set's handle of a buffer.
#[derive(Debug)]
struct Handle {
    /// `None` if it could not be allocated.
    raw: Option<Raw>,
    /// That of the device's fault when it was allocated.
    generation: u64,
}

/// What a buffer refers to.
#[derive(Debug)]
enum Raw {
    /// Memory of its own.
    Block(Block),
    /// A small table.
    Slice(Slice),
}

impl Raw {
    fn view(&self) -> View<'_> {
        match self {
            Self::Block(block) => View::of(block),
            Self::Slice(Slice { page, at, bytes }) => View::of_page(page, *at, *bytes),
        }
    }
}

impl WgpuDevice {
    /// Takes over a device that was just opened.
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue, facts: Facts, budget: Option<u64>) -> Self {
        let fault = Fault::default();
        let memory = Memory::new(device.clone(), fault.clone(), budget, facts.binding_bytes);
        let lost = fault.clone();
        device.set_device_lost_callback(move |reason, message| {
            lost.keep(GpuError::Lost(format!("{reason:?}: {message}")));
        });
        let (failed, weak) = (fault.clone(), memory.downgrade());
        device.on_uncaptured_error(Arc::new(move |err| {
            failed.keep(match err {
                wgpu::Error::OutOfMemory { .. } => {
                    GpuError::OutOfMemory { wanted: 0, used: weak.used_bytes(), budget: None }
                }
                other => GpuError::Kernel { kernel: "a command".to_owned(), reason: other.to_string() },
            });
        }));
        let target = Target { device: &device, queue: &queue, memory: &memory, fault: &fault };
        let pipelines = Pipelines::new(probe::fused(target));
        Self {
            device,
            queue,
            facts,
            fault,
            memory,
            pipelines,
            recorder: Mutex::default(),
            staging: Mutex::default(),
        }
    }

    /// Returns how often recorded commands were handed to the device.
    pub fn submissions(&self) -> u64 {
        lock(&self.recorder).submissions
    }

    /// Gives the device back to its driver, as if it were unplugged: a fault is kept, and reads fail.
    pub fn destroy(&self) {
        self.device.destroy();
        self.target().poll(wgpu::PollType::Poll);
        self.fault.keep(GpuError::Lost("it was given back".to_owned()));
    }

    fn target(&self) -> Target<'_> {
        Target { device: &self.device, queue: &self.queue, memory: &self.memory, fault: &self.fault }
    }

    /// Returns the range of a buffer; `None` after a fault, and for a buffer from before one.
    fn view<'a>(&self, buffer: &'a Buffer) -> Option<View<'a>> {
        if self.fault.is_set() {
            return None;
        }
        let handle = buffer.raw::<Handle>();
        if handle.is_none() {
            let reason = "a buffer is not of this device".to_owned();
            self.fault.keep(GpuError::Kernel { kernel: "a command".to_owned(), reason });
        }
        let here = handle.filter(|handle| handle.generation == self.fault.generation())?;
        let whole = here.raw.as_ref().map(Raw::view)?;
        if buffer.at() == 0 {
            return Some(whole);
        }
        let bytes = buffer.bytes().next_multiple_of(16).min(whole.bytes - buffer.at());
        Some(View { at: whole.at + buffer.at(), bytes, ..whole })
    }

    /// Wraps a handle, or stands for one after a fault. `generation` is that before the allocation.
    fn wrap(&self, (raw, generation): (Option<Raw>, u64), bytes: u64) -> Buffer {
        // Memory that is not there is of no generation.
        let generation = if raw.is_some() { generation } else { u64::MAX };
        Buffer::new(Arc::new(Handle { raw, generation }), bytes)
    }

    fn refuse(&self, kernel: Kernel, reason: String) {
        self.fault.keep(GpuError::Kernel { kernel: kernel.name(), reason });
    }

    /// Checks a launch against the kernel.
    fn fits(&self, launch: &Launch<'_>, pipeline: &Pipeline) -> bool {
        let (buffers, params) = (launch.buffers.len(), launch.params.len());
        if buffers != pipeline.writes.len() || params != pipeline.params {
            let (want, numbers) = (pipeline.writes.len(), pipeline.params);
            self.refuse(
                launch.kernel,
                format!("a launch has {buffers} buffers and {params} numbers, not {want} and {numbers}"),
            );
        } else if let Some(n) = launch.groups.iter().find(|n| **n > 65_535) {
            self.refuse(launch.kernel, format!("{n} workgroups in one dimension, at most 65535"));
        }
        !self.fault.is_set()
    }

    /// Reads up to [`READ_MAX`] bytes.
    fn read_piece(&self, from: &View<'_>, at: u64, out: &mut [u8]) -> Option<()> {
        let bytes = out.len() as u64;
        let staging = self.staging(bytes);
        let index = {
            let mut recorder = lock(&self.recorder);
            recorder.copy(&self.device, (from.buffer, from.at + at), (&staging, 0), bytes);
            recorder.submit(self.target())?
        };
        let (sender, receiver) = mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, 0..bytes, move |result| {
            // The receiver is gone only if the wait has failed.
            let _ = sender.send(result);
        });
        self.target().wait(index);
        self.mapped(&receiver)?;
        let mapped = staging.get_mapped_range(0..bytes).ok();
        match mapped {
            Some(mapped) if !self.fault.is_set() => out.copy_from_slice(&mapped),
            _ => return None,
        }
        staging.unmap();
        let mut kept = lock(&self.staging);
        kept.truncate(3);
        kept.push(staging);
        Some(())
    }

    /// Waits for the word that a buffer is mapped; `None` if it cannot be.
    ///
    /// The device is done, but another thread may have to say so. A wait or a submission of that thread can
    /// take this thread's callback from wgpu, and call it a little later.
    fn mapped(&self, receiver: &mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>) -> Option<()> {
        for _ in 0..MAPPED_WAITS_MAX {
            match receiver.recv_timeout(MAPPED_WAIT) {
                Ok(mapped) => return mapped.ok(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) if self.fault.is_set() => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => self.target().poll(wgpu::PollType::Poll),
            }
        }
        None
    }

    /// Returns a host-visible buffer of at least so many bytes.
    fn staging(&self, bytes: u64) -> wgpu::Buffer {
        let mut kept = lock(&self.staging);
        if let Some(i) = kept.iter().position(|buffer| buffer.size() >= bytes) {
            return kept.swap_remove(i);
        }
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.next_power_of_two().max(4_096),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }
}

impl Device for WgpuDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        TILES
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        let generation = self.fault.generation();
        let dead = self.memory.take_dead();
        if !dead.is_empty() {
            lock(&self.recorder).forget(self.target(), &dead);
        }
        let block = self.memory.block_if_room(bytes).or_else(|| {
            if !self.fault.is_set() {
                lock(&self.recorder).make_room(self.target());
            }
            self.memory.block(bytes)
        });
        self.wrap((block.map(Raw::Block), generation), bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        let generation = self.fault.generation();
        let slice =
            if self.fault.is_set() { None } else { lock(&self.recorder).pages.add(&self.memory, bytes) };
        self.wrap((slice.map(Raw::Slice), generation), bytes.len() as u64)
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        if let Some(view) = self.view(to) {
            lock(&self.recorder).write(self.target(), &view, at, bytes);
        }
    }

    fn clear(&self, buffer: &Buffer) {
        if let Some(view) = self.view(buffer) {
            let bytes = buffer.bytes().next_multiple_of(4);
            lock(&self.recorder).clear(&self.device, &view, bytes);
        }
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        if let (Some(from), Some(to)) = (self.view(from), self.view(to))
            && bytes > 0
        {
            let mut recorder = lock(&self.recorder);
            recorder.hold(&from);
            recorder.hold(&to);
            let (from, to) = ((from.buffer, from.at + from_at), (to.buffer, to.at + to_at));
            recorder.copy(&self.device, from, to, bytes);
        }
    }

    fn launch(&self, launch: &Launch<'_>) {
        if self.fault.is_set() || launch.groups.contains(&0) {
            return;
        }
        let handles = (&self.device, &self.queue);
        let Some(pipeline) = self.pipelines.get(handles, &self.memory, &self.fault, launch.kernel) else {
            return;
        };
        if !self.fits(launch, &pipeline) {
            return;
        }
        let views: Option<Vec<View<'_>>> = launch.buffers.iter().map(|buffer| self.view(buffer)).collect();
        let Some(mut views) = views else { return };
        // Tables share a page, and a page cannot be read and written at once: a table that is written is
        // copied before and after.
        let is_table = |i: usize| views[i].page.is_some();
        let written: Vec<usize> = (0..views.len()).filter(|i| pipeline.writes[*i] && is_table(*i)).collect();
        let Some(copies) =
            written.iter().map(|i| self.memory.block(views[*i].bytes)).collect::<Option<Vec<_>>>()
        else {
            return;
        };
        let mut recorder = lock(&self.recorder);
        let tables: Vec<View<'_>> = written.iter().map(|i| views[*i]).collect();
        for ((table, copy), i) in tables.iter().zip(&copies).zip(&written) {
            recorder.hold(table);
            recorder.copy(&self.device, (table.buffer, table.at), (&copy.buffer, 0), table.bytes);
            views[*i] = View::of(copy);
        }
        if let Some(table) = &pipeline.table {
            views.push(View::of(table));
        }
        let Launch { kernel, groups, params, .. } = *launch;
        recorder.dispatch(
            self.target(),
            &Dispatch { kernel, pipeline: &pipeline, groups, params, views: &views },
        );
        for (table, copy) in tables.iter().zip(&copies) {
            recorder.copy(&self.device, (&copy.buffer, 0), (table.buffer, table.at), table.bytes);
        }
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let generation = from.raw::<Handle>().map_or(u64::MAX, |handle| handle.generation);
        let mut at = at;
        for piece in out.chunks_mut(READ_MAX) {
            self.fault.check(generation)?;
            let read = self.view(from).and_then(|view| self.read_piece(&view, at, piece));
            self.fault.check(generation)?;
            if read.is_none() {
                self.fault.keep(GpuError::Lost("its results cannot be read".to_owned()));
            }
            at += piece.len() as u64;
        }
        self.fault.check(generation)
    }

    fn fault(&self) -> Option<GpuError> {
        self.fault.get()
    }

    fn recover(&self) -> bool {
        let mut recorder = lock(&self.recorder);
        if self.fault.is_set() {
            recorder.discard();
            self.memory.trim();
            self.target().poll(wgpu::PollType::Poll);
        }
        self.fault.forget()
    }

    fn generation(&self) -> u64 {
        self.fault.generation()
    }

    fn used_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        free_of(self.memory.budget(), self.facts.memory_bytes, self.memory.used_bytes())
    }
}
