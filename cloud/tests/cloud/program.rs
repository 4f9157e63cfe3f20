//! Tests the program itself: its commands, its first line, its end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use serde_json::{Value, json};

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
    command
        .env_remove("BATON_API_KEY")
        .env_remove("BATON_DATABASE")
        .env("RUST_LOG", "warn")
        .env("BATON_GPU", "off");
    command
}

fn scenes(database: &Path, words: &[&str]) -> Output {
    program().arg("scenes").args(words).arg("--database").arg(database).output().unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
pub(crate) fn refused(output: &Output, want: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains(want), "want `{want}`: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn scenes_are_listed_shown_and_set() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let list = json_of(&scenes(&database, &["list", "--json"]));
    let ids: Vec<&str> = list.as_array().unwrap().iter().map(|scene| scene["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["chat", "doc-qa", "doc-qa-full"]);
    let changes =
        ["set", "doc-qa", "--ratio", "0.4", "--xi", "0.2", "--assist-tokens", "24", "--tau-ms", "80"];
    let set = json_of(&scenes(
        &database,
        &[&changes[..], &["--corrector", "device", "--mode", "bm25", "--json"]].concat(),
    ));
    assert_eq!(
        (&set["version"], &set["assist_tokens"], &set["corrector"], &set["mode"]),
        (&json!(2), &json!(24), &json!("device"), &json!("bm25"))
    );
    assert_eq!(json_of(&scenes(&database, &["show", "doc-qa", "--json"])), set);
    let auto = ["set", "doc-qa", "--ratio", "auto", "--assist-tokens", "auto", "--if-version", "2", "--json"];
    let auto = json_of(&scenes(&database, &auto));
    assert_eq!(
        (&auto["version"], &auto["ratio"], &auto["assist_tokens"]),
        (&json!(3), &Value::Null, &Value::Null)
    );
    let new = json_of(&scenes(&database, &["set", "mine", "--system", "You are brief.", "--json"]));
    assert_eq!((&new["version"], &new["system"]), (&json!(1), &json!("You are brief.")));
    let shown = scenes(&database, &["show", "mine"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("You are brief."));
    assert_eq!(String::from_utf8_lossy(&scenes(&database, &["list"]).stdout).lines().count(), 5);
}

#[test]
fn settings_out_of_bounds_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let set = |words: &[&str]| scenes(&database, &[&["set", "doc-qa"][..], words].concat());
    refused(&set(&["--ratio", "0.1"]), "ratio 0.1 must be at least xi 0.25");
    refused(&set(&["--ratio", "1.5"]), "field `ratio` is 1.5, must be 0.01 to 1");
    assert_eq!(set(&["--ratio", "1.5"]).status.code(), Some(2), "the status of a wrong command line");
    refused(&set(&["--ratio", "half"]), "it must be a number, or `auto`");
    refused(&set(&["--xi", "-1"]), "field `xi` is -1, must be 0.01 to 1");
    refused(&set(&[]), "nothing to change: name an option");
    assert_eq!(set(&[]).status.code(), Some(2));
    refused(&set(&["--xi", "NaN"]), "field `xi` is NaN");
    refused(&set(&["--assist-tokens", "0"]), "field `assist_tokens` is 0, must be 1 to 65536");
    refused(&set(&["--assist-tokens", "2"]), "assist tokens 2 must be at least the floor 4");
    refused(&set(&["--tau-ms", "0"]), "field `tau_ms` is 0, must be 1 to 60000");
    refused(&set(&["--corrector", "both"]), "must be `cloud` or `device`");
    refused(&set(&["--mode", "best"]), "unknown refiner mode `best`");
    refused(&set(&["--mode", "paper"]), "unknown refiner mode `paper`, must be attention, bm25 or none");
    refused(&set(&["--if-version", "7", "--tau-ms", "50"]), "scene `doc-qa` is at version 1, expected 7");
    refused(&scenes(&database, &["show", "nothing"]), "scene `nothing` does not exist");
    assert_eq!(json_of(&scenes(&database, &["show", "doc-qa", "--json"]))["version"], 1);
}

#[test]
fn serve_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |words: &[&str]| {
        let words = [&["serve", "--database", ":memory:"][..], words].concat();
        program().current_dir(folder.path()).args(words).output().unwrap()
    };
    refused(&serve(&[]), "no model is named: pass --model FILE.gguf");
    refused(&serve(&["--model", "missing.gguf"]), "open model `missing.gguf`");
    let mut told = program();
    told.current_dir(folder.path()).args(["serve", "--model", "missing.gguf"]).env("RUST_LOG", "info");
    refused(&told.output().unwrap(), "opening");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "a wrong model makes no database");
    std::fs::write(folder.path().join("bad.gguf"), "GGUF but not really").unwrap();
    refused(&serve(&["--model", "bad.gguf"]), "open model `bad.gguf`");
    refused(&serve(&["--model", "bad.gguf", "--listen", "0.0.0.0:0"]), "without a key");
}

#[test]
fn serve_prints_its_address_and_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    for form in [&["--json"][..], &[]] {
        let mut child = program()
            .args(["serve", "--database", ":memory:", "--listen", "127.0.0.1:0", "--threads", "1", "--model"])
            .arg(&model)
            .args(form)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = if form.is_empty() {
            line.trim().strip_prefix("listening on http://").unwrap().to_owned()
        } else {
            let hello: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(hello["model"], "tiny");
            hello["listening"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned()
        };
        assert!(std::net::TcpStream::connect(&address).is_ok(), "{address}");
        let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert!(child.wait().unwrap().success(), "a clean end");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_limit_of_open_files_is_raised_and_bounds_connections() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    // A soft limit, which is raised, and a hard one, which is not.
    for (limit, open_files, said) in
        [("-S -n 96", None, "open files"), ("-n 96", Some("96"), "fewer connections")]
    {
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_baton-cloud")])
            .args(["serve", "--database", ":memory:", "--listen", "127.0.0.1:0", "--threads", "1", "--model"])
            .arg(&model)
            .env("RUST_LOG", "info")
            .env("BATON_GPU", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = log.find(|line| line.contains(said)).expect("the log tells of open files");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        let row = limits.lines().find(|row| row.starts_with("Max open files")).unwrap();
        let [soft, hard] = [3, 4].map(|at| row.split_whitespace().nth(at).unwrap().to_owned());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(soft, hard, "{row}");
        assert_ne!(soft == "96", open_files.is_none(), "{row}");
        assert_eq!(line.contains("connections=48"), open_files.is_some(), "{line}");
    }
}

/// Subset, mode and (r, loss) points of a curve.
type Curve<'a> = (&'a str, &'a str, &'a [(f64, f64)]);

/// Writes a scene's evaluation: losses by r, with the upper end of their interval 0.01 higher.
fn evaluation(folder: &Path, curves: &[Curve<'_>]) -> std::path::PathBuf {
    let curve = |&(subset, mode, losses): &(&str, &str, &[(f64, f64)])| {
        let points: Vec<Value> = losses
            .iter()
            .map(|(r, loss)| {
                json!({"r": r, "n": 200, "score": 0.9 - loss, "low": 0.0, "high": 1.0,
                       "loss": {"mean": loss, "low": loss - 0.01, "high": loss + 0.01}})
            })
            .collect();
        json!({"suite": "facts", "subset": subset, "metric": "exact_match", "mode": mode, "arm": "relay",
               "assist_tokens": null, "corrector": "cloud",
               "reference": {"n": 200, "score": 0.9, "low": 0.86, "high": 0.94}, "points": points})
    };
    let curves: Vec<Value> = curves.iter().map(curve).collect();
    let model = |digit: &str| json!({"name": "m", "sha256": digit.repeat(64)});
    let file = json!({"format": "baton-quality-curves", "version": 1, "made_by": "test", "seed": 1,
                      "cloud_model": model("a"), "device_model": model("b"), "curves": curves});
    let path = folder.join("evaluation.json");
    std::fs::write(&path, file.to_string()).unwrap();
    path
}

#[test]
fn xi_is_fitted_to_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let file = evaluation(
        folder.path(),
        &[
            ("single", "attention", &[(0.1, 0.005), (0.2, 0.0), (0.5, 0.0)]),
            ("two-hop", "attention", &[(0.1, 0.05), (0.2, 0.009), (0.5, 0.0)]),
            ("single", "bm25", &[(0.1, 0.5), (0.2, 0.4), (0.5, 0.3)]),
        ],
    );
    let fit = |words: &[&str]| {
        let all = [&["fit-xi", "doc-qa", file.to_str().unwrap()][..], words].concat();
        scenes(&database, &all)
    };
    // Both kinds of question must stay within 0.02: so 0.2, not the 0.1 that one kind allows.
    let fitted = json_of(&fit(&["--json"]));
    let xi = |value: &Value| {
        (value["scene"]["version"].as_u64(), value["scene"]["xi"].as_f64().map(|xi| xi as f32))
    };
    assert_eq!((xi(&fitted), &fitted["changed"]), ((Some(2), Some(0.2)), &json!(true)));
    assert_eq!(fitted["curves"].as_array().unwrap().len(), 2);
    assert_eq!(fitted["scene"]["ratio"], json!(0.25), "a fixed r above xi stays");
    let text = fit(&[]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("nothing changes: version 2 of `doc-qa` already has xi 0.2"), "{text}");
    assert!(text.contains("r stays fixed at 0.25"), "{text}");
    assert_eq!(xi(&json_of(&fit(&["--subset", "single", "--json"]))), (Some(3), Some(0.1)));
    // With the mean loss, not its upper end. A larger xi raises a fixed r too.
    assert_eq!(xi(&json_of(&fit(&["--tolerance", "0.009", "--mean", "--json"]))), (Some(4), Some(0.2)));
    let strict = json_of(&fit(&["--tolerance", "0.01", "--json"]));
    assert_eq!((xi(&strict), &strict["scene"]["ratio"]), ((Some(5), Some(0.5)), &json!(0.5)));
    refused(&fit(&["--tolerance", "0.001"]), "within 0.001: it is 0.0100 at r 0.5");
    assert_eq!(xi(&json_of(&fit(&["--tolerance", "0.001", "--forbid", "--json"]))), (Some(6), Some(1.0)));
    refused(&fit(&["--mode", "paper"]), "no curve of mode `paper` and arm `relay` was chosen");
    refused(&fit(&["--if-version", "2", "--tolerance", "0.5"]), "is at version 6, expected 2");
    refused(&fit(&["--tolerance", "2"]), "field `tolerance` is 2, must be 0 to 1");
    std::fs::write(&file, "{}").unwrap();
    refused(&fit(&[]), "read evaluation");
    assert_eq!(json_of(&scenes(&database, &["show", "doc-qa", "--json"]))["version"], 6);
}

#[test]
fn an_evaluation_of_another_model_is_refused_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    let file = evaluation(folder.path(), &[("single", "attention", &[(0.5, 0.0)])]);
    let words = ["fit-xi", "doc-qa", file.to_str().unwrap(), "--model", model.to_str().unwrap()];
    refused(&scenes(&database, &words), "the evaluation is of cloud model `m`");
}

#[test]
fn the_table_and_its_reasons_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let what_if = ["--device", "phone=2.5,45", "--cloud", "0.1,30"];
    let table = json_of(&scenes(&database, &[&["table", "--json"][..], &what_if].concat()));
    // Three scenes, one class, eight lengths, five networks.
    assert_eq!(table.as_array().unwrap().len(), 3 * 8 * 5);
    let cell = table
        .as_array()
        .unwrap()
        .iter()
        .find(|cell| cell["scene"] == "chat" && cell["prompt_tokens"] == 4096 && cell["network"] == "wifi")
        .unwrap();
    assert_eq!((&cell["verdict"], &cell["assist_bound_by"]), (&json!("relay"), &json!("tau")));
    let text = scenes(&database, &[&["table", "chat", "--lengths", "1024,4096"][..], &what_if].concat());
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("chat on phone: k_d 2.5 ms"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("wifi") && line.contains("0.25 36t")), "{text}");
    refused(&scenes(&database, &["table", "nothing"]), "scene `nothing` does not exist");
    refused(&scenes(&database, &["table", "--device", "phone"]), "NAME=K_D,TPOT_D");

    let explain = |words: &[&str]| scenes(&database, &[&["explain", "chat"][..], &what_if, words].concat());
    let explained = json_of(&explain(&["--json"]));
    assert_eq!(explained["plan"]["assist_tokens"], cell["assist_tokens"]);
    let figures: Vec<&str> =
        explained["relaxations"].as_array().unwrap().iter().map(|r| r["figure"].as_str().unwrap()).collect();
    assert_eq!(figures, ["k_d", "tau", "r"]);
    let text = explain(&[]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("L would fall to 27 or fewer with any one of"), "{text}");
    assert!(text.contains("tau            100 -> 13"), "{text}");
    refused(&explain(&["--class", "watch"]), "device class `watch` is not known, `phone` are");
    refused(&explain(&["--over", "sea"]), "network class `sea` is not known");
}
