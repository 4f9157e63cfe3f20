//! What request bodies of every kind take in memory: alone and four at once, plain and packed.
//!
//! The real service as a process, once with the demo model and once with one of a long context and long tokens, whose
//! bodies may be as long as the service reads at all. Each figure is the growth of the process at its worst moment over
//! what it took before the body came.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use baton_e2e::hostile::bodies::{BULKS, Bulk, PeakMemory, packed, reply};
use baton_e2e::process::{CloudProcess, models_folder};
use baton_engine::synthetic::SyntheticModel;
use baton_kernels_cpu::Format;
use serde_json::json;
use tokio::task::JoinSet;

use crate::report::Report;

/// What one request may take beyond its KV, and four at once, in MiB.
const ALONE_MIB_MAX: f64 = 64.0;
const FOUR_MIB_MAX: f64 = 160.0;
/// Lengths of bodies: one whose schema is compiled, one whose values are not too many, one that a service with the demo
/// model reads whole, and the longest that any service reads.
const LENGTHS: [usize; 4] = [60 << 10, 160 << 10, 1 << 20, 24 << 20];
/// The long model's context and longest token: together the longest text that a request may have.
const CONTEXT: u32 = 131_072;
const TOKEN_BYTES: u32 = 128;

/// What one kind of body took.
#[derive(Debug)]
struct Taken {
    model: &'static str,
    kind: &'static str,
    alone_mib: f64,
    four_mib: f64,
    ms: f64,
}

/// Measures and adds to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let long = folder.path().join("long.gguf");
    std::fs::write(&long, long_model()?).context("write the model")?;
    let mut taken = measure("demo", &models_folder().join("demo-cloud.gguf")).await?;
    taken.extend(measure("long context", &long).await?);
    let rows: Vec<Vec<String>> = taken
        .iter()
        .map(|one| {
            let [alone, four, ms] =
                [one.alone_mib, one.four_mib, one.ms].map(|figure| format!("{figure:.1}"));
            vec![one.model.to_owned(), one.kind.to_owned(), alone, four, ms]
        })
        .collect();
    report.table(
        "memory that a body takes at its worst moment, MiB, and the slowest reply, ms",
        &["model", "body", "alone", "four at once", "reply"],
        &rows,
    );
    let json = |one: &Taken| {
        json!({
            "model": one.model, "body": one.kind, "alone_mib": one.alone_mib, "four_mib": one.four_mib, "ms": one.ms,
        })
    };
    report.data("memory", taken.iter().map(json).collect::<Vec<_>>());
    let worst = |of: fn(&Taken) -> f64| taken.iter().map(of).fold(0.0, f64::max);
    report.check_at_most("memory of one request, MiB", worst(|one| one.alone_mib), ALONE_MIB_MAX);
    report.check_at_most("memory of four requests at once, MiB", worst(|one| one.four_mib), FOUR_MIB_MAX);
    Ok(())
}

/// A tiny model whose longest prompt has as much text as the service takes at all.
fn long_model() -> Result<Vec<u8>> {
    let model = SyntheticModel {
        n_layers: 1,
        n_heads: 4,
        n_kv_heads: 1,
        d_model: 64,
        d_head: 16,
        d_ff: 96,
        context_len: CONTEXT,
        long_token_bytes: TOKEN_BYTES,
        ..SyntheticModel::small("llama", Format::F32, 7)
    };
    model.to_gguf().context("make the model")
}

async fn measure(model: &'static str, path: &Path) -> Result<Vec<Taken>> {
    let cloud = CloudProcess::start(path, &[]).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let mut memory = PeakMemory::of(cloud.pid()?)?;
    let mut taken = Vec::new();
    for bulk in &BULKS {
        let bodies: Vec<Vec<u8>> = LENGTHS.iter().map(|&bytes| bulk.body(bytes)).collect();
        let (mut alone, mut four, mut ms) = (0.0_f64, 0.0_f64, 0.0_f64);
        for (body, gzip) in bodies
            .iter()
            .map(|body| (body.clone(), false))
            .chain(bodies.iter().map(|body| (packed(body), true)))
        {
            let one = send(server, &mut memory, bulk, &body, gzip, 1).await?;
            alone = alone.max(one.0);
            ms = ms.max(one.1);
            four = four.max(send(server, &mut memory, bulk, &body, gzip, 4).await?.0);
        }
        taken.push(Taken { model, kind: bulk.name, alone_mib: alone, four_mib: four, ms });
        eprintln!("{model}: {}", bulk.name);
    }
    Ok(taken)
}

/// Growth in MiB and milliseconds of so many of these requests at once.
async fn send(
    server: SocketAddr,
    memory: &mut PeakMemory,
    bulk: &Bulk,
    body: &[u8],
    gzip: bool,
    count: usize,
) -> Result<(f64, f64)> {
    memory.forget()?;
    let begun = std::time::Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..count {
        let (path, body) = (bulk.path, body.to_vec());
        all.spawn(async move { reply(server, path, &body, gzip).await });
    }
    while let Some(told) = all.join_next().await {
        let told = told.context("a client's task")??;
        ensure!(told.status < 500, "{}: {}", bulk.name, told.text);
    }
    Ok((memory.growth()? as f64 / f64::from(1 << 20), begun.elapsed().as_secs_f64() * 1e3))
}
