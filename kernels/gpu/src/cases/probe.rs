//! A kernel under test: random numbers, buffers with guards, and comparisons that say where they fail.

use std::fmt::Display;

use baton_random::SplitMix64;

use super::words::{bytes_of, floats, word};
use crate::device::{Buffer, Device};
use crate::kernel::Kernel;

/// What an output holds before a kernel runs, and what guards hold.
pub(super) const BLANK: f32 = -12_345.678;

/// Words after each buffer's own that no kernel may change.
const GUARD: usize = 5;

/// A kernel on a device, and the shape that is tried.
pub(super) struct Probe<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) kernel: Kernel,
    pub(super) random: SplitMix64,
    shape: String,
}

impl<'a> Probe<'a> {
    pub(super) fn new(device: &'a dyn Device, kernel: Kernel) -> Self {
        let seed = kernel.name().bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
        Self { device, kernel, random: SplitMix64::new(seed), shape: String::new() }
    }

    /// Returns the same on another device.
    pub(super) fn on<'b>(&self, device: &'b dyn Device) -> Probe<'b> {
        Probe { device, kernel: self.kernel, random: self.random.clone(), shape: self.shape.clone() }
    }

    /// Names the shape that follows.
    pub(super) fn shape(&mut self, shape: impl Display) {
        self.shape = shape.to_string();
    }

    /// Returns the sizes around the edges of a tile.
    pub(super) fn edges(tile: u32) -> Vec<usize> {
        let tile = tile as usize;
        let mut sizes = vec![1, tile - 1, tile, tile + 1, 2 * tile + 3];
        sizes.retain(|size| *size > 0);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns random numbers in `-largest..largest`.
    pub(super) fn numbers(&mut self, n: usize, largest: f32) -> Vec<f32> {
        (0..n).map(|_| (self.random.unit() * 2.0 - 1.0) as f32 * largest).collect()
    }

    /// Returns a buffer with these numbers and guards.
    pub(super) fn place(&self, numbers: &[f32]) -> Buffer {
        let mut bytes = bytes_of(numbers);
        bytes.extend(bytes_of(&[BLANK; GUARD]));
        let buffer = self.device.alloc(bytes.len() as u64);
        self.device.write(&buffer, 0, &bytes);
        buffer
    }

    /// Returns a buffer with these words and guards.
    pub(super) fn place_words(&self, words: &[u32]) -> Buffer {
        let same: Vec<f32> = words.iter().map(|word| f32::from_bits(*word)).collect();
        self.place(&same)
    }

    /// Returns a buffer whose numbers are to be written, with guards.
    pub(super) fn blank(&self, n: usize) -> Buffer {
        self.place(&vec![BLANK; n])
    }

    /// Reads the bytes of `n` words.
    ///
    /// # Panics
    /// If the device has a fault, or a guard has changed.
    pub(super) fn bytes(&self, buffer: &Buffer, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; 4 * (n + GUARD)];
        if let Err(fault) = self.device.read(buffer, 0, &mut bytes) {
            panic!("{}: {fault}", self.place_name());
        }
        for i in n..n + GUARD {
            let same = word(&bytes, i) == BLANK.to_bits();
            assert!(same, "{}: word {i} behind the buffer of {n} words was written", self.place_name());
        }
        bytes
    }

    /// Reads `n` numbers.
    ///
    /// # Panics
    /// As [`Self::bytes`].
    pub(super) fn read(&self, buffer: &Buffer, n: usize) -> Vec<f32> {
        floats(&self.bytes(buffer, n), 0..n)
    }

    fn place_name(&self) -> String {
        format!("{} on {}, {}", self.kernel.name(), self.device.facts().name, self.shape)
    }

    /// Fails at a number.
    pub(super) fn fail(&self, what: &str, i: usize, got: f32, want: f32, why: &str) -> ! {
        panic!(
            "{}: {what}[{i}] is {got:?} ({:#010x}), expected {want:?} ({:#010x}){why}",
            self.place_name(),
            got.to_bits(),
            want.to_bits()
        );
    }

    /// Compares numbers bit for bit; all NaNs are equal.
    ///
    /// # Panics
    /// At the first number that differs.
    pub(super) fn equal(&self, what: &str, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "{}: length of {what}", self.place_name());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            if got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan()) {
                self.fail(what, i, *got, *want, "");
            }
        }
    }

    /// Compares a whole buffer with these numbers bit for bit.
    ///
    /// # Panics
    /// As [`Self::equal`] and [`Self::bytes`].
    pub(super) fn holds(&self, what: &str, buffer: &Buffer, want: &[f32]) {
        self.equal(what, &self.read(buffer, want.len()), want);
    }

    /// Compares vectors of `width` numbers: errors are at most `limit` times the largest magnitude of the
    /// wanted vector. NaN and infinity stay what they are.
    ///
    /// # Panics
    /// At the number with the largest error, if that is too large.
    pub(super) fn near(&self, what: &str, got: &[f32], want: &[f32], (width, limit): (usize, f32)) {
        assert_eq!(got.len(), want.len(), "{}: length of {what}", self.place_name());
        for (v, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            let finite = want.iter().filter(|want| want.is_finite());
            let largest = finite.fold(f32::MIN_POSITIVE, |largest, want| largest.max(want.abs()));
            let error = |i: usize| match (got[i], want[i]) {
                (got, want) if want.is_nan() && got.is_nan() || got == want => 0.0,
                (got, want) => f64::from((got - want).abs()) / f64::from(largest),
            };
            let errors = (0..got.len()).map(error).map(|e| if e.is_nan() { f64::INFINITY } else { e });
            let worst = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0));
            if worst.1 > f64::from(limit) {
                let (at, error) = worst;
                let why = format!("; error {error:.2e} of the largest, {largest:?}; at most {limit:.0e}");
                self.fail(what, v * width + at, got[at], want[at], &why);
            }
        }
    }
}
