//! Measures the memory that request bodies of every kind take: alone and four at once, plain and compressed.
//!
//! The real service runs as a process, once with the demo model and once with a model of a long context and
//! long tokens. With the latter, bodies may have the maximum length of any service. Each figure is the peak
//! memory of the process minus its memory before the request.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use baton_e2e::hostile::bodies::{BULKS, Bulk, PeakMemory, packed, reply};
use baton_e2e::process::{CloudProcess, models_folder};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use serde_json::json;
use tokio::task::JoinSet;

use crate::report::Report;

/// Maximum memory of one request besides its KV cache, and of four at once, in MiB.
const ALONE_MIB_MAX: f64 = 64.0;
const FOUR_MIB_MAX: f64 = 160.0;
/// Lengths of bodies. With the first, a schema is compiled; with the second, the number of values is allowed.
/// A service with the demo model reads the third completely. The last is the longest that any service reads.
const LENGTHS: [usize; 4] = [60 << 10, 160 << 10, 1 << 20, 24 << 20];
/// Context and longest token of the long model. Together they allow the longest text that a request may have.
const CONTEXT: u32 = 131_072;
const TOKEN_BYTES: u32 = 128;

/// The results for one kind of body.
#[derive(Debug)]
struct Taken {
    model: &'static str,
    kind: &'static str,
    alone_mib: f64,
    four_mib: f64,
    ms: f64,
}

/// Measures the memory and adds it to the report.
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

/// Makes a tiny model whose longest prompt has the maximum length of text that a service accepts.
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

/// Sends `count` of these requests at once. Returns the growth in MiB and the milliseconds.
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
