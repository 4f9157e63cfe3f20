//! Measures what the fixed order of additions costs, by which a result does not depend on the batch.
//!
//! Sums of products within a block are integers, whose order does not matter. Left is the order of the blocks
//! of a row, or of the columns of a row of floats. It binds only if few sums are computed at once, so one
//! activation row is multiplied. The matrices fit in the cache: in main memory, reading would hide any cost.

use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_kernels_cpu::matmul::{matmul_at, matmul_free_at};
use baton_kernels_cpu::{Activations, Dispatch, Format, Matrix, Pool, quantize_row};
use baton_pacing::refit::median;
use baton_random::SplitMix64;
use serde_json::json;

use super::{Args, machine};
use crate::report::Report;

const FORMATS: [Format; 3] = [Format::Q4K, Format::Q8_0, Format::F16];
const ROWS: usize = 512;
const COLS: usize = 2048;
/// Products in one measurement.
const PRODUCTS: usize = 200;
/// Measurements of each order within an alternation.
const TURNS: usize = 9;

/// Measures every level of this CPU and adds the table and the checks.
pub(super) fn measure(args: &Args, report: &mut Report) -> Result<()> {
    machine::bound_to_first_cpus(1)?;
    let pool = Pool::single();
    let mut random = SplitMix64::new(1);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.unit() as f32 - 0.5).collect() };
    let (weights, x) = (numbers(ROWS * COLS), numbers(COLS));
    let levels = Dispatch::ALL.into_iter().filter(|level| level.is_available() && *level != Dispatch::Scalar);
    let mut rows = Vec::new();
    for (level, format) in levels.flat_map(|level| FORMATS.map(|format| (level, format))) {
        let mut bytes = Vec::new();
        for row in weights.chunks_exact(COLS) {
            quantize_row(format, row, &mut bytes).context("make weights")?;
        }
        let matrix = Matrix::new(format, ROWS, COLS, &bytes).context("make a matrix")?;
        let x = Activations::new(&x, COLS);
        let mut out = [vec![0.0; ROWS], vec![0.0; ROWS]];
        let mut shares = Vec::new();
        for _ in 0..args.alternations() * TURNS {
            let [fixed_out, free_out] = &mut out;
            let time = |run: &mut dyn FnMut()| {
                let begun = Instant::now();
                (0..PRODUCTS).for_each(|_| run());
                begun.elapsed().as_secs_f64()
            };
            let fixed = time(&mut || matmul_at(level, &pool, &matrix, &x, fixed_out));
            let free = time(&mut || matmul_free_at(level, &pool, &matrix, &x, free_out));
            shares.push(fixed / free - 1.0);
        }
        // The same numbers, but for rounding: else the two would not do the same work.
        let near = out[0].iter().zip(&out[1]).all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs().max(1.0));
        anyhow::ensure!(near, "{} {format:?}: the orders give different numbers", level.name());
        let percent = 100.0 * median(shares).context("nothing was measured")?;
        let name = format!("{} {format:?}: % that the fixed order costs", level.name());
        report.check_at_most(&name, percent, 3.0);
        rows.push(vec![level.name().to_owned(), format!("{format:?}"), format!("{percent:+.2} %")]);
        report.data(&name, json!(percent));
    }
    let title = format!("fixed order of additions beside a free one, {ROWS} x {COLS}, one row, one thread");
    report.table(&title, &["level", "format", "cost"], &rows);
    Ok(())
}
