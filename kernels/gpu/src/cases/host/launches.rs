//! The kernels of [`super::HostDevice`] but attention.

use std::ops::{Deref, DerefMut};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use baton_kernels_cpu::{
    Activations, Format, Matrix, Pool, RopeStyle, add_assign, geglu, matmul, rms_norm, scale, sigmoid,
    soft_cap, swiglu, swiglu_clamped,
};

use super::super::words::{Rounded, float, floats, index, put, put_floats, rounded, word};
use super::{TILES, attention, experts, joined, memory, packed};
use crate::device::Launch;
use crate::kernel::{JoinedAs, Kernel, MapOp, ZipOp};
use crate::ops::GROUPS_MAX;

/// The bytes of a buffer, or of a part of one.
pub(super) struct Held<G> {
    memory: G,
    at: usize,
}

impl<G: Deref<Target = Vec<u8>>> Deref for Held<G> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.at..]
    }
}

impl<G: DerefMut<Target = Vec<u8>>> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.at..]
    }
}

/// The buffers and numbers of a launch.
pub(super) struct Args<'a>(&'a Launch<'a>);

impl Args<'_> {
    /// Returns how many numbers there are.
    pub(super) fn numbers(&self) -> usize {
        self.0.params.len()
    }

    /// Returns number `i`.
    pub(super) fn number(&self, i: usize) -> usize {
        self.0.params[i] as usize
    }

    /// Returns number `i`, a float.
    pub(super) fn float(&self, i: usize) -> f32 {
        f32::from_bits(self.0.params[i])
    }

    /// Returns the workgroups of a dimension.
    pub(super) fn groups(&self, dimension: usize) -> usize {
        self.0.groups[dimension] as usize
    }

    /// Returns the workgroups in x and y.
    pub(super) fn flat(&self) -> usize {
        self.groups(0) * self.groups(1)
    }

    /// Returns the number of the kernel's numbers, as far as the workgroups cover them.
    pub(super) fn covered(&self) -> usize {
        self.number(0).min(self.flat() * TILES.numbers as usize)
    }

    /// Returns the bytes of a buffer that is read.
    pub(super) fn ro(&self, i: usize) -> Held<RwLockReadGuard<'_, Vec<u8>>> {
        let buffer = self.0.buffers[i];
        let memory = memory(buffer).try_read().expect("a buffer that a kernel writes is in the list once");
        Held { memory, at: buffer.at() as usize }
    }

    /// Returns the bytes of a buffer that is written.
    pub(super) fn rw(&self, i: usize) -> Held<RwLockWriteGuard<'_, Vec<u8>>> {
        let buffer = self.0.buffers[i];
        let memory = memory(buffer).try_write().expect("a buffer that a kernel writes is in the list once");
        Held { memory, at: buffer.at() as usize }
    }
}

/// Runs a launch.
///
/// # Panics
/// If the launch does not have the buffers and numbers of its kernel.
pub(super) fn run(pool: &Pool, launch: &Launch<'_>) {
    let (buffers, params) = expected(launch);
    let name = launch.kernel.name();
    assert_eq!(launch.buffers.len(), buffers, "buffers of {name}");
    assert_eq!(launch.params.len(), params, "numbers of {name}");
    assert!(launch.groups.iter().all(|n| (1..=GROUPS_MAX).contains(n)), "{:?} for {name}", launch.groups);
    let args = Args(launch);
    match launch.kernel {
        Kernel::Quantize { block } => quantize(&args, block as usize),
        Kernel::MatVec { format, tokens } | Kernel::MatVecFloat { format, tokens } => {
            let rows = args.flat() * TILES.matvec_rows as usize;
            product(pool, &args, format, (rows, args.groups(2) * tokens as usize));
        }
        Kernel::MatMul { format } | Kernel::MatMulFloat { format } => {
            let rows = args.groups(1) * TILES.matmul_rows as usize;
            product(pool, &args, format, (rows, args.groups(0) * TILES.matmul_tokens as usize));
        }
        Kernel::Route => experts::route(&args),
        Kernel::MatVecChosen { format } => experts::products(pool, &args, format),
        Kernel::AddChosenBias => experts::add_bias(&args),
        Kernel::AddChosen => experts::add(&args),
        Kernel::MatVecJoined { format, tokens, how } => {
            joined::products(pool, &args, format, args.groups(2) * tokens as usize, how);
        }
        Kernel::NormRounded { block } => joined::norm_rounded(&args, block as usize),
        Kernel::RopeAppend(style) => joined::rope_append(&args, style),
        Kernel::RmsNorm | Kernel::RmsNormInPlace => norms(&args, launch.kernel == Kernel::RmsNorm),
        Kernel::Best => best(&args),
        Kernel::Map(op) => map(&args, op),
        Kernel::Zip(op) => zip(&args, op),
        Kernel::AddBias | Kernel::ScaleRows => rows(&args, launch.kernel == Kernel::AddBias),
        Kernel::Copy | Kernel::Gather => copy(&args, launch.kernel == Kernel::Copy),
        Kernel::AddScaled => add_scaled(&args),
        Kernel::Rope(style) => rope(&args, style),
        Kernel::Append => append(&args),
        Kernel::Keep => keep(&args),
        Kernel::RoundKv(how) => packed::round(&args, how, false),
        Kernel::PackKv(how) => packed::round(&args, how, true),
        Kernel::UnpackKv(how) => packed::unpack(&args, how),
        Kernel::Attend(_) => attention::attend(&args),
        Kernel::AttendPart(_) => attention::attend_parts(&args),
        Kernel::AttendJoin(_) => attention::join(&args),
        Kernel::Score => attention::score(&args, args.covered()),
    }
}

