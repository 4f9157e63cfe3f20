//! `baton ring plan`: makes a plan from a description and explains every number.

use baton_terminal::{out, outln};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use baton_engine::engine::KvFormat;
use baton_plan::baselines::Baseline;
use baton_plan::explain::{Explanation, explain};
use baton_plan::halda::halda;
use baton_plan::{
    Cluster, Costs, DeviceTime, ModelShape, Plan, Prediction, SearchOptions, Workload, draw, search,
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::values::whole;
use crate::cli::{TOKENS_MAX, token_count};
use crate::machine::shape::shape_of;
use baton_ring::planning::explained;

/// Text below the options.
pub(super) const HELP: &str = "\
The description is JSON. Sizes are in bytes, times in seconds, rates per second:
  {\"devices\": [{\"name\": \"laptop\", \"os\": \"linux\",
     \"cpu\": {\"flops\": {\"Q4_K\": 2e11, \"Q6_K\": 1.6e11}, \"read_bytes_per_s\": 4e10},
     \"gpu\": {\"kind\": \"cuda\", \"processor\": {\"flops\": {...}, \"read_bytes_per_s\": 3.8e11}, \"memory_bytes\": 8e9, \"copy_s\": 2e-5},
     \"memory_bytes\": 4e9, \"disk\": {\"sequential_bytes_per_s\": 3e9, \"random_bytes_per_s\": 1e9}}],
   \"network\": {\"latency_s\": 0.005, \"bytes_per_s\": 5e7,
     \"edges\": [{\"from\": \"laptop\", \"to\": \"phone\", \"latency_s\": 0.003}]},
   \"head\": \"laptop\"}
`gpu`, `edges`, `head` and \"swap_bytes\", \"buffer_bytes\", \"weight_bytes_max\" of a device can be left out. `kind` is cuda (memory of its own), shared (the device's memory), or metal (the same, by prima.cpp's rules). If latency_s of an edge is null, there is no such edge.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Planner {
    /// Exact search for the shortest time per token; disk reads and computing overlap
    Exact,
    /// prima.cpp's Algorithm 1, solved by HiGHS
    Halda,
    /// Layers in proportion to memory
    Memsched,
    /// Layers in proportion to computing power
    Perfsched,
    /// Fill the fastest GPUs first
    FillGpus,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Description of devices and network (JSON)
    #[arg(long, value_name = "FILE")]
    devices: PathBuf,
    /// GGUF model to plan for
    #[arg(long, value_name = "FILE", required_unless_present = "shape")]
    model: Option<PathBuf>,
    /// Shape of a model instead of a file: the JSON object that --json prints under `model`
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    shape: Option<PathBuf>,
    /// Tokens in each sequence's KV cache
    #[arg(long, allow_negative_numbers = true, default_value_t = 2048, value_name = "N", value_parser = token_count)]
    context: usize,
    /// Number format of the KV cache, for --model: f32, f16, q8 or q4
    #[arg(long, default_value_t, value_name = "FORMAT")]
    kv: KvFormat,
    /// Number of sequences decoded together
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_name = "N", value_parser = whole::<usize>(1, TOKENS_MAX as u64))]
    sequences: usize,
    /// Planner to use
    #[arg(long, value_enum, default_value_t = Planner::Exact)]
    planner: Planner,
    /// Rounds per token [default: the best number] (exact only)
    #[arg(long, allow_negative_numbers = true, value_name = "K", value_parser = whole::<u8>(1, 16))]
    rounds: Option<u8>,
    /// Keep the description's order of devices (exact only)
    #[arg(long)]
    fixed_order: bool,
    /// Device that keeps text, embedding and output [default: the description's head, otherwise the best
    /// device]
    #[arg(long, value_name = "NAME")]
    head: Option<String>,
    /// Also draw the plan into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl PlanArgs {
    /// Returns an error for an option that the chosen planner does not use.
    pub(super) fn wrong(&self) -> Option<String> {
        let options = [("--rounds", self.rounds.is_some()), ("--fixed-order", self.fixed_order)];
        let (option, _) = options.into_iter().find(|(_, given)| *given && self.planner != Planner::Exact)?;
        Some(format!("{option} is for --planner exact"))
    }
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Answer {
    model: ModelShape,
    workload: Workload,
    plan: Plan,
    windows: Vec<baton_plan::Window>,
    prediction: Prediction,
    /// Only for plans of the exact search.
    explanation: Option<Explanation>,
}

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let mut cluster: Cluster = read(&args.devices)?;
    if let Some(head) = &args.head {
        cluster.head = Some(head.clone());
    }
    let model = match (&args.model, &args.shape) {
        (Some(file), _) => shape_of(file, args.kv)?,
        (None, Some(file)) => read(file)?,
        (None, None) => bail!("give --model FILE or --shape FILE"),
    };
    let workload = Workload { context: args.context, sequences: args.sequences };
    let answer = answer(args, &cluster, model, workload)?;
    if let Some(file) = &args.svg {
        let picture = draw::svg(&answer.plan, &answer.prediction);
        std::fs::write(file, picture).with_context(|| format!("write `{}`", file.display()))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string(&answer).context("write the plan")?)?;
    } else {
        out!("{}", text(&answer))?;
    }
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("read `{}` (see `baton ring plan --help`)", path.display()))
}

