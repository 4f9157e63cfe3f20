//! Measures what hostile documents cost: memory of the process that reads one and of the agent, and the time
//! until it ends after its client has left.
//!
//! The real agent runs as a process. Each peak is the largest that was seen at one of five hundred looks a
//! second.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use baton_e2e::hostile::bodies::PeakMemory;
use baton_e2e::hostile::documents::{Document, breaking, endless, text_pdf};
use baton_e2e::hostile::readers::{Agent, Watch};
use baton_e2e::process::program;
use baton_pacing::refit::median;
use serde_json::json;

use crate::report::Report;

/// Maximum memory of the process that reads, and of the agent beside it, in MiB.
const CHILD_MIB_MAX: f64 = 256.0;
const AGENT_MIB_MAX: f64 = 64.0;
/// Maximum time in seconds from the end of a connection to the end of what was read for it.
const END_S_MAX: f64 = 1.0;
/// Maximum time in seconds of one reading on an idle machine: nine of computing, and the start and the end of
/// the process.
const READING_S_MAX: f64 = 10.0;
/// Number of clients that leave, and of sound documents.
const LEAVING: usize = 20;
const SOUND: usize = 40;

/// The cost of one document.
#[derive(Debug)]
struct Cost {
    name: String,
    child_mib: f64,
    agent_mib: f64,
    s: f64,
}

/// Measures and adds to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    let agent = Agent::start(&program("baton")?).await?;
    let sound = Document::new("rivers.pdf", text_pdf(&["Rivers are long and deep."]));
    let mut sound_ms = Vec::new();
    for _ in 0..SOUND {
        let begun = Instant::now();
        ensure!(agent.read(&sound).await?.status == 200, "a sound document is refused");
        sound_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let sound_ms = median(sound_ms).context("a document was read")?;
    let mut costs = Vec::new();
    for document in breaking().into_iter().map(|(document, _)| document).chain([endless()]) {
        costs.push(cost(&agent, document).await?);
    }
    let mut end_s = 0.0_f64;
    for _ in 0..LEAVING {
        let client = agent.begin(&endless()).await?;
        agent.children(1).await?;
        let begun = Instant::now();
        drop(client);
        agent.children(0).await?;
        end_s = end_s.max(begun.elapsed().as_secs_f64());
    }
    let rows: Vec<Vec<String>> = costs
        .iter()
        .map(|cost| {
            let figures = [cost.child_mib, cost.agent_mib, cost.s].map(|figure| format!("{figure:.1}"));
            [vec![cost.name.clone()], figures.to_vec()].concat()
        })
        .collect();
    let title = format!("documents that break their readers (a sound one takes {sound_ms:.0} ms)");
    report.table(&title, &["document", "child, MiB", "agent, MiB more", "reply, s"], &rows);
    let json = |cost: &Cost| json!({ "name": cost.name, "child_mib": cost.child_mib, "agent_mib": cost.agent_mib, "s": cost.s });
    report.data("documents", costs.iter().map(json).collect::<Vec<_>>());
    report.data("sound_document_ms", sound_ms);
    let worst = |of: fn(&Cost) -> f64| costs.iter().map(of).fold(0.0, f64::max);
    report.check_at_most("memory of a process that reads, MiB", worst(|cost| cost.child_mib), CHILD_MIB_MAX);
    report.check_at_most(
        "memory of the agent meanwhile, MiB more",
        worst(|cost| cost.agent_mib),
        AGENT_MIB_MAX,
    );
    report.check_at_most("longest reading, s", worst(|cost| cost.s), READING_S_MAX);
    report.check_at_most("end of a reading after its client left, s", end_s, END_S_MAX);
    Ok(())
}

async fn cost(agent: &Agent, document: Document) -> Result<Cost> {
    const MIB: f64 = (1 << 20) as f64;
    let pid = agent.process.pid()?;
    let memory = PeakMemory::of(pid)?;
    let watch = Watch::begin(pid);
    let begun = Instant::now();
    let told = agent.read(&document).await?;
    let s = begun.elapsed().as_secs_f64();
    ensure!(told.status == 400, "{}: {}", document.name, told.text);
    let (_, child) = watch.end()?;
    let agent_mib = memory.growth()? as f64 / MIB;
    Ok(Cost { name: document.name, child_mib: child as f64 / MIB, agent_mib, s })
}