/// Returns how many buffers and numbers a kernel has.
fn expected(launch: &Launch<'_>) -> (usize, usize) {
    match launch.kernel {
        Kernel::MatVecJoined { how: JoinedAs::Apart, .. } => {
            let n = launch.params.len().saturating_sub(2).clamp(2, 3);
            (2 * n + 3, n + 2)
        }
        Kernel::MatVecJoined { how: JoinedAs::Added, .. } => (5, 3),
        Kernel::MatVecJoined { how: JoinedAs::Gated(_), .. } => (6, 3),
        Kernel::Route => (5, 10),
        Kernel::MatVecChosen { format } => (if format.block_len() == 1 { 4 } else { 6 }, 9),
        Kernel::AddChosenBias => (3, 2),
        Kernel::AddChosen => (3, 3),
        Kernel::NormRounded { .. } => (6, 3),
        Kernel::RopeAppend(_) => (8, 6),
        Kernel::Quantize { .. } => (4, 1),
        Kernel::MatVec { .. } | Kernel::MatMul { .. } => (5, 5),
        Kernel::MatVecFloat { .. } | Kernel::MatMulFloat { .. } => (3, 5),
        Kernel::RmsNorm => (3, 3),
        Kernel::RmsNormInPlace => (2, 3),
        Kernel::Best => (2, 2),
        Kernel::Map(_) => (1, 2),
        Kernel::Zip(_) => (2, 1),
        Kernel::AddBias | Kernel::ScaleRows => (2, 2),
        Kernel::Copy => (2, 6),
        Kernel::Gather => (3, 2),
        Kernel::AddScaled => (4, 2),
        Kernel::Rope(_) => (3, 4),
        Kernel::Append => (5, 3),
        Kernel::Keep | Kernel::RoundKv(_) => (3, 3),
        Kernel::PackKv(_) | Kernel::UnpackKv(_) => (4, 3),
        Kernel::Attend(_) => (8, 10),
        Kernel::AttendPart(_) => (6, 11),
        Kernel::AttendJoin(_) => (5, 11),
        Kernel::Score => (5, 14),
    }
}

fn quantize(args: &Args<'_>, block: usize) {
    let n = args.number(0).min(args.flat());
    put_rounded(args, 1, &floats(&args.ro(0), 0..n * block), block);
}

/// Rounds numbers into the buffers `first` and the two behind it.
pub(super) fn put_rounded(args: &Args<'_>, first: usize, x: &[f32], block: usize) {
    let all = rounded(x, block);
    for (to, q) in args.rw(first).iter_mut().zip(&all.q) {
        *to = *q as u8;
    }
    put_floats(&mut args.rw(first + 1), 0, &all.scale);
    let mut sums = args.rw(first + 2);
    for (i, sum) in all.sums.iter().enumerate() {
        put(&mut sums, i, *sum as u32);
    }
}

fn product(pool: &Pool, args: &Args<'_>, format: Format, (rows_max, tokens_max): (usize, usize)) {
    let (cols, first, stride) = (args.number(1), args.number(3), args.number(4));
    let (rows, t) = (args.number(0).min(rows_max), args.number(2).min(tokens_max));
    let x = if format.block_len() == 1 {
        floats(&args.ro(1), 0..t * cols)
    } else {
        activations(args, 1, t * cols, format.block_len())
    };
    let all = products(pool, &args.ro(0), format, (rows, cols), &x);
    let mut out = args.rw(args.0.buffers.len() - 1);
    for (i, row) in all.chunks(rows.max(1)).enumerate() {
        put_floats(&mut out, i * stride + first, row);
    }
}