fn answer(
    args: &PlanArgs,
    cluster: &Cluster,
    model: ModelShape,
    workload: Workload,
) -> anyhow::Result<Answer> {
    let options = SearchOptions {
        rounds: args.rounds.map(usize::from),
        fixed_order: args.fixed_order,
        ..SearchOptions::default()
    };
    let costs = Costs::new(cluster, &model, workload)?;
    let mut explanation = None;
    let plan = match args.planner {
        Planner::Exact => {
            let plan = search(cluster, &model, workload, &options)?;
            explanation = Some(explain(cluster, &model, workload, &options, &plan)?);
            plan
        }
        Planner::Halda => halda(&costs)?.plan,
        Planner::Memsched => Baseline::MemSched.plan(&costs)?,
        Planner::Perfsched => Baseline::PerfSched.plan(&costs)?,
        Planner::FillGpus => Baseline::FillFastestGpusFirst.plan(&costs)?,
    };
    let prediction = costs.predict(&plan)?;
    let windows = plan.windows();
    Ok(Answer { workload, windows, plan, prediction, explanation, model: model.clone() })
}

/// Returns the number of columns to draw in.
fn columns() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    if std::io::stdout().is_terminal() { set.unwrap_or(100) } else { 100 }
}

fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

fn row(name: &str, layers: &str, time: &DeviceTime) -> String {
    let disk = if time.read_bytes > 0.0 {
        format!("{:.2} GB ({:.2} at least)", time.read_bytes / 1e9, time.overflow_bytes / 1e9)
    } else {
        String::new()
    };
    format!(
        "{name:<16} {layers:>14} {:>9} {:>9} {:>9} {:>9} {:>10}  {disk}\n",
        ms(time.compute_s),
        ms(time.memory_s),
        ms(time.disk_s),
        ms(time.network_s),
        ms(time.total_s())
    )
}

