//! Cases of the kernels that pack keys and values, and open them.

use baton_kernels_cpu::f16::{f16_to_f32, f32_to_f16};

use super::altered::Altered;
use super::cache::{BLOCK, words_of};
use super::groups::Group;
use super::probe::Probe;
use super::words::word;
use crate::kernel::Kernel;
use crate::ops::{self, KvBuffers};
use crate::packed::{GROUP, PackedKv};

/// What packed blocks hold that nobody has written.
const UNDEFINED: u32 = 0xdead_beef;

/// Tokens, heads, dimensions.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 1, 32), (3, 1, 64), (33, 2, 32), (40, 3, 96), (5, 1, 128), (2, 4, 256), (3, 2, 576)];

/// A group of a slot: head, slot, number in the head.
type Place = (usize, usize, usize);

/// The words of a group's keys and of its values.
fn pairs(shape: (usize, usize), (head, slot, group): Place) -> [Vec<usize>; 2] {
    let word = |of: usize, pair: usize| words_of(shape, head, slot, group * GROUP + 2 * pair)[of];
    [0, 1].map(|of| (0..GROUP / 2).map(|pair| word(of, pair)).collect())
}

/// The packed words of a group.
fn packed_words(how: PackedKv, (heads, d): (usize, usize), (head, slot, group): Place) -> Vec<usize> {
    let run = (slot / BLOCK * heads + head) * (d / GROUP) + group;
    (0..how.words()).map(|at| (run * how.words() + at) * BLOCK + slot % BLOCK).collect()
}

fn group_at(words: &[u32], places: &[usize]) -> [u16; GROUP] {
    std::array::from_fn(|c| (words[places[c / 2]] >> (c % 2 * 16)) as u16)
}

fn put_group(words: &mut [u32], places: &[usize], halves: &[u16; GROUP]) {
    for (at, [low, high]) in places.iter().zip(halves.as_chunks().0) {
        words[*at] = u32::from(*low) | u32::from(*high) << 16;
    }
}

/// Returns random keys or values of blocks. Groups of all sizes are among them, and faults.
fn numbers(probe: &mut Probe<'_>, words: usize) -> Vec<u32> {
    let word = |probe: &mut Probe<'_>, size: f32| {
        let pair = probe.numbers(2, size).into_iter().map(f32_to_f16);
        pair.rev().fold(0, |word, half| word << 16 | u32::from(half))
    };
    let special = [0x8000_0000, 0xfc00_3c00, 0x7e01_3c00, 0x7bff_fbff, 0x0001_8001, 0x3800_bc00];
    (0..words)
        .map(|i| match probe.random.below(100) {
            at if at < special.len() => special[at],
            _ => word(probe, [1.0, 1e-4, 3e4, 7.5, 3e-7, 0.0][i / 7 % 6]),
        })
        .collect()
}

/// Compares words.
fn same(probe: &Probe<'_>, what: &str, got: &[u32], want: &[u32]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if got != want {
            probe.fail(what, i, f32::from_bits(*got), f32::from_bits(*want), " (words)");
        }
    }
}

fn read(probe: &Probe<'_>, buffer: &crate::Buffer, n: usize) -> Vec<u32> {
    let bytes = probe.bytes(buffer, n);
    (0..n).map(|i| word(&bytes, i)).collect()
}

/// All cases of [`Kernel::RoundKv`] and [`Kernel::PackKv`].
pub(super) fn check(probe: &mut Probe<'_>, how: PackedKv) {
    let altered = Altered::new(probe.device, probe.device.facts().binding_bytes);
    let (mut differing, mut total) = (0, 0);
    for part in [&mut probe.on(probe.device), &mut probe.on(&altered)] {
        for (tokens, heads, d) in SHAPES {
            part.shape(format!("{tokens} tokens of {heads} heads of {d}"));
            differing += packing(part, how, tokens, (heads, d));
            total += 2 * tokens * heads * d / GROUP;
        }
    }
    let (name, allowed) = (probe.kernel.name(), total / 20);
    assert!(differing <= allowed, "{name}: {differing} of {total} groups differ; at most {allowed}");
}