/// Reads rounded activations from the buffers `first` and the two behind it.
pub(super) fn activations(args: &Args<'_>, first: usize, numbers: usize, block: usize) -> Vec<f32> {
    let all = Rounded::read((&args.ro(first), &args.ro(first + 1)), numbers / block, block);
    let sums = args.ro(first + 2);
    let same = all.sums.iter().enumerate().all(|(i, sum)| word(&sums, i) == *sum as u32);
    assert!(same, "sums of activations that are not those of their bytes");
    all.restored()
}

/// Returns `x w^T`, `[t, rows]`.
pub(super) fn products(
    pool: &Pool,
    w: &[u8],
    format: Format,
    (rows, cols): (usize, usize),
    x: &[f32],
) -> Vec<f32> {
    let bytes = rows * format.row_bytes(cols).expect("columns of whole blocks");
    let w = Matrix::new(format, rows, cols, &w[..bytes]).expect("a matrix of as many bytes");
    let mut all = vec![0.0; x.len() / cols * rows];
    matmul(pool, &w, &Activations::new(x, cols), &mut all);
    all
}

pub(super) fn norms(args: &Args<'_>, apart: bool) {
    let (n, width, eps) = (args.number(0).min(args.flat()), args.number(1), args.float(2));
    let weight = floats(&args.ro(1), 0..width);
    let x = if apart { floats(&args.ro(0), 0..n * width) } else { floats(&args.rw(0), 0..n * width) };
    let mut out = vec![0.0; width];
    let mut to = args.rw(if apart { 2 } else { 0 });
    for (i, x) in x.chunks(width).enumerate() {
        rms_norm(x, &weight, eps, &mut out);
        put_floats(&mut to, i * width, &out);
    }
}

fn best(args: &Args<'_>) {
    let (n, width) = (args.number(0).min(args.flat()), args.number(1));
    let (x, mut out) = (args.ro(0), args.rw(1));
    for row in 0..n {
        let numbers = floats(&x, row * width..(row + 1) * width);
        let (mut best, mut fault) = (None, None);
        for (i, number) in numbers.iter().enumerate() {
            if !number.is_finite() {
                fault = fault.or(Some(i));
            } else if best.is_none_or(|best: usize| *number > numbers[best]) {
                best = Some(i);
            }
        }
        let bits = fault.map_or(0, |at| numbers[at].to_bits());
        let words = [best.unwrap_or(0) as u32, fault.map_or(u32::MAX, |at| at as u32), bits];
        words.into_iter().enumerate().for_each(|(i, word)| put(&mut out, 3 * row + i, word));
    }
}

fn map(args: &Args<'_>, op: MapOp) {
    let mut to = args.rw(0);
    let (mut x, a) = (floats(&to, 0..args.covered()), args.float(1));
    match op {
        MapOp::Scale => scale(&mut x, a),
        MapOp::SoftCap => soft_cap(&mut x, a),
        MapOp::Sigmoid => x.iter_mut().for_each(|x| *x = sigmoid(*x)),
    }
    put_floats(&mut to, 0, &x);
}

fn zip(args: &Args<'_>, op: ZipOp) {
    let mut to = args.rw(0);
    let mut x = floats(&to, 0..args.covered());
    let y = floats(&args.ro(1), 0..x.len());
    definition(op)(&mut x, &y);
    put_floats(&mut to, 0, &x);
}

/// Returns the scalar definition of an operation on pairs.
pub(super) fn definition(op: ZipOp) -> fn(&mut [f32], &[f32]) {
    match op {
        ZipOp::Add => add_assign,
        ZipOp::Swiglu => swiglu,
        ZipOp::Geglu => geglu,
        ZipOp::SwigluClamped => swiglu_clamped,
        ZipOp::GateBySigmoid => baton_kernels_cpu::gate_by_sigmoid,
    }
}

fn rows(args: &Args<'_>, bias: bool) {
    let (mut x, y, width) = (args.rw(0), args.ro(1), args.number(1));
    for i in 0..args.covered() {
        let (a, at) = (float(&x, i), if bias { i % width } else { i / width });
        let new = if bias { a + float(&y, at) } else { a * float(&y, at) };
        put(&mut x, i, new.to_bits());
    }
}

