//! Keys and values on a device and on the host, and the cases of the kernels that write them.

use baton_kernels_cpu::f16::f32_to_f16;
use baton_kernels_cpu::{KvBlock, KvFormat, KvMemory, KvStore};

use super::altered::Altered;
use super::probe::Probe;
use super::words::word;
use crate::device::{Buffer, Device};
use crate::kernel::Kernel;
use crate::ops::{self, KvBuffers};

/// Tokens of a block.
pub(super) const BLOCK: usize = 32;

/// What slots hold that nobody has written: two NaNs.
const UNDEFINED: u32 = 0x7e01_7e01;

/// Returns buffers of `blocks` blocks of undefined keys and values.
pub(super) fn buffers(probe: &Probe<'_>, blocks: usize, (heads, d): (usize, usize)) -> KvBuffers {
    let words = vec![UNDEFINED; (KvBuffers::block_bytes(heads, d) / 4) as usize * blocks];
    KvBuffers { keys: probe.place_words(&words), values: probe.place_words(&words), heads, d }
}

/// The keys and values of a sequence on the host.
pub(super) struct Stored {
    stores: Vec<KvStore>,
    keys: usize,
}

impl Stored {
    /// Stores the rows of `k` and `v`, `[keys, heads d]`.
    pub(super) fn new(k: &[f32], v: &[f32], (heads, d): (usize, usize)) -> Self {
        let memory = KvMemory::default();
        let keys = k.len() / (heads * d);
        let mut stores: Vec<KvStore> =
            (0..keys.div_ceil(BLOCK)).map(|_| KvStore::new(KvFormat::F16, d, heads, &memory)).collect();
        for (i, (k, v)) in k.chunks(d).zip(v.chunks(d)).enumerate() {
            let (key, head) = (i / heads, i % heads);
            stores[key / BLOCK].write(head, key % BLOCK, k, v);
        }
        Self { stores, keys }
    }

    /// Returns the blocks of a head.
    pub(super) fn blocks(&self, head: usize) -> Vec<KvBlock<'_>> {
        let n = |i: usize| BLOCK.min(self.keys - i * BLOCK);
        self.stores.iter().enumerate().map(|(i, store)| store.block(head, n(i), i * BLOCK)).collect()
    }
}

/// The words of keys and values that hold the dimensions `c` and `c + 1` of a slot.
pub(super) fn words_of((heads, d): (usize, usize), head: usize, slot: usize, c: usize) -> [usize; 2] {
    let (block, token) = (slot / BLOCK, slot % BLOCK);
    [
        ((block * heads + head) * d / 2 + c / 2) * BLOCK + token,
        ((block * heads + head) * BLOCK + token) * d / 2 + c / 2,
    ]
}

/// Compares a buffer of binary16 pairs; all NaNs are equal.
fn compare(probe: &Probe<'_>, what: &str, got: &[u8], want: &[u32]) {
    let is_nan = |half: u32| half & 0x7fff > 0x7c00;
    for (i, want) in want.iter().enumerate() {
        let got = word(got, i);
        for shift in [0, 16] {
            let (got, want) = (got >> shift & 0xffff, want >> shift & 0xffff);
            if got != want && !(is_nan(got) && is_nan(want)) {
                let value = |half: u32| baton_kernels_cpu::f16::f16_to_f32(half as u16);
                probe.fail(what, 2 * i + shift / 16, value(got), value(want), " (halves of words)");
            }
        }
    }
}

/// All cases of [`Kernel::Append`] and [`Kernel::Keep`].
pub(super) fn check(probe: &mut Probe<'_>) {
    let altered = Altered::new(probe.device, probe.device.facts().binding_bytes);
    for part in [&mut probe.on(probe.device), &mut probe.on(&altered)] {
        for (tokens, heads, d) in [
            (1, 1, 2),
            (3, 1, 64),
            (33, 2, 16),
            (40, 3, 80),
            (7, 2, 96),
            (5, 1, 128),
            (2, 4, 256),
            (3, 2, 576),
        ] {
            part.shape(format!("{tokens} tokens of {heads} heads of {d}"));
            if part.kernel == Kernel::Append {
                check_append(part, tokens, (heads, d));
            } else {
                check_keep(part, tokens, (heads, d));
            }
        }
    }
}

