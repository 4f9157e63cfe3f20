//! Bind groups, kept for the launches that come again: those of the next token use the same buffers.

use std::collections::HashMap;
use std::sync::Arc;

use baton_kernels_gpu::Kernel;

use crate::memory::{Block, Memory};

/// Submissions after which a bind group that was not used is dropped.
const KEPT_SUBMISSIONS: u64 = 16;

/// A range of a driver's buffer that a kernel uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The number of the buffer.
    pub(crate) id: u64,
    /// The buffer.
    pub(crate) buffer: &'a wgpu::Buffer,
    /// Its first byte.
    pub(crate) at: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// The page of tables that it is a part of, if it is a table.
    pub(crate) page: Option<&'a Arc<Block>>,
}

impl<'a> View<'a> {
    /// Returns the whole of a block.
    pub(crate) fn of(block: &'a Block) -> Self {
        Self { id: block.id, buffer: &block.buffer, at: 0, bytes: block.buffer.size(), page: None }
    }

    /// Returns a part of a page of tables.
    pub(crate) fn of_page(page: &'a Arc<Block>, at: u64, bytes: u64) -> Self {
        Self { at, bytes, page: Some(page), ..Self::of(page) }
    }
}

/// What is bound: the kernel, and number and first byte of each buffer.
type Key = (Kernel, Vec<(u64, u64, u64)>);

/// Bind groups by what they bind.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    groups: HashMap<Key, (wgpu::BindGroup, u64)>,
    submissions: u64,
}

impl Bindings {
    /// Returns the bind group of these buffers, which follow each other from binding 0.
    pub(crate) fn group(
        &mut self,
        device: &wgpu::Device,
        memory: &Memory,
        (kernel, layout): (Kernel, &wgpu::BindGroupLayout),
        views: &[View<'_>],
    ) -> &wgpu::BindGroup {
        self.forget(&memory.take_dead());
        let key = (kernel, views.iter().map(|view| (view.id, view.at, view.bytes)).collect());
        let now = self.submissions;
        let entry = self.groups.entry(key).or_insert_with(|| {
            let entries = entries(views);
            let group = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
            (device.create_bind_group(&group), now)
        });
        entry.1 = now;
        &entry.0
    }

    /// To be called after a submission.
    pub(crate) fn submitted(&mut self) {
        self.submissions += 1;
        if self.submissions.is_multiple_of(KEPT_SUBMISSIONS) {
            let oldest = self.submissions - KEPT_SUBMISSIONS;
            self.groups.retain(|_, (_, used)| *used >= oldest);
        }
    }

    /// Drops what binds buffers that were given back, so that the driver can take back their memory.
    pub(crate) fn forget(&mut self, dead: &[u64]) {
        if !dead.is_empty() {
            self.groups.retain(|(_, parts), _| !parts.iter().any(|(id, ..)| dead.contains(id)));
        }
    }

    /// Drops all, so that the driver can take back the memory they hold.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }
}

/// Returns the entries of a bind group whose buffers follow each other from binding 0.
pub(crate) fn entries<'a>(views: &[View<'a>]) -> Vec<wgpu::BindGroupEntry<'a>> {
    let entry = |(i, view): (usize, &View<'a>)| {
        let size = std::num::NonZeroU64::new(view.bytes);
        let binding = wgpu::BufferBinding { buffer: view.buffer, offset: view.at, size };
        wgpu::BindGroupEntry { binding: i as u32, resource: wgpu::BindingResource::Buffer(binding) }
    };
    views.iter().enumerate().map(entry).collect()
}
