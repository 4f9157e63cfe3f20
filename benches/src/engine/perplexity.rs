//! Compares the perplexity computed with the CPU's best instructions with that of the scalar code, which is
//! the reference.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use baton_synthetic::{Quant, SyntheticModel};
use serde_json::json;

use super::process::Worker;
use super::{Args, Subject};
use crate::report::Report;

const TOKENS: usize = 256;
const DEMO_MODEL: &str = "models/demo-cloud.gguf";
const DIFFERENCE_MAX_PERCENT: f64 = 0.1;

/// Measures both and adds the table and the checks.
pub(super) fn measure(args: &Args, target: &Path, report: &mut Report) -> Result<()> {
    let demo = Subject { name: "demo".to_owned(), path: PathBuf::from(DEMO_MODEL) };
    let random = Subject { name: "random".to_owned(), path: random_model(target)? };
    let mut rows = Vec::new();
    for subject in [demo, random] {
        let [best, scalar] = [None, Some("scalar")].map(|level| perplexity(args, &subject, level));
        let (best, scalar) = (best?, scalar?);
        let percent = 100.0 * (best / scalar - 1.0).abs();
        rows.push(vec![
            subject.name.clone(),
            format!("{best:.4}"),
            format!("{scalar:.4}"),
            format!("{percent:.4} %"),
        ]);
        report.data(&format!("{} perplexity", subject.name), json!({ "best": best, "scalar": scalar }));
        report.check_at_most(
            format!("{} model: perplexity, % from the scalar path", subject.name),
            percent,
            DIFFERENCE_MAX_PERCENT,
        );
    }
    let title = format!("perplexity of {TOKENS} tokens");
    report.table(&title, &["model", "best instructions", "scalar", "difference"], &rows);
    Ok(())
}

fn perplexity(args: &Args, subject: &Subject, level: Option<&str>) -> Result<f64> {
    let own = std::env::current_exe().context("find the running program")?;
    let mut command = Command::new(own);
    command.arg("engine-worker").arg(&subject.path);
    command.args(["--threads", &args.threads.to_string(), "--context", &TOKENS.to_string()]);
    match level {
        Some(level) => command.env("BATON_CPU", level),
        None => command.env_remove("BATON_CPU"),
    };
    Worker::start(&subject.name, &mut command)?.number(&format!("perplexity {TOKENS}"), "perplexity")
}

/// Makes a model in the formats of Q4_K_M. It is small, because the scalar code is slow.
fn random_model(target: &Path) -> Result<PathBuf> {
    let path = target.join("peers/random-small.gguf");
    let folder = path.parent().context("a file in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    SyntheticModel::small("llama", Quant::Q4KM, 1)
        .write_to(file, |_, _| ())
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
