//! The kernels of [`super::HostDevice`] that pack keys and values.

use super::super::groups::Group;
use super::super::words::{index, put, word};
use super::launches::{Args, slot_words};
use crate::packed::{GROUP, PackedKv};

/// Where a group of a token is, in one head.
struct Place {
    head: usize,
    group: usize,
    slot: usize,
}

impl Place {
    /// Returns the words of the keys and of the values.
    fn of_pairs(&self, shape: (usize, usize)) -> [Vec<usize>; 2] {
        let words =
            (0..GROUP).step_by(2).map(|c| slot_words(shape, self.head, self.slot, self.group * GROUP + c));
        let words: Vec<[usize; 2]> = words.collect();
        [0, 1].map(|of| words.iter().map(|both| both[of]).collect())
    }

    /// Returns the packed words.
    fn of_packed(&self, how: PackedKv, shape: (usize, usize)) -> Vec<usize> {
        let (first, n) = (self.group * how.words(), how.words());
        how.slot_words(shape, self.head, self.slot).skip(first).take(n).collect()
    }
}

/// Reads a group.
fn read(bytes: &[u8], words: &[usize]) -> [u16; GROUP] {
    std::array::from_fn(|c| (word(bytes, words[c / 2]) >> (c % 2 * 16)) as u16)
}

/// Writes a group.
fn write(bytes: &mut [u8], words: &[usize], halves: &[u16; GROUP]) {
    for (at, [low, high]) in words.iter().zip(halves.as_chunks().0) {
        put(bytes, *at, u32::from(*low) | u32::from(*high) << 16);
    }
}

/// Rounds the groups of slots, and packs them if there is a buffer for that.
pub(super) fn round(args: &Args<'_>, how: PackedKv, packs: bool) {
    let (places, mut keys, mut values) = (args.ro(0), args.rw(1), args.rw(2));
    let mut packed = packs.then(|| args.rw(3));
    let shape @ (heads, d) = (args.number(1), args.number(2));
    let groups = d / GROUP;
    for i in 0..args.covered() {
        let slot = index(&places, 2 * (i / groups / heads) + 1);
        let place = Place { head: i / groups % heads, group: i % groups, slot };
        let [of_keys, of_values] = place.of_pairs(shape);
        let [key, value] = [read(&keys, &of_keys), read(&values, &of_values)].map(|x| Group::new(how, &x));
        write(&mut keys, &of_keys, &key.open(how));
        write(&mut values, &of_values, &value.open(how));
        if let Some(packed) = &mut packed {
            let scales = u32::from(key.scale) | u32::from(value.scale) << 16;
            let words = key.words.iter().chain(&value.words).copied().chain([scales]);
            place.of_packed(how, shape).into_iter().zip(words).for_each(|(at, word)| put(packed, at, word));
        }
    }
}

/// Opens packed blocks.
pub(super) fn unpack(args: &Args<'_>, how: PackedKv) {
    let (packed, blocks) = (args.ro(0), args.ro(1));
    let (mut keys, mut values) = (args.rw(2), args.rw(3));
    let shape @ (heads, d) = (args.number(1), args.number(2));
    let groups = d / GROUP;
    for i in 0..args.covered() {
        let (run, token) = (i / GROUP, i % GROUP);
        let slot = index(&blocks, run / groups / heads) * GROUP + token;
        let place = Place { head: run / groups % heads, group: run % groups, slot };
        let words: Vec<u32> = place.of_packed(how, shape).into_iter().map(|at| word(&packed, at)).collect();
        let (integers, scales) = words.split_at(2 * how.bits());
        let (key, value) = integers.split_at(how.bits());
        let [of_keys, of_values] = place.of_pairs(shape);
        let open = |words: &[u32], scale: u32| Group { words: words.to_vec(), scale: scale as u16 }.open(how);
        write(&mut keys, &of_keys, &open(key, scales[0]));
        write(&mut values, &of_values, &open(value, scales[0] >> 16));
    }
}
