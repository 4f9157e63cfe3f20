//! The devices of prima.cpp's Table 3, with models of the sizes of its Table 4: what the search gives them, beside
//! Halda and the split in proportion to memory that exo makes.

use anyhow::{Context as _, Result};
use baton_plan::baselines::Baseline;
use baton_plan::halda::halda;
use baton_plan::{Cluster, Costs, ModelShape, Plan, Prediction, SearchOptions, Workload, search};
use serde_json::json;

use crate::report::Report;

const DEVICES: &str = include_str!("../../../shared/plan/data/paper-table-3.json");
const MODELS: &str = include_str!("../../../shared/plan/data/paper-models.json");
/// The paper runs its Table 4 on these.
const USED: [&str; 4] = ["D1", "D2", "D3", "D4"];
/// The paper's own times of a token, in ms: with Halda, and split by memory.
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
pub fn table_3(report: &mut Report) -> Result<()> {
    let whole: Cluster = serde_json::from_str(DEVICES).context("read paper-table-3.json")?;
    let models: Vec<ModelShape> = serde_json::from_str(MODELS).context("read paper-models.json")?;
    let unused: Vec<String> = whole
        .devices
        .iter()
        .map(|device| device.name.clone())
        .filter(|name| !USED.contains(&name.as_str()))
        .collect();
    let cluster = unused.iter().fold(whole, |cluster, name| cluster.without(name));
    let workload = Workload { context: 512, sequences: 1 };
    let (mut rows, mut worse) = (Vec::new(), f64::INFINITY);
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
        "prima.cpp's Table 3 (rates of processors assumed): layers on GPU + CPU, ms a token",
        &["model", "plan", "k", "exact", "Halda", "by memory", "paper", "by memory"],
        &rows,
    );
    report.check(
        "split by memory (exo): least time of a token, in the plan's, over all sizes",
        worse,
        "> 1",
        worse > 1.0,
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

/// What the paper says of each size.
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