fn text(answer: &Answer) -> String {
    let Answer { model, plan, prediction, workload, .. } = answer;
    let mut out = format!(
        "{}: {} layers in {} round{} over {} device{}, {} tokens of context, {} sequence{}\n\n",
        model.name,
        plan.layers,
        plan.rounds,
        if plan.rounds == 1 { "" } else { "s" },
        plan.shares.len(),
        if plan.shares.len() == 1 { "" } else { "s" },
        workload.context,
        workload.sequences,
        if workload.sequences == 1 { "" } else { "s" },
    );
    let cache = model.cache_bytes(*workload);
    let (weights, cache) = ((model.held_bytes(*workload) - cache) / 1e9, cache / 1e9);
    out.truncate(out.len() - 1);
    out += &format!("{weights:.1} GB of weights, and {cache:.1} GB of KV cache with all of its context\n\n");
    out += &format!(
        "{:<16} {:>14} {:>9} {:>9} {:>9} {:>9} {:>10}  {}\n",
        "ms of a token", "layers (GPU)", "compute", "memory", "disk", "network", "all", "read from disk"
    );
    for (share, time) in plan.shares.iter().zip(&prediction.devices) {
        let layers = if share.gpu_layers > 0 {
            format!("{} ({})", share.layers, share.gpu_layers)
        } else {
            share.layers.to_string()
        };
        out += &row(&share.device, &layers, time);
        if time.loaded_layers > 0 {
            out += &format!("{:<16} {} are loaded to the GPU for each token\n", "", time.loaded_layers);
        }
        if !share.relays.is_empty() {
            out += &format!("{:<16} relayed on by {}\n", "", share.relays.join(", "));
        }
    }
    let token_s = prediction.token_s;
    out += &format!("\n{} ms a token, {:.2} tokens/s\n\n", ms(token_s), workload.sequences as f64 / token_s);
    out += &draw::text(plan, prediction, columns());
    out += "# GPU layers, = CPU layers, . waiting for the disk\n";
    if let Some(explanation) = &answer.explanation {
        out += &explained::lines(explanation, plan.rounds);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: PlanArgs,
    }

    fn data(name: &str) -> String {
        format!("{}/../shared/plan/data/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn planned(more: &[&str]) -> anyhow::Result<(Answer, String)> {
        let models: Vec<ModelShape> = read(Path::new(&data("paper-models.json")))?;
        let devices = data("paper-table-3.json");
        let line =
            ["plan", "--devices", &devices, "--shape", "unused"].into_iter().chain(more.iter().copied());
        let args = Line::try_parse_from(line)?.args;
        let cluster: Cluster = read(&args.devices)?;
        let workload = Workload { context: args.context, sequences: args.sequences };
        let answer = answer(&args, &cluster, models[6].clone(), workload)?;
        let text = text(&answer);
        Ok((answer, text))
    }

    #[test]
    fn a_plan_is_explained_in_full() {
        let (answer, text) = planned(&[]).unwrap();
        for share in &answer.plan.shares {
            assert!(text.contains(&share.device), "{text}");
        }
        for what in [
            "ms a token",
            "41.9 GB of weights, and 0.7 GB of KV cache",
            "Most of a token",
            "Rounds, ms",
            "Without D3",
            "With a second D2",
            "(chosen)",
        ] {
            assert!(text.contains(what), "{what}: {text}");
        }
        let sum: f64 = answer.prediction.devices.iter().map(DeviceTime::total_s).sum();
        assert!((sum - answer.prediction.token_s).abs() < 1e-9);
        assert!(answer.plan.is_whole());
    }

    #[test]
    fn planners_and_rounds_can_be_chosen_and_the_exact_one_is_no_worse() {
        let exact = planned(&[]).unwrap().0.prediction.token_s;
        for planner in ["halda", "memsched", "perfsched", "fill-gpus"] {
            let (answer, _) = match planned(&["--planner", planner]) {
                Err(error) if planner == "halda" && !cfg!(feature = "ilp") => {
                    assert!(error.to_string().contains("without HiGHS"), "{error:#}");
                    continue;
                }
                planned => planned.unwrap(),
            };
            assert!(answer.prediction.token_s >= exact && answer.explanation.is_none(), "{planner}");
        }
        let (answer, _) = planned(&["--rounds", "1"]).unwrap();
        assert!(answer.plan.rounds == 1 && answer.prediction.token_s >= exact);
        assert!(planned(&["--rounds", "17"]).is_err());
    }

    #[test]
    fn the_help_shows_a_description_that_can_be_read() {
        let begin = HELP.find('{').unwrap();
        let end = HELP.rfind("\"}").unwrap() + 2;
        let shown = HELP[begin..end].replace("{...}", "{}");
        let cluster: Cluster = serde_json::from_str(&shown).unwrap();
        assert_eq!((cluster.devices[0].name.as_str(), cluster.head.as_deref()), ("laptop", Some("laptop")));
    }

    #[test]
    fn a_missing_file_or_field_is_named() {
        let error = format!("{:#}", read::<Cluster>(Path::new("missing.json")).unwrap_err());
        assert!(error.contains("read `missing.json`"), "{error}");
        let error = serde_json::from_str::<Cluster>("{\"devices\": []}").unwrap_err().to_string();
        assert!(error.contains("network"), "{error}");
    }
}
