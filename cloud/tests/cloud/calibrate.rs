//! Tests calibration: the probes on the demo model and on random weights, and the command's file.

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};

use baton_cloud::calibrate::{CalibrateControl, CalibrateError, ProbeOptions, Progress, calibrate};
use baton_engine::Model;
use baton_engine::gguf::Gguf;
use baton_kernels_cpu::Format;
use baton_refine::Calibration;
use baton_synthetic::SyntheticModel;
use serde_json::Value;

use crate::program::{program, refused};
use crate::world::model;

/// Counts probes, and stops after some if told to.
#[derive(Default)]
struct Counted {
    seen: Vec<Progress>,
    stop_after: Option<usize>,
}

impl CalibrateControl for Counted {
    fn progress(&mut self, progress: Progress) {
        self.seen.push(progress);
    }

    fn stopped(&self) -> bool {
        self.stop_after.is_some_and(|probes| self.seen.len() >= probes)
    }
}

fn options(probes: usize, words: usize) -> ProbeOptions {
    ProbeOptions { probes: NonZeroUsize::new(probes).unwrap(), words, threads: NonZeroUsize::new(1) }
}

#[test]
fn the_demo_models_trained_heads_are_found() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
    let model = Model::open(&path).unwrap();
    let calibrated = calibrate(&model, options(12, 300), &mut Counted::default()).unwrap();
    let heads = calibrated.calibration.heads();
    let best: Vec<_> = heads.iter().take(2).map(|head| (head.layer, head.head)).collect();
    assert!(best.contains(&(4, 0)) && best.contains(&(4, 2)), "trained to look at gold sentences: {best:?}");
    assert!((8..=16).contains(&heads.len()), "{} heads", heads.len());
    assert_eq!(calibrated.gains.len(), 24);
    let gain = |id| calibrated.gains.iter().find(|(head, _)| *head == id).unwrap().1;
    assert!(gain((4, 0)) > 0.2 && gain((0, 0)) < 0.1, "{} {}", gain((4, 0)), gain((0, 0)));
    assert_eq!(calibrated.calibration.model_sha256(), model.file_sha256());
}

#[test]
fn the_same_probes_find_the_same_heads() {
    let mut control = Counted::default();
    let first = calibrate(&model(), options(6, 150), &mut control).unwrap();
    let probes: Vec<usize> = control.seen.iter().map(|progress| progress.probes).collect();
    assert_eq!(probes, [1, 2, 3, 4, 5, 6]);
    assert!(control.seen.iter().all(|progress| progress.of == 6));
    let tokens: Vec<usize> = control.seen.windows(2).map(|pair| pair[1].tokens - pair[0].tokens).collect();
    assert!(tokens[0] * 3 < tokens[3], "a document is computed once for its questions: {tokens:?}");
    assert_eq!(calibrate(&model(), options(6, 150), &mut Counted::default()).unwrap(), first);
    assert_eq!((first.probes, first.words), (6, 150));
}

#[test]
fn documents_shrink_to_the_context_and_no_further() {
    let long = calibrate(&model(), options(2, 5000), &mut Counted::default()).unwrap();
    assert!((100..5000).contains(&long.words), "{} words", long.words);
    let narrow = SyntheticModel { context_len: 256, ..SyntheticModel::small("llama", Format::F32, 3) };
    let narrow = Model::from_gguf(Gguf::from_bytes(narrow.to_gguf().unwrap()).unwrap()).unwrap();
    let refused = calibrate(&narrow, options(2, 1500), &mut Counted::default()).unwrap_err();
    assert!(matches!(refused, CalibrateError::Context { context_len: 256, .. }), "{refused}");
}

#[test]
fn a_stop_is_heard_within_a_pass() {
    let mut control = Counted { stop_after: Some(3), ..Counted::default() };
    let stopped = calibrate(&model(), options(40, 150), &mut control).unwrap_err();
    assert_eq!(stopped.to_string(), "stopped after 3 of 40 probes");
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn write_model(folder: &Path) {
    let tiny = SyntheticModel { context_len: 2048, ..SyntheticModel::small("llama", Format::F32, 3) };
    std::fs::write(folder.join("tiny.gguf"), tiny.to_gguf().unwrap()).unwrap();
}

#[test]
fn the_command_writes_a_calibration_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let run = |words: &[&str]| {
        program()
            .current_dir(folder.path())
            .args(["calibrate", "--threads", "1"])
            .args(words)
            .output()
            .unwrap()
    };
    let done = run(&["tiny.gguf", "--probes", "8", "--words", "100", "--json"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("8 of 8 probes"), "{said}");
    assert_eq!(files(folder.path()), ["tiny.gguf", "tiny.heads.json"]);
    let text = std::fs::read_to_string(folder.path().join("tiny.heads.json")).unwrap();
    let written = Calibration::from_json(&text).unwrap();
    let shown: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(shown["model_sha256"], written.model_sha256());
    assert_eq!(shown["heads"].as_array().unwrap().len(), written.heads().len());
    assert_eq!((&shown["probes"], &shown["file"]), (&Value::from(8), &Value::from("tiny.heads.json")));

    let table = run(&["tiny.gguf", "--probes", "4", "--words", "100", "--out", "other.json"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("heads of 8 by 4 probes: other.json"));
    refused(&run(&["missing.gguf"]), "open model `missing.gguf`");
    let nowhere = run(&["tiny.gguf", "--probes", "8", "--words", "100", "--out", "no/such/folder.json"]);
    refused(&nowhere, "write `no/such/folder.json`: there is no folder `no/such`");
    assert!(!String::from_utf8_lossy(&nowhere.stderr).contains("probes"), "found out before the probes");
    refused(&run(&["tiny.gguf", "--words", "7"]), "100..=100000");
    assert_eq!(files(folder.path()), ["other.json", "tiny.gguf", "tiny.heads.json"]);
}

#[test]
fn an_interrupted_command_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let mut child = program()
        .current_dir(folder.path())
        .args(["calibrate", "tiny.gguf", "--probes", "100000", "--words", "100", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("8 of 100000 probes"));
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    let said: String = lines.map_while(Result::ok).collect();
    assert!(!child.wait().unwrap().success() && said.contains("stopped after"), "{said}");
    assert_eq!(files(folder.path()), ["tiny.gguf"]);
}
