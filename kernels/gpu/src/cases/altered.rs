//! A device with a smaller limit on bindings, and flat grids in two dimensions.

use crate::device::{Buffer, Device, Facts, GpuError, Launch, Mark, Tiles};
use crate::kernel::Kernel;

/// Passes every call on to a device, with changes that no result may depend on.
#[derive(Debug)]
pub(super) struct Altered<'a> {
    inner: &'a dyn Device,
    facts: Facts,
    /// Whether the last workgroup of each launch is left out.
    is_short: bool,
}

impl<'a> Altered<'a> {
    /// States `binding_bytes` as the limit.
    pub(super) fn new(inner: &'a dyn Device, binding_bytes: u64) -> Self {
        let facts = Facts { binding_bytes, ..inner.facts().clone() };
        Self { inner, facts, is_short: false }
    }

    /// Leaves out the last workgroups of each launch: a fault that the cases must notice.
    #[cfg(test)]
    pub(super) fn without_a_workgroup(inner: &'a dyn Device) -> Self {
        Self { is_short: true, ..Self::new(inner, inner.facts().binding_bytes) }
    }
}

/// Whether a kernel flattens its workgroups to x and y.
fn is_flat(kernel: Kernel) -> bool {
    !matches!(
        kernel,
        Kernel::MatMul { .. }
            | Kernel::MatMulFloat { .. }
            | Kernel::Attend(_)
            | Kernel::AttendPart(_)
            | Kernel::AttendJoin(_)
    )
}

impl Device for Altered<'_> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        self.inner.tiles()
    }

    fn joins(&self) -> bool {
        self.inner.joins()
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        self.inner.alloc(bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.inner.upload(bytes)
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        self.inner.write(to, at, bytes);
    }

    fn clear(&self, buffer: &Buffer) {
        self.inner.clear(buffer);
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        self.inner.copy(from, from_at, to, to_at, bytes);
    }

    /// Spreads the workgroups of a flat grid over three rows. Up to two groups are then beyond the end.
    fn launch(&self, launch: &Launch<'_>) {
        let groups = match launch.groups {
            [1, 1, 1] if self.is_short => return,
            [1, 1, z] if self.is_short => [1, 1, z - 1],
            [1, y, z] if self.is_short => [1, y - 1, z],
            [x, y, z] if self.is_short => [x - 1, y, z],
            [x, y, z] if is_flat(launch.kernel) => [(x * y).div_ceil(3), 3, z],
            groups => groups,
        };
        self.inner.launch(&Launch { groups, ..*launch });
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.inner.read(from, at, out)
    }

    fn mark(&self) -> Mark {
        self.inner.mark()
    }

    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        self.inner.load(to, at, bytes, after)
    }

    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        self.inner.save(from, at, out, after)
    }

    fn wait(&self, mark: &Mark) {
        self.inner.wait(mark);
    }

    fn fault(&self) -> Option<GpuError> {
        self.inner.fault()
    }

    fn recover(&self) -> bool {
        self.inner.recover()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn used_bytes(&self) -> u64 {
        self.inner.used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn rounding_bytes(&self, bytes: u64) -> u64 {
        self.inner.rounding_bytes(bytes)
    }

    fn headroom_bytes(&self) -> u64 {
        self.inner.headroom_bytes()
    }
}