fn check_append(probe: &mut Probe<'_>, tokens: usize, (heads, d): (usize, usize)) {
    let (blocks, rows) = (tokens.div_ceil(BLOCK) + 2, tokens + 2);
    let width = heads * d;
    let (mut k, mut v) = (probe.numbers(rows * width, 4.0), probe.numbers(rows * width, 1e-6));
    // Midpoints, the ends of the range of binary16, and faults.
    let special =
        [1.000_488_3, 1.001_464_8, 65_519.0, 65_520.0, -1e9, 1e-30, -0.0, 2.98e-8, f32::NAN, f32::INFINITY];
    for (i, number) in special.iter().enumerate() {
        k[i % (rows * width)] = *number;
        v[(3 * width + i) % (rows * width)] = *number;
    }
    let (from, slots) = (probe.random.permutation(rows), probe.random.permutation(blocks * BLOCK));
    let places: Vec<(usize, usize)> = from.into_iter().zip(slots).take(tokens).collect();
    let kv = buffers(probe, blocks, (heads, d));
    let mut want = [vec![UNDEFINED; blocks * BLOCK * width / 2], vec![UNDEFINED; blocks * BLOCK * width / 2]];
    for (row, slot) in &places {
        for (head, c) in (0..heads).flat_map(|head| (0..d).step_by(2).map(move |c| (head, c))) {
            let at = row * width + head * d + c;
            let word = |x: &[f32]| u32::from(f32_to_f16(x[at])) | u32::from(f32_to_f16(x[at + 1])) << 16;
            let [key, value] = words_of((heads, d), head, *slot, c);
            (want[0][key], want[1][value]) = (word(&k), word(&v));
        }
    }
    append(probe.device, &kv, (&probe.place(&k), &probe.place(&v)), &places);
    compare(probe, "keys", &probe.bytes(&kv.keys, want[0].len()), &want[0]);
    compare(probe, "values", &probe.bytes(&kv.values, want[1].len()), &want[1]);
}

fn check_keep(probe: &mut Probe<'_>, tokens: usize, (heads, d): (usize, usize)) {
    let blocks = 2 * tokens.div_ceil(BLOCK) + 1;
    let n = blocks * BLOCK * heads * d / 2;
    let mut want = [0, 1].map(|_| (0..n).map(|_| probe.random.next_u64() as u32).collect::<Vec<_>>());
    let kv = KvBuffers { keys: probe.place_words(&want[0]), values: probe.place_words(&want[1]), heads, d };
    let slots = probe.random.permutation(blocks * BLOCK);
    let moves: Vec<(usize, usize, usize)> = slots
        .chunks_exact(2)
        .take(tokens)
        .map(|pair| (probe.random.below(heads), pair[0], pair[1]))
        .collect();
    for (head, from, to) in &moves {
        for c in (0..d).step_by(2) {
            let (from, to) = (words_of((heads, d), *head, *from, c), words_of((heads, d), *head, *to, c));
            (want[0][to[0]], want[1][to[1]]) = (want[0][from[0]], want[1][from[1]]);
        }
    }
    ops::keep(probe.device, &kv, &moves);
    compare(probe, "keys", &probe.bytes(&kv.keys, n), &want[0]);
    compare(probe, "values", &probe.bytes(&kv.values, n), &want[1]);
}

/// Appends rows of keys and values: `(row, slot)` each.
pub(super) fn append(device: &dyn Device, kv: &KvBuffers, of: (&Buffer, &Buffer), places: &[(usize, usize)]) {
    let list: Vec<u32> = places.iter().flat_map(|(row, slot)| [*row as u32, *slot as u32]).collect();
    ops::append(device, kv, of, (&ops::table(device, &list), places.len()));
}
