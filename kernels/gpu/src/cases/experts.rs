//! Cases of the kernels of a mixture: the choice of experts, products with those chosen, biases, sums.

use baton_kernels_cpu::matmul::matmul_at;
use baton_kernels_cpu::{
    Activations, Dispatch, ExpertGroups, Format, Gating, Matrix, Pool, Routing, add_assign, add_scaled,
};

use super::altered::Altered;
use super::blocks::weights;
use super::numbers::{FUNCTION_ERROR, on_both};
use super::probe::Probe;
use super::products::place_rounded;
use super::words::{floats, rounded, word};
use crate::device::{Buffer, PART_ALIGNMENT};
use crate::kernel::Kernel;
use crate::matrix::Quantized;
use crate::ops::{self, Chosen, Input};
use crate::stack::DeviceStack;

/// Runs all cases of a kernel of this module.
///
/// # Panics
/// If it is another kernel, or a result is not the expected one.
pub(super) fn check(probe: &mut Probe<'_>) {
    match probe.kernel {
        Kernel::Route => on_both(probe, check_routes),
        Kernel::MatVecChosen { format } => check_products(probe, format),
        Kernel::AddChosenBias => on_both(probe, check_bias),
        Kernel::AddChosen => on_both(probe, check_sums),
        kernel => unreachable!("{} is no kernel of a mixture", kernel.name()),
    }
}

/// How experts are chosen in a case of `count` of them.
fn routings(count: usize) -> Vec<Routing> {
    let plain =
        Routing { used: 2.min(count), gating: Gating::Softmax, normalized: true, scale: 1.0, groups: None };
    let mut all = vec![
        plain,
        Routing { used: count.min(17), gating: Gating::ChosenSoftmax, normalized: false, ..plain },
        Routing { used: 1, gating: Gating::ChosenSoftmax, ..plain },
        Routing { used: count.min(8), gating: Gating::Sigmoid, scale: 2.5, ..plain },
    ];
    if count.is_multiple_of(4) && count >= 8 {
        let groups = Some(ExpertGroups { count: 4, used: 2 });
        all.push(Routing { groups, used: count / 4, gating: Gating::Sigmoid, ..plain });
        all.push(Routing { groups: Some(ExpertGroups { count: 4, used: 3 }), normalized: false, ..plain });
    }
    all
}

/// Numbers of a router: of usual size, few different ones, all alike, beyond the range of the exponential,
/// with a fault.
fn router_numbers(probe: &mut Probe<'_>, count: usize) -> Vec<f32> {
    let mut x = probe.numbers(6 * count, 3.0);
    x[count..2 * count].iter_mut().for_each(|x| *x = x.round());
    x[2 * count..3 * count].fill(0.5);
    x[3 * count..4 * count].iter_mut().for_each(|x| *x *= 40.0);
    let at = probe.random.below(count);
    x[4 * count + at] = f32::NAN;
    x[5 * count + at] = f32::INFINITY;
    x[5 * count] = f32::NEG_INFINITY;
    x
}

/// Ids and factors of the tokens, as the kernel writes them.
fn routes(
    probe: &Probe<'_>,
    x: &[f32],
    count: usize,
    routing: &Routing,
    (bias, own): (&[f32], &[f32]),
) -> (Vec<u32>, Vec<f32>) {
    let t = x.len() / count;
    let placed = |numbers: &[f32]| (!numbers.is_empty()).then(|| probe.place(numbers));
    let (from, bias, own) = (probe.place(x), placed(bias), placed(own));
    let routes = ops::route(probe.device, &from, (t, count), routing, (bias.as_ref(), own.as_ref()));
    let words = 2 * t * routing.used;
    let mut bytes = vec![0; 4 * words];
    assert_eq!(probe.device.read(&routes, 0, &mut bytes), Ok(()), "{}", probe.kernel.name());
    probe.holds("x", &from, x);
    let ids = (0..words).step_by(2).map(|i| word(&bytes, i)).collect();
    let factors = floats(&bytes, 0..words).into_iter().skip(1).step_by(2).collect();
    (ids, factors)
}

/// Compares the experts of a token.
///
/// # Panics
/// At the first that differs.
fn same_ids(probe: &Probe<'_>, what: &str, got: &[u32], want: &[u32]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if got != want {
            probe.fail(what, i, *got as f32, *want as f32, "");
        }
    }
}

