//! Devices in an experiment of the cloud: one that names itself keeps its arm and tells its figures, another
//! one tells nothing.

use std::{path::Path, time::Duration};

use baton_e2e::{
    demo::emulation::CLOUD,
    process::{CloudProcess, cpu_program, models_folder},
};
use serde_json::Value;

use crate::setting;

/// Longest time until the cloud has written what it counted: a guard against hangs.
const WRITTEN_LIMIT: Duration = Duration::from_secs(60);

/// Runs `baton-cloud experiments` over the database.
fn experiments(database: &Path, words: &[&str]) -> Value {
    let mut command = cpu_program("baton-cloud").expect("the program is built");
    command.arg("experiments").args(words).arg("--json").arg("--database").arg(database);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns how many answers of all arms have this metric.
fn answers(shown: &Value, metric: &str) -> u64 {
    let arms = shown["report"]["arms"].as_array().expect("arms");
    let metrics = arms.iter().flat_map(|arm| arm["metrics"].as_array().expect("metrics"));
    let found = metrics.filter(|row| row["metric"] == metric);
    found.map(|row| row["answers"].as_u64().expect("a count")).sum()
}

/// Waits until so many answers have this metric.
async fn until(database: &Path, metric: &str, want: u64) -> Value {
    let written = async {
        loop {
            let shown = experiments(database, &["show", "shorter"]);
            if answers(&shown, metric) >= want {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(WRITTEN_LIMIT, written).await.expect("the cloud writes what it counted")
}

#[tokio::test]
async fn a_device_that_names_itself_tells_its_figures() {
    let setting = setting(3, 900);
    let database = setting.scratch.path().join("cloud.db");
    let arms = ["--arm", "control 1", "--arm", "short 1 assist_tokens=8"];
    experiments(&database, &[&["create", "shorter", "--scene", "doc-qa"], &arms[..]].concat());
    experiments(&database, &["start", "shorter"]);
    let address = database.to_str().expect("a path of characters");
    let model = models_folder().join("demo-cloud.gguf");
    let cloud = CloudProcess::start_on(&model, address, &CLOUD.options()).await.expect("the cloud starts");
    let url = format!("http://{}", cloud.address());

    let named = ["--device-id", "4f1c9a77d0e25b38"];
    let first = setting.ask(&url, &named).await.expect("an answer");
    let second = setting.ask(&url, &named).await.expect("an answer");
    assert_eq!(first.answer.trim(), setting.asked.question.answer);
    assert_eq!(first.assist_tokens, second.assist_tokens, "it keeps its arm");
    let shown = until(&database, "shown_ttft_ms", 2).await;
    assert_eq!(answers(&shown, "gap_ms"), 2, "{shown}");
    assert_eq!(answers(&until(&database, "ttft_ms", 2).await, "failures"), 2);

    setting.ask(&url, &[]).await.expect("an answer");
    let shown = until(&database, "ttft_ms", 3).await;
    assert_eq!(answers(&shown, "shown_ttft_ms"), 2, "a device without a name tells nothing: {shown}");
}
