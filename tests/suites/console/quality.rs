//! The chart of an evaluation, from a file as `baton-eval --curves` writes it for the served model.

use std::path::{Path, PathBuf};

use baton_e2e::process::models_folder;
use baton_engine::Model;
use serde_json::{Value, json};

use crate::{World, browser_here, pictures};

/// Subset, metric, questions, score of the full prompt, and scores at r 0.1, 0.25 and 0.5.
type Row = (&'static str, &'static str, u32, f64, [f64; 3]);

/// Figures of the demo models at L 8 from an evaluation: two metrics, subsets by kind and length.
const ROWS: &[Row] = &[
    ("all", "contains", 144, 0.042, [0.042, 0.035, 0.035]),
    ("all", "exact_match", 559, 0.821, [0.748, 0.835, 0.837]),
    ("distractor/512", "exact_match", 48, 1.0, [1.0, 1.0, 1.0]),
    ("long/512", "exact_match", 48, 1.0, [0.0, 0.9, 1.0]),
    ("paraphrase/512", "contains", 48, 0.083, [0.062, 0.083, 0.083]),
    ("two_hop/2048", "exact_match", 48, 0.208, [0.208, 0.167, 0.208]),
];

fn share(score: f64, n: u32) -> Value {
    json!({ "n": n, "score": score, "low": (score - 0.03).max(0.0), "high": (score + 0.03).min(1.0) })
}

/// Writes the file; returns its path.
pub(crate) fn curves(folder: &Path) -> PathBuf {
    let sha256 = |name: &str| {
        let model = Model::open(&models_folder().join(name)).expect("a demo model opens");
        json!({ "name": model.name(), "sha256": model.file_sha256() })
    };
    let curve = |&(subset, metric, n, whole, scores): &Row| {
        let point = |(r, score): (f64, f64)| {
            let mut point = share(score, n);
            point["r"] = r.into();
            point["loss"] = json!({ "mean": whole - score, "low": whole - score - 0.02, "high": (whole - score + 0.02).min(1.0) });
            point
        };
        let points: Vec<Value> = [0.1, 0.25, 0.5].into_iter().zip(scores).map(point).collect();
        json!({ "suite": "facts", "subset": subset, "metric": metric, "mode": "attention", "arm": "relay",
                "assist_tokens": 8, "corrector": "cloud", "reference": share(whole, n), "points": points })
    };
    let file = json!({
        "format": "baton-quality-curves", "version": 1, "made_by": "the console's suite", "seed": 1,
        "cloud_model": sha256("demo-cloud.gguf"), "device_model": sha256("demo-device.gguf"),
        "curves": ROWS.iter().map(curve).collect::<Vec<_>>(),
    });
    let path = folder.join("demo-cloud.curves.json");
    std::fs::write(&path, file.to_string()).expect("write the curves");
    path
}

#[tokio::test]
async fn the_chart_of_an_evaluation_shows_what_speaks_of_the_scene() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    let browser = world.browser("ada").await;
    browser.client.goto(&world.url("/admin/scenes/doc-qa")).await.expect("open the scene");
    browser.find("#quality-title").await;
    let chart = "const svg = document.querySelector('svg[aria-labelledby^=quality]'); const figure = svg.closest('figure');";
    let asked = async |what: &str| browser.run(&format!("{chart} return {what}")).await;
    assert_eq!(asked("figure.querySelector('h3').textContent").await, "Score (exact match) over r");
    // One metric is shown: all questions, then the subsets that lose most at the scene's r.
    let legend = asked("[...figure.querySelectorAll('.legend li')].map(li => li.textContent)").await;
    assert_eq!(legend, json!(["facts/all", "facts/long/512", "facts/two_hop/2048"]));
    assert_eq!(asked("svg.querySelectorAll('polygon.band').length").await, 3);
    let notes = asked("[...svg.querySelectorAll('text.note')].map(text => text.textContent)").await;
    assert_eq!(notes, json!(["facts/all, full prompt", "r 0.25"]));
    // Every line is inside the axes, from the smallest r to the full prompt.
    let points = asked("[...svg.querySelectorAll('polyline.line')].map(line => line.points.length)").await;
    assert_eq!(points, json!([4, 4, 4]));
    let outside = "[...svg.querySelectorAll('polyline.line')].flatMap(line => [...line.points]) \
                   .filter(p => p.x < 76 || p.x > 448 || p.y < 14 || p.y > 234).length";
    assert_eq!(asked(outside).await, 0, "in the plot");
    let rows =
        asked("[...figure.querySelectorAll('tbody tr')].map(row => row.children[1].textContent)").await;
    assert_eq!(rows, json!(["0.748", "0.835", "0.837", "0.821"]));
    let told = asked("figure.querySelector('caption').textContent").await;
    let told = told.as_str().expect("text");
    assert!(
        told.contains("559 questions of facts/all") && told.contains("L 8, corrected by cloud"),
        "{told}"
    );
    // Another r is marked on the same curves.
    browser.fill("#ratio", "0.5").await;
    browser.until("#summary", |text| text.starts_with("r 0.5,")).await;
    let notes = asked("[...svg.querySelectorAll('text.note')].map(text => text.textContent)").await;
    assert_eq!(notes, json!(["facts/all, full prompt", "r 0.5"]));
    let picture = browser.picture(&pictures(), "quality").await;
    assert!(std::fs::metadata(picture).expect("a file").len() > 10_000);
    browser.close().await;
}
