//! Launches that pack keys and values, and open them.

use crate::device::{Buffer, Device};
use crate::kernel::Kernel;
use crate::packed::{GROUP, PackedKv};

use super::{KvBuffers, each, table};

/// Rounds the keys and values in the slots of `places`, a table of `[t, 2]` as that of [`super::append`].
pub fn round_kv(device: &dyn Device, how: PackedKv, kv: &KvBuffers, (places, t): (&Buffer, usize)) {
    let buffers = &[places, &kv.keys, &kv.values];
    each(device, Kernel::RoundKv(how), t * kv.heads * kv.d / GROUP, &shape(kv), buffers);
}

/// As [`round_kv`], and writes them to the same slots of `packed`.
pub fn pack_kv(
    device: &dyn Device,
    how: PackedKv,
    kv: &KvBuffers,
    (places, t): (&Buffer, usize),
    packed: &Buffer,
) {
    let buffers = &[places, &kv.keys, &kv.values, packed];
    each(device, Kernel::PackKv(how), t * kv.heads * kv.d / GROUP, &shape(kv), buffers);
}

/// Writes these blocks of `packed`, each named once, to the same blocks of `kv`.
pub fn unpack_kv(device: &dyn Device, how: PackedKv, packed: &Buffer, blocks: &[u32], kv: &KvBuffers) {
    let buffers = &[packed, &table(device, blocks), &kv.keys, &kv.values];
    each(device, Kernel::UnpackKv(how), blocks.len() * kv.heads * kv.d, &shape(kv), buffers);
}

fn shape(kv: &KvBuffers) -> [u32; 2] {
    [kv.heads as u32, kv.d as u32]
}
