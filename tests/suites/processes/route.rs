//! Who answers a turn, if `baton` chooses: what it measured, and what is kept on the disk, decide.

use std::time::Duration;

use baton_e2e::demo::ask::Report;
use baton_e2e::demo::emulation::PHONE;
use baton_e2e::http::client;
use baton_e2e::process::{AgentProcess, cpu_program, models_folder};
use baton_e2e::proxy::{Cut, Proxy};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{cloud, readable, setting};

fn said(report: &Report) -> (&str, &str) {
    let word = |key: &str| report.route[key].as_str().unwrap_or_else(|| panic!("{key}: {}", report.route));
    (word("chosen"), word("why"))
}

fn first_ms(report: &Report, route: &str) -> f64 {
    let forecasts = report.route["forecasts"].as_array().expect("there are forecasts");
    let forecast = forecasts.iter().find(|forecast| forecast["route"] == route);
    forecast.and_then(|forecast| forecast["first_ms"].as_f64()).unwrap_or_else(|| panic!("{}", report.route))
}

#[tokio::test]
async fn each_turn_goes_the_way_that_its_forecast_says() {
    let (setting, cloud) = (setting(5, 1500), cloud().await);
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let auto = ["--mode", "auto", "--prefix-memory", "auto"];
    let device = ["--mode", "device", "--prefix-memory", "auto"];
    let first = setting.ask(&proxy.url(), &auto).await.expect("an answer");
    assert_eq!(said(&first), ("relay", "unmeasured"));
    assert!(first.tokens_from_cloud > 0);

    // The next program knows what the cloud took. An emulated phone would read the prompt for seconds.
    let second = setting.ask(&proxy.url(), &auto).await.expect("an answer");
    assert_eq!(said(&second), ("relay", "least"), "{}", second.route);
    assert!(first_ms(&second, "relay") < 0.4 * first_ms(&second, "device"), "{}", second.route);
    assert_eq!(second.answer.trim(), setting.asked.question.answer);

    // Once the device has read the prompt itself, it finds it on the disk, and nothing is sent.
    setting.ask(&proxy.url(), &device).await.expect("an answer");
    let sent = proxy.count().up();
    let third = setting.ask(&proxy.url(), &auto).await.expect("an answer");
    assert_eq!(said(&third), ("device", "least"), "{}", third.route);
    let known = |key: &str| third.route[key].as_u64().unwrap_or(0);
    assert!(known("cached_tokens") + 64 > known("prompt_tokens"), "{}", third.route);
    assert_eq!((third.tokens_from_cloud, third.tokens_from_device > 0), (0, true));
    // The scene is asked for, and no text is sent.
    let more = proxy.count().up() - sent;
    assert!(more < 2_000, "{more} bytes were sent");

    // A mode that is given is no choice.
    let given = setting.ask(&proxy.url(), &["--mode", "relay"]).await.expect("an answer");
    assert_eq!(given.route, Value::Null);
}

#[tokio::test]
async fn a_turn_is_audited_behind_its_answer() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let baton = |word: &str| {
        let mut baton = Command::from(cpu_program("baton").expect("the program is built"));
        baton.arg(word).arg("--config-dir").arg(folder.path());
        baton
    };
    let mut serve = baton("serve");
    serve.arg("--model").arg(models_folder().join("demo-device.gguf")).args([
        "--cloud",
        &proxy.url(),
        "--yes",
    ]);
    serve.args(["--listen", "127.0.0.1:0", "--audit", "1"]).args(PHONE.options());
    let agent = AgentProcess::start(&mut serve).await.expect("it listens");
    for topic in ["bridges", "rivers"] {
        let text = format!("Write down what is known of {topic}. {}", "They are long and old. ".repeat(60));
        let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 12 });
        let answer = client().post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
        assert_eq!(answer.expect("an answer").status().as_u16(), 200);
    }
    let listed = async || -> Value {
        let out = baton("trace").args(["list", "--json"]).output().await.expect("it starts");
        serde_json::from_slice(&out.stdout).expect("it prints JSON")
    };
    let mut told = listed().await;
    for _ in 0..300 {
        if told["audits"]["turns"].as_i64() > Some(0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        told = listed().await;
    }
    // The first turn measured the cloud, so there was nothing to compare.
    assert_eq!(told["audits"]["turns"], 1, "{told}");
    let (second, first) = (&told["answers"][0], &told["answers"][1]);
    assert_eq!(
        (&first["report"]["audit"], &first["report"]["route"]["why"]),
        (&Value::Null, &json!("unmeasured"))
    );
    let audit = &second["report"]["audit"];
    let measured = audit["measured"].as_array().expect("all routes were measured");
    let weighted = |of: &Value| of["weighted_ms"].as_f64().expect("a time");
    assert_eq!(measured.len(), 3, "{audit}");
    assert_eq!(measured[0]["route"], second["report"]["route"]["chosen"]);
    let best = measured.iter().map(weighted).fold(f64::INFINITY, f64::min);
    let regret = audit["regret"].as_f64().expect("a regret");
    assert!((regret - (weighted(&measured[0]) / best - 1.0)).abs() < 1e-9, "{audit}");
    // Each request is told: of the two turns, and of the audit.
    let asked = readable(&proxy.count().sent()).matches("POST /v1/assist").count() as u64;
    let by_turns = told["answers"]
        .as_array()
        .map_or(0, |all| all.iter().filter(|one| !one["report"]["request_bytes"].is_null()).count() as u64);
    assert_eq!(asked, by_turns + audit["requests"].as_u64().expect("a count"), "{told}");
    let shown = baton("trace").arg("show").output().await.expect("it starts");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("more than the best route"));
}
