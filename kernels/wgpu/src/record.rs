//! Commands that are recorded and submitted together, in the order of the calls.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use baton_kernels_gpu::{GpuError, Kernel};

use crate::bindings::{Bindings, View};
use crate::fault::Fault;
use crate::memory::Memory;
use crate::pages::Pages;
use crate::pipelines::Pipeline;

/// Launches after which recorded commands are submitted, so that their number is bounded. A token of a model
/// with a hundred layers has fewer, so it is one submission.
const LAUNCHES_MAX: u32 = 4096;

/// Workgroups of tiled products after which recorded commands are submitted: operating systems reset a device
/// that works on one submission for seconds.
const TILES_MAX: u64 = 1 << 14;

/// Submissions that the device may have before the host waits for the oldest.
const SUBMISSIONS_MAX: usize = 4;

/// Bytes of writes that the host may be ahead of the device.
const WRITES_MAX: u64 = 64 << 20;

/// Commands and tables that were not yet submitted.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    // Before the encoder, since it must end first.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    launches: u32,
    tiles: u64,
    written: u64,
    submitted: VecDeque<wgpu::SubmissionIndex>,
    /// How often commands were submitted.
    pub(crate) submissions: u64,
    pub(crate) pages: Pages,
    bindings: Bindings,
}

/// A launch whose buffers were found.
#[derive(Debug)]
pub(crate) struct Dispatch<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) groups: [u32; 3],
    pub(crate) params: &'a [u32],
    pub(crate) views: &'a [View<'a>],
}

/// What recorded commands go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) device: &'a wgpu::Device,
    pub(crate) queue: &'a wgpu::Queue,
    pub(crate) memory: &'a Memory,
    pub(crate) fault: &'a Fault,
}

impl Target<'_> {
    /// Waits until the device has run a submission. A failure becomes the kept fault.
    pub(crate) fn wait(&self, index: wgpu::SubmissionIndex) {
        self.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None });
    }

    /// Looks after callbacks. wgpu panics if the device is lost while it waits.
    pub(crate) fn poll(&self, poll: wgpu::PollType) {
        let lost = |reason: String| self.fault.keep(GpuError::Lost(reason));
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(poll))) {
            Ok(Ok(_)) => {}
            Ok(Err(err)) => lost(err.to_string()),
            Err(_) => lost("its driver failed during a wait".to_owned()),
        }
    }
}

impl Recorder {
    fn encoder(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let new = || device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None });
        self.encoder.get_or_insert_with(new)
    }

    /// Keeps the page that a table is in until what is recorded is submitted.
    pub(crate) fn hold(&mut self, view: &View<'_>) {
        if let Some(page) = view.page {
            self.pages.hold(page);
        }
    }

    /// Records a launch.
    pub(crate) fn dispatch(&mut self, target: Target<'_>, dispatch: &Dispatch<'_>) {
        let Dispatch { kernel, pipeline, groups, params, views } = dispatch;
        views.iter().for_each(|view| self.hold(view));
        let group =
            self.bindings.group(target.device, target.memory, (*kernel, &pipeline.layout), views).clone();
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let encoder = self.encoder(target.device);
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
            }
        };
        // The last number is the zero of `rounded`.
        let numbers: Vec<u8> = params.iter().chain(&[0]).flat_map(|number| number.to_le_bytes()).collect();
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.set_immediates(0, &numbers);
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        self.pass = Some(pass);
        self.launches += 1;
        if matches!(kernel, Kernel::MatMul { .. } | Kernel::MatMulFloat { .. }) {
            self.tiles += groups.iter().map(|n| u64::from(*n)).product::<u64>();
        }
        if self.launches >= LAUNCHES_MAX || self.tiles >= TILES_MAX {
            self.submit(target);
        }
    }

    /// Records a copy. Tables are [held](Self::hold) by the caller.
    pub(crate) fn copy(
        &mut self,
        device: &wgpu::Device,
        (from, from_at): (&wgpu::Buffer, u64),
        (to, to_at): (&wgpu::Buffer, u64),
        bytes: u64,
    ) {
        self.encoder(device).copy_buffer_to_buffer(from, from_at, to, to_at, Some(bytes));
    }

    /// Records zeros.
    pub(crate) fn clear(&mut self, device: &wgpu::Device, view: &View<'_>, bytes: u64) {
        self.hold(view);
        self.encoder(device).clear_buffer(view.buffer, view.at, Some(bytes));
    }

    /// Submits what was recorded. Returns the submission, unless nothing was recorded or the device is lost.
    pub(crate) fn submit(&mut self, target: Target<'_>) -> Option<wgpu::SubmissionIndex> {
        self.pass = None;
        let encoder = self.encoder.take();
        if target.fault.is_set() {
            self.bindings.clear();
            return None;
        }
        self.pages.write(target.queue);
        let index = target.queue.submit([encoder?.finish()]);
        self.submissions += 1;
        self.launches = 0;
        self.tiles = 0;
        self.written = 0;
        self.pages.submitted();
        self.bindings.submitted();
        self.submitted.push_back(index.clone());
        if self.submitted.len() > SUBMISSIONS_MAX
            && let Some(oldest) = self.submitted.pop_front()
        {
            target.wait(oldest);
        }
        Some(index)
    }

    /// Drops what was recorded and not submitted, and what would keep memory.
    pub(crate) fn discard(&mut self) {
        self.pass = None;
        self.encoder = None;
        (self.launches, self.tiles, self.written) = (0, 0, 0);
        self.pages = Pages::default();
        self.bindings.clear();
    }

    /// Lets the driver take back the memory of buffers that are no longer in use.
    pub(crate) fn forget(&mut self, target: Target<'_>, dead: &[u64]) {
        self.bindings.forget(dead);
        target.poll(wgpu::PollType::Poll);
    }

    /// Waits for the device, and holds nothing that it does not need.
    pub(crate) fn make_room(&mut self, target: Target<'_>) {
        self.submit(target);
        self.bindings.clear();
        self.submitted.clear();
        target.memory.trim();
        target.poll(wgpu::PollType::wait_indefinitely());
    }

    /// Writes to a buffer, after everything that was recorded.
    pub(crate) fn write(&mut self, target: Target<'_>, view: &View<'_>, at: u64, bytes: &[u8]) {
        self.submit(target);
        let pieces = bytes.chunks(WRITES_MAX as usize / 4);
        let mut at = view.at + at;
        for piece in pieces {
            if target.fault.is_set() {
                return;
            }
            target.queue.write_buffer(view.buffer, at, piece);
            at += piece.len() as u64;
            self.written += piece.len() as u64;
            if self.written >= WRITES_MAX {
                self.written = 0;
                let index = target.queue.submit([]);
                target.wait(index);
            }
        }
    }
}
