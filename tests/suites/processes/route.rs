//! Who answers a turn, if `baton` chooses: what it measured, and what is kept on the disk, decide.

use baton_e2e::demo::ask::Report;
use baton_e2e::proxy::{Cut, Proxy};
use serde_json::Value;

use super::{cloud, setting};

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