/// Packs slots. Returns how many groups are not those of the definition.
fn packing(probe: &mut Probe<'_>, how: PackedKv, tokens: usize, shape: (usize, usize)) -> usize {
    let (heads, d) = shape;
    let blocks = tokens.div_ceil(BLOCK) + 2;
    let n = blocks * BLOCK * heads * d / 2;
    let before = [numbers(probe, n), numbers(probe, n)];
    let kv =
        KvBuffers { keys: probe.place_words(&before[0]), values: probe.place_words(&before[1]), heads, d };
    let n_packed = blocks * (how.block_bytes(heads, d) / 4) as usize;
    let packed = probe.place_words(&vec![UNDEFINED; n_packed]);
    let slots: Vec<usize> = probe.random.permutation(blocks * BLOCK).into_iter().take(tokens).collect();
    // Rows of activations are not used.
    let places: Vec<u32> = slots.iter().flat_map(|slot| [u32::MAX, *slot as u32]).collect();
    let places = ops::table(probe.device, &places);
    let packs = matches!(probe.kernel, Kernel::PackKv(_));
    if packs {
        ops::pack_kv(probe.device, how, &kv, (&places, tokens), &packed);
    } else {
        ops::round_kv(probe.device, how, &kv, (&places, tokens));
    }
    let got = [read(probe, &kv.keys, n), read(probe, &kv.values, n)];
    let got_packed = read(probe, &packed, n_packed);
    let (mut want, mut want_packed, mut differing) = (before.clone(), vec![UNDEFINED; n_packed], 0);
    for place in places_of(&slots, shape) {
        let (of_pairs, of_packed) = (pairs(shape, place), packed_words(how, shape, place));
        let of_quants = [0, how.bits()].map(|first| &of_packed[first..first + how.bits()]);
        let of_scales = of_packed[2 * how.bits()];
        let mut scales = 0;
        for of in 0..2 {
            let have = group_at(&got[of], &of_pairs[of]);
            let mut group = Group::new(how, &group_at(&before[of], &of_pairs[of]));
            let left = group.open(how);
            if have != left {
                is_near(probe, how, &have, &left);
                differing += 1;
                // The device has a group of its own then, with the numbers that it left.
                let words = of_quants[of].iter().map(|at| got_packed[*at]).collect();
                group = Group { words, scale: (got_packed[of_scales] >> (16 * of)) as u16 };
                assert!(!packs || group.open(how) == have, "{}: packed numbers differ", probe.kernel.name());
            }
            put_group(&mut want[of], &of_pairs[of], &have);
            scales |= u32::from(group.scale) << (16 * of);
            of_quants[of].iter().zip(group.words).for_each(|(at, word)| want_packed[*at] = word);
        }
        want_packed[of_scales] = scales;
    }
    same(probe, "keys", &got[0], &want[0]);
    same(probe, "values", &got[1], &want[1]);
    if !packs {
        want_packed.fill(UNDEFINED);
    }
    same(probe, "packed", &got_packed, &want_packed);
    if packs {
        check_way_back(probe, how, (&packed, blocks), &kv, (&slots, &got));
    }
    differing
}

/// Returns the groups of slots.
fn places_of(slots: &[usize], (heads, d): (usize, usize)) -> Vec<Place> {
    let heads = slots.iter().flat_map(|slot| (0..heads).map(move |head| (head, *slot)));
    heads.flat_map(|(head, slot)| (0..d / GROUP).map(move |group| (head, slot, group))).collect()
}