fn check_routes(probe: &mut Probe<'_>) {
    for count in [1, 3, 8, 16, 31, 128, 256, 260, 517] {
        for (i, routing) in routings(count).into_iter().enumerate() {
            probe.shape(format!("{count} experts, {routing:?}"));
            let x = router_numbers(probe, count);
            let [bias, own] =
                [i % 2 == 1, i % 3 == 2].map(|has| if has { probe.numbers(count, 0.3) } else { Vec::new() });
            let (ids, factors) = routes(probe, &x, count, &routing, (&bias, &own));
            for (row, numbers) in x.chunks(count).enumerate() {
                let want = baton_kernels_cpu::route(&mut numbers.to_vec(), &routing, &bias, &own);
                let place = row * routing.used..(row + 1) * routing.used;
                let chosen: Vec<u32> = want.iter().map(|(id, _)| *id as u32).collect();
                same_ids(probe, "ids", &ids[place.clone()], &chosen);
                let want: Vec<f32> = want.into_iter().map(|(_, factor)| factor).collect();
                probe.near("factors", &factors[place.clone()], &want, (routing.used, FUNCTION_ERROR));
                // A token has its experts and factors whatever others there are, bit for bit.
                let alone = routes(probe, numbers, count, &routing, (&bias, &own));
                same_ids(probe, "ids alone", &alone.0, &ids[place.clone()]);
                probe.equal("factors alone", &alone.1, &factors[place]);
            }
        }
    }
}

/// Returns ascending experts of each token, with factors.
fn some_routes(probe: &mut Probe<'_>, t: usize, used: usize, count: usize) -> (Vec<u32>, Buffer, Vec<f32>) {
    let mut ids = Vec::new();
    for _ in 0..t {
        let mut own = probe.random.permutation(count);
        own.truncate(used);
        own.sort_unstable();
        ids.extend(own.iter().map(|id| *id as u32));
    }
    let factors = probe.numbers(t * used, 2.0);
    let words: Vec<u32> = ids.iter().zip(&factors).flat_map(|(id, factor)| [*id, factor.to_bits()]).collect();
    let routes = probe.place_words(&words);
    (ids, routes, factors)
}

/// Experts of one matrix or two, and pairs with them.
struct Case {
    format: Format,
    count: usize,
    each: usize,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
    x: Vec<f32>,
    /// Pairs of an activation row.
    used: usize,
    ids: Vec<u32>,
    routes: Buffer,
}

impl Case {
    /// The matrix of a number.
    fn matrix(&self, number: usize) -> Matrix<'_> {
        let bytes = self.rows * self.format.row_bytes(self.cols).expect("whole blocks");
        Matrix::new(self.format, self.rows, self.cols, &self.data[number * bytes..(number + 1) * bytes])
            .expect("rows of whole blocks")
    }

    /// The product of each pair with matrix `at` of its expert.
    fn want(&self, at: usize) -> Vec<f32> {
        let mut want = Vec::new();
        for (pair, id) in self.ids.iter().enumerate() {
            let x = &self.x[pair / self.used * self.cols..][..self.cols];
            let mut y = vec![0.0; self.rows];
            let w = self.matrix(*id as usize * self.each + at);
            matmul_at(Dispatch::Scalar, &Pool::single(), &w, &Activations::new(x, self.cols), &mut y);
            want.extend(y);
        }
        want
    }

    /// Multiplies on the device, with each matrix of every pair's expert; also with one matrix by itself.
    /// There are `buffers` of weights.
    fn check(&self, probe: &Probe<'_>, buffers: usize) {
        let all = Matrix::new(self.format, self.count * self.each * self.rows, self.cols, &self.data);
        let stack = DeviceStack::new(probe.device, &all.expect("rows"), self.count * self.each);
        let stack = stack.expect("a binding holds a matrix");
        assert_eq!(stack.chunks.len(), buffers, "buffers of {}", probe.kernel.name());
        let (floats, bytes): (Buffer, Option<Quantized>) = match self.format.block_len() {
            1 => (probe.place(&self.x), None),
            block => (probe.blank(1), Some(place_rounded(probe, &rounded(&self.x, block)))),
        };
        let input = bytes.as_ref().map_or(Input::Floats(&floats), Input::Quantized);
        let pairs = self.ids.len();
        for at in 0..self.each {
            let out = probe.blank(pairs * self.rows);
            let chosen = Chosen { stack: &stack, each: self.each, at };
            ops::matmul_chosen(probe.device, chosen, (&self.routes, pairs, self.used), input, &out);
            probe.holds("out", &out, &self.want(at));
        }
        let number = (self.count - 1) * self.each;
        let one = stack.matrices().nth(number).expect("as many matrices as were given");
        let t = self.x.len() / self.cols;
        let out = probe.blank(t * self.rows);
        ops::matmul(probe.device, &one, input, t, &out);
        let mut want = vec![0.0; t * self.rows];
        let x = Activations::new(&self.x, self.cols);
        matmul_at(Dispatch::Scalar, &Pool::single(), &self.matrix(number), &x, &mut want);
        probe.holds("out of one", &out, &want);
    }
}

