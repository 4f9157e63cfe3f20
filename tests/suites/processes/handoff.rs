//! Keys and values of the cloud's prefill on a device of the same model: used over a whole line, and not
//! missed over one that is cut or changes bytes.

use std::path::Path;

use baton_e2e::demo::ask::{Ask, Report};
use baton_e2e::demo::emulation::{CLOUD, PHONE};
use baton_e2e::process::{CloudProcess, cpu_program, models_folder};
use baton_e2e::proxy::{Cut, Proxy};
use baton_e2e::setting::Setting;

use super::{ASSIST_TOKENS, setting};

/// Publishes a scene that offers keys and values in this form; returns the database.
fn database(scratch: &Path, form: &str) -> String {
    let path = scratch.join("cloud.db").display().to_string();
    let set = cpu_program("baton-cloud")
        .expect("the program is built")
        .args(["scenes", "set", "doc-qa", "--database", &path, "--kv", form])
        .output()
        .expect("the program starts");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    path
}

/// Starts a cloud whose scene offers keys and values.
async fn cloud(setting: &Setting, form: &str) -> CloudProcess {
    let database = database(setting.scratch.path(), form);
    CloudProcess::start_on(&models_folder().join("demo-cloud.gguf"), &database, &CLOUD.options())
        .await
        .expect("the cloud starts")
}

/// Asks on a phone that has this model.
async fn ask(setting: &Setting, url: &str, model: &str) -> Report {
    let mut options = PHONE.options();
    let length = ASSIST_TOKENS.to_string();
    let more = ["--cloud", url, "--max-tokens", "160", "--mode", "relay", "--assist-tokens", &length];
    options.extend(more.map(Into::into));
    let ask = Ask {
        document: &setting.document,
        question: &setting.asked.question.text,
        model: &models_folder().join(model),
        scratch: setting.scratch.path(),
        options,
        live: false,
    };
    ask.run().await.expect("an answer")
}

/// Checks that the answer is whole and right, by both sides.
#[track_caller]
fn whole(report: &Report, setting: &Setting) {
    assert_eq!(report.answer.trim(), setting.asked.question.answer);
    assert!(report.tokens_from_cloud == ASSIST_TOKENS && report.tokens_from_device > 0, "{report:?}");
}

#[tokio::test]
async fn a_device_of_the_same_model_goes_on_without_a_prefill() {
    let setting = setting(6, 900);
    for form in ["f16", "q8"] {
        let cloud = cloud(&setting, form).await;
        let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
        let report = ask(&setting, &proxy.url(), "demo-cloud.gguf").await;
        whole(&report, &setting);
        assert!(report.kv["used"] == true && report.kv["format"] == form, "{}", report.kv);
        assert_eq!(report.kv["bytes"], report.kv["fetched_bytes"]);
        assert!(report.notes.is_empty(), "{:?}", report.notes);
    }
}

#[tokio::test]
async fn another_model_takes_none_and_says_why() {
    let setting = setting(6, 900);
    let cloud = cloud(&setting, "f16").await;
    let url = format!("http://{}", cloud.address());
    let report = ask(&setting, &url, "demo-device.gguf").await;
    whole(&report, &setting);
    assert_eq!((&report.kv["used"], &report.kv["reason"]), (&false.into(), &"the cloud offered none".into()));
}

#[tokio::test]
async fn a_line_that_is_cut_or_changes_a_byte_costs_no_token() {
    let setting = setting(6, 900);
    let cloud = cloud(&setting, "f16").await;
    // In the head, in the first frame, behind it; the last one is taken up again and completes.
    let cuts = [Cut::InKv(0), Cut::InKv(100), Cut::InKv(5_000), Cut::InKv(60_000)];
    let flips = [Cut::FlipInKv(400), Cut::FlipInKv(20_000)];
    for cut in cuts.into_iter().chain(flips) {
        let proxy = Proxy::start(cloud.address(), cut).await.expect("a proxy");
        let report = ask(&setting, &proxy.url(), "demo-cloud.gguf").await;
        whole(&report, &setting);
        let used = report.kv["used"] == true;
        assert!(used != report.kv["reason"].is_string(), "{cut:?}: {}", report.kv);
        assert!(!used || matches!(cut, Cut::InKv(60_000..)), "{cut:?}: {}", report.kv);
    }
}
