//! Plans for the devices of prima.cpp's Table 3, with models of the sizes in its Table 4. The search is
//! compared with Halda and with exo's split in proportion to memory.

use anyhow::{Context as _, Result};
use baton_plan::baselines::Baseline;
use baton_plan::halda::halda;
use baton_plan::{Cluster, Costs, ModelShape, Plan, Prediction, SearchOptions, Workload, search};
use serde_json::json;

use crate::report::Report;

const DEVICES: &str = include_str!("../../../shared/plan/data/paper-table-3.json");
const MODELS: &str = include_str!("../../../shared/plan/data/paper-models.json");
/// The devices that the paper used for its Table 4.
const USED: [&str; 4] = ["D1", "D2", "D3", "D4"];
/// Tokens of context. The paper does not state its context; its times to the first token fit a prompt of a
/// few tokens.
const CONTEXT: usize = 512;
/// Contexts for which the order of the models is checked.
const CONTEXTS: [usize; 4] = [128, 512, 2048, 4096];
/// Maximum difference between a prediction and the paper's time, in percent. The rates of processors are
/// assumed.
const OFF_MAX: f64 = 35.0;
/// The paper's measured times of a token in ms: with Halda, and split by memory.
const TABLE_4: [(f64, f64); 7] = [
    (15.0, 78.0),
    (20.0, 131.0),
    (72.0, 258.0),
    (233.0, 409.0),
    (468.0, 7053.0),
    (569.0, 12253.0),
    (674.0, 20848.0),
];

/// Plans all sizes and adds the table and its checks.
pub(super) fn table_3(report: &mut Report) -> Result<()> {
    let whole: Cluster = serde_json::from_str(DEVICES).context("read paper-table-3.json")?;
    let models: Vec<ModelShape> = serde_json::from_str(MODELS).context("read paper-models.json")?;
    let unused: Vec<String> = whole
        .devices
        .iter()
        .map(|device| device.name.clone())
        .filter(|name| !USED.contains(&name.as_str()))
        .collect();
    let cluster = unused.iter().fold(whole, |cluster, name| cluster.without(name));
    let workload = Workload { context: CONTEXT, sequences: 1 };
    let (mut rows, mut worse, mut off) = (Vec::new(), f64::INFINITY, 0.0_f64);
    for (model, (paper_ms, paper_memory_ms)) in models.iter().zip(TABLE_4) {
        let costs = Costs::new(&cluster, model, workload)?;
        let plan = search(&cluster, model, workload, &SearchOptions::default())?;
        let prediction = costs.predict(&plan)?;
        let by_memory = Baseline::MemSched.plan(&costs).and_then(|plan| costs.predict(&plan));
        let by_halda = halda(&costs).and_then(|answer| costs.predict(&answer.plan));
        let ms = |result: Result<Prediction, baton_plan::PlanError>| {
            result.map_or_else(|_| "-".to_owned(), |prediction| format!("{:.0}", prediction.token_s * 1e3))
        };
        worse =
            worse.min(by_memory.as_ref().map_or(f64::INFINITY, |other| other.token_s) / prediction.token_s);
        off = off.max((prediction.token_s * 1e3 / paper_ms - 1.0).abs() * 100.0);
        rows.push(vec![
            model.name.clone(),
            described(&plan, &prediction),
            plan.rounds.to_string(),
            format!("{:.0}", prediction.token_s * 1e3),
            ms(by_halda),
            ms(by_memory),
            format!("{paper_ms:.0}"),
            format!("{paper_memory_ms:.0}"),
        ]);
        report.data(&model.name, json!({ "plan": plan, "prediction": prediction }));
        checks(model, &cluster, &costs, &plan, &prediction, report);
    }
    report.table(
        &format!("prima.cpp's Table 3 (rates of processors assumed), {CONTEXT} tokens of context: layers on GPU + CPU, ms a token"),
        &["model", "plan", "k", "exact", "Halda", "by memory", "paper", "by memory"],
        &rows,
    );
    report.check(
        "split by memory (exo): least time of a token, in the plan's, over all sizes",
        worse,
        "> 1",
        worse > 1.0,
    );
    report.check_at_most("from the paper's times of a token, the largest distance in %", off, OFF_MAX);
    in_order(&cluster, &models, report)
}

