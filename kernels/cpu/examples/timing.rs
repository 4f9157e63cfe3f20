//! Prints how fast the kernels run on this machine: products of every format for a prompt chunk and for one token,
//! and attention. Usage: `cargo run --release -p baton-kernels-cpu --example timing [FORMAT [TOKENS [ROWS]]]`, level by
//! `BATON_CPU`, threads by `THREADS` (1).

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use baton_kernels_cpu::{
    Activations, Dispatch, Format, KvBlock, KvFormat, KvMemory, KvStore, Matrix, Pool, Queries, RowLayout,
    Visible, attend_rows, matmul, quantize_row,
};

/// The fastest of several runs.
fn fastest(mut run: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
    }
    best
}

fn products(
    pool: &Pool,
    format: Format,
    rows: usize,
    cols: usize,
    only: Option<usize>,
) -> Result<(), Box<dyn Error>> {
    let row: Vec<f32> = (0..cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut bytes = Vec::new();
    quantize_row(format, &row, &mut bytes)?;
    let data = bytes.repeat(rows);
    let w = Matrix::new(format, rows, cols, &data)?;
    let repacked = w.repack();
    let beside = Matrix::repacked(format, rows, cols, &repacked)?;
    for t in [1, 4, 8, 16, 32, 512].into_iter().filter(|t| only.is_none_or(|only| only == *t)) {
        let x: Vec<f32> = (0..t * cols).map(|i| (i as f32 * 0.11).cos()).collect();
        let mut out = vec![0.0; t * rows];
        for (w, layout) in [(&w, ""), (&beside, ", repacked")] {
            let time = fastest(|| matmul(pool, w, &Activations::new(&x, cols), &mut out)).as_secs_f64();
            let gops = 2.0 * (rows * cols * t) as f64 / time / 1e9;
            let gb = data.len() as f64 / time / 1e9;
            println!(
                "{:>5} [{rows}, {cols}] x {t:>3}: {gops:>7.1} Gop/s, weights at {gb:>5.1} GB/s{layout}",
                format.name()
            );
        }
    }
    Ok(())
}

fn attention(format: KvFormat, tokens: usize, heads: usize, d: usize, keys: usize) {
    let k: Vec<f32> = (0..keys * d).map(|i| (i as f32 * 0.7).sin()).collect();
    let memory = KvMemory::default();
    let mut stores: Vec<KvStore> = (0..keys / 32).map(|_| KvStore::new(format, d, 1, &memory)).collect();
    for (i, k) in k.chunks_exact(d).enumerate() {
        stores[i / 32].write(0, i % 32, k, k);
    }
    let blocks: Vec<KvBlock<'_>> = (0..keys / 32).map(|i| stores[i].block(0, 32, 32 * i)).collect();
    let rows = RowLayout { tokens, heads, d, stride: heads * d };
    let q: Vec<f32> = (0..tokens * heads * d).map(|i| (i as f32 * 0.3).cos()).collect();
    let queries = Queries { q: &q, rows, visible: Visible::causal(keys - tokens), scale: 0.1 };
    let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; tokens * heads]);
    let time = fastest(|| attend_rows(&queries, &blocks, &mut out, &mut lse)).as_secs_f64();
    let gops = 4.0 * (tokens * heads * d * keys) as f64 / time / 1e9;
    let gb = (keys * format.token_bytes(d)) as f64 / time / 1e9;
    println!(
        "attention {format:?} {tokens} x {heads} rows of {d}, {keys} keys: {gops:.1} Gop/s, cache at {gb:.1} GB/s"
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let threads = std::env::var("THREADS").ok().and_then(|threads| threads.parse().ok());
    let pool = Pool::new(threads.unwrap_or(NonZeroUsize::MIN))?;
    println!("level {:?}, {} threads", Dispatch::current(), pool.threads());
    let mut args = std::env::args().skip(1);
    let format = args.next();
    let tokens = args.next().and_then(|tokens| tokens.parse().ok());
    let rows = args.next().and_then(|rows| rows.parse().ok()).unwrap_or(4_096);
    for wanted in Format::ALL.into_iter().filter(|f| format.as_deref().is_none_or(|name| name == f.name())) {
        products(&pool, wanted, rows, 2_048, tokens)?;
        // Small enough to end before another program takes the core.
        products(&pool, wanted, 256, 256, tokens)?;
    }
    if format.is_some_and(|name| name != "attention") {
        return Ok(());
    }
    for (tokens, heads, d) in [(1, 1, 64), (1, 4, 64), (32, 1, 64), (32, 4, 128), (32, 1, 32)] {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8] {
            attention(format, tokens, heads, d, 2_048);
        }
    }
    Ok(())
}