/// Fails if a group is not within a step of the definition.
fn is_near(probe: &Probe<'_>, how: PackedKv, have: &[u16; GROUP], want: &[u16; GROUP]) {
    let (have, want) = (have.map(f16_to_f32), want.map(f16_to_f32));
    let top = want.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let step = 1.01 * top / (1 << (how.bits() - 1)) as f32 + 1e-7;
    for (i, (have, want)) in have.into_iter().zip(want).enumerate() {
        if !((have - want).abs() <= step || have.is_nan() && want.is_nan()) {
            probe.fail("a number of a group", i, have, want, "");
        }
    }
}

/// What was packed is opened to the bits that packing left.
fn check_way_back(
    probe: &Probe<'_>,
    how: PackedKv,
    (packed, blocks): (&crate::Buffer, usize),
    kv: &KvBuffers,
    (slots, left): (&[usize], &[Vec<u32>; 2]),
) {
    let n = left[0].len();
    let ids: Vec<u32> = (0..blocks as u32).collect();
    let [keys, values] = [0, 1].map(|_| probe.place_words(&vec![0; n]));
    let opened = KvBuffers { keys, values, ..kv.clone() };
    ops::unpack_kv(probe.device, how, packed, &ids, &opened);
    let got = [read(probe, &opened.keys, n), read(probe, &opened.values, n)];
    for place in places_of(slots, (kv.heads, kv.d)) {
        for (of, words) in pairs((kv.heads, kv.d), place).into_iter().enumerate() {
            let [got, want] =
                [&got[of], &left[of]].map(|all| words.iter().map(|at| all[*at]).collect::<Vec<_>>());
            same(probe, "opened again", &got, &want);
        }
    }
}

/// All cases of [`Kernel::UnpackKv`].
pub(super) fn check_opening(probe: &mut Probe<'_>, how: PackedKv) {
    let altered = Altered::new(probe.device, probe.device.facts().binding_bytes);
    for part in [&mut probe.on(probe.device), &mut probe.on(&altered)] {
        for (tokens, heads, d) in SHAPES {
            let blocks = tokens.div_ceil(BLOCK);
            part.shape(format!("{blocks} blocks of {heads} heads of {d}"));
            opening(part, how, blocks, (heads, d));
        }
    }
}

fn opening(probe: &mut Probe<'_>, how: PackedKv, some: usize, shape: (usize, usize)) {
    let (heads, d) = shape;
    let blocks = some + 2;
    let n = blocks * BLOCK * heads * d / 2;
    let n_packed = blocks * (how.block_bytes(heads, d) / 4) as usize;
    let mut words: Vec<u32> = (0..n_packed).map(|_| probe.random.next_u64() as u32).collect();
    let ids: Vec<u32> = probe.random.permutation(blocks).into_iter().take(some).map(|id| id as u32).collect();
    let slots: Vec<usize> =
        ids.iter().flat_map(|id| (0..BLOCK).map(move |token| *id as usize * BLOCK + token)).collect();
    let mut want = [numbers(probe, n), numbers(probe, n)];
    let kv = KvBuffers { keys: probe.place_words(&want[0]), values: probe.place_words(&want[1]), heads, d };
    for place in places_of(&slots, shape) {
        let of_packed = packed_words(how, shape, place);
        let of_scales = of_packed[2 * how.bits()];
        // Products stay within binary16. One scale in eight is a fault.
        let scale = |n: u32| if n & 0x7000 == 0x7000 { 0x7e00 } else { n & 0x8000 | (n % 0x5c00) };
        words[of_scales] = scale(words[of_scales] & 0xffff) | scale(words[of_scales] >> 16) << 16;
        for (of, places) in pairs(shape, place).into_iter().enumerate() {
            let quants = of_packed[of * how.bits()..][..how.bits()].iter().map(|at| words[*at]).collect();
            let group = Group { words: quants, scale: (words[of_scales] >> (16 * of)) as u16 };
            put_group(&mut want[of], &places, &group.open(how));
        }
    }
    ops::unpack_kv(probe.device, how, &probe.place_words(&words), &ids, &kv);
    same(probe, "keys", &read(probe, &kv.keys, n), &want[0]);
    same(probe, "values", &read(probe, &kv.values, n), &want[1]);
}