/// Predicts the time of a token for longer and longer contexts. Llama 1 has eight times as much KV cache as a
/// Llama 3 of its size, so with a long context it is the larger model.
fn in_order(cluster: &Cluster, models: &[ModelShape], report: &mut Report) -> Result<()> {
    let (mut rows, mut turned) = (Vec::new(), 0);
    let mut by_context = Vec::new();
    for context in CONTEXTS {
        let workload = Workload { context, sequences: 1 };
        let mut predicted = Vec::new();
        for model in models {
            let plan = search(cluster, model, workload, &SearchOptions::default())?;
            let token_s = Costs::new(cluster, model, workload)?.predict(&plan)?.token_s;
            predicted.push((model.held_bytes(workload), token_s));
        }
        by_context.push(predicted.clone());
        predicted.sort_by(|a, b| a.0.total_cmp(&b.0));
        turned += predicted.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
    }
    for (at, model) in models.iter().enumerate() {
        let cell = |predicted: &Vec<(f64, f64)>| {
            let (bytes, token_s) = predicted[at];
            format!("{:.0} ({:.1} GB)", token_s * 1e3, bytes / 1e9)
        };
        rows.push(std::iter::once(model.name.clone()).chain(by_context.iter().map(cell)).collect());
    }
    let header = CONTEXTS.map(|context| format!("{context} tokens"));
    let header: Vec<&str> = std::iter::once("model").chain(header.iter().map(String::as_str)).collect();
    report.table("by tokens of context: ms a token (weights and KV cache)", &header, &rows);
    report.check_equal(
        "neighbours in weights and KV cache of which the smaller one is predicted slower",
        turned as f64,
        0.0,
    );
    Ok(())
}

fn described(plan: &Plan, prediction: &Prediction) -> String {
    let shares = plan.shares.iter().zip(&prediction.devices).filter(|(share, _)| share.layers > 0);
    let each = shares.map(|(share, time)| {
        let disk = if time.read_bytes > 0.0 {
            format!(" disk {:.1} GB", time.read_bytes / 1e9)
        } else {
            String::new()
        };
        format!("{} {}+{}{disk}", share.device, share.gpu_layers, share.layers - share.gpu_layers)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Checks the paper's statements about each size.
fn checks(
    model: &ModelShape,
    cluster: &Cluster,
    costs: &Costs<'_>,
    plan: &Plan,
    prediction: &Prediction,
    report: &mut Report,
) {
    let share = |name: &str| plan.shares.iter().find(|share| share.device == name);
    let name = |what: &str| format!("{}: {what}", model.name);
    match model.name.as_str() {
        "Llama 3-8B" | "Llama 3-14B" => {
            let on_gpu = share("D3").map_or(0, |share| share.gpu_layers);
            report.check_equal(name("layers on D3's GPU"), on_gpu as f64, model.layers as f64);
        }
        "Llama 1-30B" => {
            let full = ["D2", "D3"].iter().all(|device| {
                let room = cluster.index(device).map_or(0, |at| costs.gpu_layers_max(at));
                share(device).is_some_and(|share| share.gpu_layers >= room)
            });
            let on_cpu: usize = plan.shares.iter().map(|share| share.layers - share.gpu_layers).sum();
            let on_d2 = share("D2").map_or(0, |share| share.gpu_layers);
            report.check_at_least(name("layers on D2's GPU"), on_d2 as f64, 1.0);
            report.check(
                name("CPU layers before both GPUs are full"),
                if full { 0.0 } else { on_cpu as f64 },
                "0",
                full || on_cpu == 0,
            );
        }
        "Llama 3-60B" | "Llama 1-65B" | "Llama 3-70B" => {
            let others =
                prediction.devices.iter().filter(|time| !["D2", "D3"].contains(&time.device.as_str()));
            let read: f64 = others.map(|time| time.read_bytes).sum();
            report.check_equal(name("bytes that D1 and D4 read from disk"), read, 0.0);
        }
        _ => {}
    }
}