fn copy(args: &Args<'_>, groups: bool) {
    let x = args.ro(0);
    let mut out = args.rw(args.0.buffers.len() - 1);
    for i in 0..args.covered() {
        let width = args.number(1);
        let (g, j) = (i / width, i % width);
        let (from, to) = if groups {
            let [from, from_at, to, to_at] = [2, 3, 4, 5].map(|n| args.number(n));
            (g * from + from_at + j, g * to + to_at + j)
        } else {
            (index(&args.ro(1), g) * width + j, i)
        };
        put(&mut out, to, word(&x, from));
    }
}

fn add_scaled(args: &Args<'_>) {
    let (mut x, y, rows, factors, width) = (args.rw(0), args.ro(1), args.ro(2), args.ro(3), args.number(1));
    for i in 0..args.covered() {
        let at = index(&rows, i / width) * width + i % width;
        let product = float(&factors, i / width) * float(&y, i);
        let new = float(&x, at) + product;
        put(&mut x, at, new.to_bits());
    }
}

fn rope(args: &Args<'_>, style: RopeStyle) {
    let (mut x, cos, sin) = (args.rw(0), args.ro(1), args.ro(2));
    let [heads, d, half] = [1, 2, 3].map(|n| args.number(n));
    for i in 0..args.covered() {
        rotate(&mut x, (&cos, &sin), i, (heads, d, half), style);
    }
}

/// Rotates pair `i` of rows of heads.
pub(super) fn rotate(
    x: &mut [u8],
    (cos, sin): (&[u8], &[u8]),
    i: usize,
    (heads, d, half): (usize, usize, usize),
    style: RopeStyle,
) {
    let (head, pair) = (i / half, i % half);
    let (token, head) = (head / heads, head * d);
    let (cos, sin) = (float(cos, token * half + pair), float(sin, token * half + pair));
    let [a, b] = match style {
        RopeStyle::Adjacent => [head + 2 * pair, head + 2 * pair + 1],
        _ => [head + pair, head + half + pair],
    };
    let (low, high) = (float(x, a), float(x, b));
    put(x, a, (low * cos - high * sin).to_bits());
    put(x, b, (low * sin + high * cos).to_bits());
}

/// The words of keys and values that hold the dimensions `c` and `c + 1` of a slot.
pub(super) fn slot_words((heads, d): (usize, usize), head: usize, slot: usize, c: usize) -> [usize; 2] {
    let (head, slot) = (slot / 32 * heads + head, slot % 32);
    [(head * d / 2 + c / 2) * 32 + slot, (head * 32 + slot) * d / 2 + c / 2]
}

fn append(args: &Args<'_>) {
    let (k, v, places) = (args.ro(0), args.ro(1), args.ro(2));
    let (mut keys, mut values) = (args.rw(3), args.rw(4));
    let shape = (args.number(1), args.number(2));
    for i in 0..args.covered() {
        append_word((&mut keys, &mut values), (&k, &v, &places), i, shape);
    }
}

/// Writes word `i` of the rows of keys and values into their slots.
pub(super) fn append_word(
    (keys, values): (&mut [u8], &mut [u8]),
    (k, v, places): (&[u8], &[u8], &[u8]),
    i: usize,
    (heads, d): (usize, usize),
) {
    let half = |x: f32| u32::from(baton_kernels_cpu::f16::f32_to_f16(x));
    let (c, head) = (i % (d / 2) * 2, i / (d / 2) % heads);
    let place = i / (d / 2) / heads;
    let (row, slot) = (index(places, 2 * place), index(places, 2 * place + 1));
    let at = (row * heads + head) * d + c;
    let both = |x: &[u8]| half(float(x, at)) | half(float(x, at + 1)) << 16;
    let [key, value] = slot_words((heads, d), head, slot, c);
    put(keys, key, both(k));
    put(values, value, both(v));
}

fn keep(args: &Args<'_>) {
    let (mut keys, mut values, moves) = (args.rw(0), args.rw(1), args.ro(2));
    let (heads, d) = (args.number(1), args.number(2));
    for i in 0..args.covered() {
        let (c, at) = (i % (d / 2) * 2, i / (d / 2));
        let [head, from, to] = [0, 1, 2].map(|n| index(&moves, 3 * at + n));
        let (from, to) = (slot_words((heads, d), head, from, c), slot_words((heads, d), head, to, c));
        let (key, value) = (word(&keys, from[0]), word(&values, from[1]));
        put(&mut keys, to[0], key);
        put(&mut values, to[1], value);
    }
}