fn check_products(probe: &mut Probe<'_>, format: Format) {
    let (tile, block) = (probe.device.tiles().matvec_rows as usize, format.block_len());
    let [few, some, many] = match block {
        1 => [37, 64, 1057],
        32 => [96, 128, 1120],
        _ => [256, 768, 1280],
    };
    // Rows, columns, tokens, experts of a token, experts, matrices of an expert.
    for (i, (rows, cols, t, used, count, each)) in [
        (tile + 1, few, 1, 2, 4, 1),
        (2 * tile + 3, some, 3, 2, 3, 2),
        (1, block, 5, 1, 6, 1),
        (tile - 1, many, 2, 3, 3, 1),
    ]
    .into_iter()
    .filter(|(rows, ..)| *rows > 0)
    .enumerate()
    {
        probe.shape(format!("{t} tokens with {used} of {count} experts, {each} of {rows} rows of {cols}"));
        let data = weights(&mut probe.random, format, (count * each * rows, cols), i % 2 == 1);
        // The third case has an activation row for each pair.
        let x = probe.numbers(t * cols, 2.0);
        let (ids, routes, _) = some_routes(probe, t, used, count);
        let case = Case { format, count, each, rows, cols, data, x, used, ids, routes };
        case.check(probe, 1);
        // Buffers of one matrix, and of two; flat grids in three rows.
        let bytes = rows * format.row_bytes(cols).expect("whole blocks");
        let stride = (bytes as u64).next_multiple_of(PART_ALIGNMENT);
        for held in [1, 2] {
            let device = Altered::new(probe.device, held * stride + 3);
            let mut part = probe.on(&device);
            part.shape(format!("{t} tokens, {rows} rows of {cols}, in buffers of {held} matrices"));
            case.check(&part, (count * each).div_ceil(held as usize));
        }
    }
}

/// Tokens, experts of each, and widths with lengths around the edges of a workgroup.
fn pairs_of(probe: &Probe<'_>) -> Vec<(usize, usize, usize)> {
    let numbers = probe.device.tiles().numbers as usize;
    vec![(1, 1, 1), (1, 2, numbers + 1), (3, 4, 7), (5, 2, numbers / 2 + 1), (numbers + 1, 3, 1), (2, 8, 256)]
}

fn check_bias(probe: &mut Probe<'_>) {
    for (t, used, width) in pairs_of(probe) {
        probe.shape(format!("{t} tokens with {used} experts, {width} numbers"));
        let count = used + 3;
        let (ids, routes, _) = some_routes(probe, t, used, count);
        let (mut want, bias) = (probe.numbers(t * used * width, 2.0), probe.numbers(count * width, 2.0));
        let (x, from) = (probe.place(&want), probe.place(&bias));
        for (row, id) in want.chunks_mut(width).zip(&ids) {
            add_assign(row, &bias[*id as usize * width..][..width]);
        }
        ops::add_chosen_bias(probe.device, &x, &from, &routes, (t * used, width));
        probe.holds("x", &x, &want);
    }
}

fn check_sums(probe: &mut Probe<'_>) {
    for (t, used, width) in pairs_of(probe) {
        probe.shape(format!("{t} tokens with {used} experts, {width} numbers"));
        let (_, routes, factors) = some_routes(probe, t, used, used + 3);
        let (mut want, y) = (probe.numbers(t * width, 2.0), probe.numbers(t * used * width, 2.0));
        let (x, from) = (probe.place(&want), probe.place(&y));
        for (pair, (y, factor)) in y.chunks(width).zip(&factors).enumerate() {
            add_scaled(&mut want[pair / used * width..][..width], y, *factor);
        }
        ops::add_chosen(probe.device, &x, &from, (&routes, used), (t, width));
        probe.holds("x", &x, &want);
    }
}
