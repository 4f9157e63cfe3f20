//! Tests the whole program on the demo models: arms that must agree, interruptions, and the prompts of the
//! suites.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_engine::{Model, SlidingWindow};
use baton_eval::arm::Arm;
use baton_eval::case::Case;
use baton_eval::device::DeviceSpec;
use baton_eval::run::{Ended, EvalError, Job, Setup, run};
use baton_eval::store::{Row, Store};
use baton_eval::suite::{badcases, facts, ruler};
use baton_refine::Calibration;

fn model(name: &str) -> (Arc<Model>, PathBuf) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    (Model::open(&folder.join(name)).unwrap(), folder)
}

/// Makes a cloud with calibrated heads, and four devices: `same` and `narrow` (with a window) have the
/// cloud's model, `phone` the device model, `other` a model with another tokenizer.
fn setup(workers: usize) -> Setup {
    let (cloud, folder) = model("demo-cloud.gguf");
    let heads = std::fs::read_to_string(folder.join("demo-cloud.heads.json")).unwrap();
    let device = |name: &str, model: Arc<Model>, window| DeviceSpec { name: name.into(), model, window };
    Setup {
        calibration: Some(Arc::new(Calibration::from_json(&heads).unwrap())),
        devices: vec![
            device("same", cloud.clone(), None),
            device("narrow", cloud.clone(), Some(SlidingWindow { tokens: 64, sinks: 4 })),
            device("phone", model("demo-device.gguf").0, None),
            device("other", model("demo-device-b.gguf").0, None),
        ],
        cloud,
        workers: NonZeroUsize::new(workers).unwrap(),
    }
}

fn cases(setup: &Setup, documents: usize) -> Vec<Case> {
    let options = facts::Options {
        kinds: facts::Kind::ALL.to_vec(),
        lengths: vec![300],
        documents,
        questions: 1,
        seed: 77,
    };
    facts::cases(&options, setup.cloud.tokenizer())
}

fn jobs(cases: &[Case], arms: &[&str]) -> Vec<Job> {
    let arms: Vec<Arm> = arms.iter().map(|arm| arm.parse().unwrap()).collect();
    cases.iter().map(|case| Job { case: case.clone(), arms: arms.clone() }).collect()
}

fn rows(setup: &Setup, jobs: Vec<Job>) -> Vec<Row> {
    let mut store = Store::in_memory();
    let ended = run(setup, jobs, &mut store, &AtomicBool::new(false), &mut |_, _, _| {}).unwrap();
    assert_eq!(ended, Ended::Whole);
    store.rows().into_iter().cloned().collect()
}

#[test]
fn arms_that_must_agree_do() {
    let setup = setup(2);
    let cases = cases(&setup, 2);
    let arms = [
        "cloud",
        "device:same",
        "relay:same:none@1:1:cloud",
        "relay:same:none@1:7:device",
        "evict:same:snapkv@1",
        "evict:same:h2o@1",
        "evict:same:streaming@1",
    ];
    let rows = rows(&setup, jobs(&cases, &arms));
    assert_eq!(rows.len(), cases.len() * arms.len());
    for row in &rows {
        assert_eq!(row.error, None, "{} {}", row.case, row.arm);
        let cloud = rows.iter().find(|other| other.case == row.case && other.arm == "cloud").unwrap();
        assert_eq!(row.text, cloud.text, "{} {}", row.case, row.arm);
        assert!(!row.agreement.contains('0'), "one model agrees with itself: {}", row.agreement);
        if ["short", "long", "distractor"].contains(&row.group.as_str()) {
            assert_eq!(row.score, Some(1.0), "{} {}: {}", row.case, row.arm, row.text);
        }
    }
}

#[test]
fn predictions_are_those_of_the_model() {
    let setup = setup(1);
    let cases: Vec<Case> = cases(&setup, 2).into_iter().filter(|case| case.group == "short").collect();
    let arms = ["cloud", "predict:same:none@1", "evict:same:snapkv@1", "predict:other:none@1"];
    let rows = rows(&setup, jobs(&cases, &arms));
    let of = |arm: &'static str| rows.iter().filter(move |row| row.arm == arm);
    assert_eq!(of("predict:same:none@1").count(), cases.len());
    for (row, evicting) in of("predict:same:none@1").zip(of("evict:same:snapkv@1")) {
        assert_eq!((row.error.as_ref(), row.score), (None, None), "{row:?}");
        assert_eq!(row.acceptance, Some(1.0), "a model finds its own answer most probable");
        // The answer is right, so each of its tokens has more than half of the probability.
        assert!(row.right_ln_p.is_some_and(|ln_p| ln_p <= 0.0 && ln_p > 0.5f64.ln()), "{row:?}");
        assert_eq!(
            (row.right_ln_p, row.acceptance),
            (evicting.right_ln_p, evicting.acceptance),
            "nothing was evicted"
        );
    }
    for row in of("predict:other:none@1") {
        assert_eq!(row.acceptance, None, "it has another tokenizer");
        assert!(row.right_ln_p.is_some_and(f64::is_finite), "{row:?}");
    }
    // Without the sentence that holds it, the right answer is less probable.
    let without: Vec<Case> = cases
        .iter()
        .map(|case| {
            let gold = case.gold[0].clone();
            let content = format!("{}{}", &case.content[..gold.start], &case.content[gold.end..]);
            Case { content, gold: Vec::new(), ..case.clone() }
        })
        .collect();
    let blind = self::rows(&setup, jobs(&without, &["predict:same:none@1"]));
    for (row, blind) in of("predict:same:none@1").zip(&blind) {
        assert_eq!(row.case, blind.case);
        assert!(blind.right_ln_p < row.right_ln_p, "{row:?} {blind:?}");
    }
}

#[test]
fn refined_prompts_answer_and_other_tokenizers_go_on_in_text() {
    let setup = setup(1);
    let cases = cases(&setup, 2);
    let arms =
        ["mask:attention@0.5", "relay:phone:attention@0.5:4:cloud", "relay:other:attention@0.5:4:cloud"];
    for row in rows(&setup, jobs(&cases, &arms)) {
        let answers = row.arm != "mask:attention@0.5";
        assert_eq!(row.score.is_some(), answers);
        assert!(row.ratio.unwrap() <= 0.5 && row.recall.is_some());
        assert_eq!(row.agreement.is_empty(), !row.arm.starts_with("relay:phone"));
        if answers && row.group == "short" && row.recall == Some(1.0) {
            assert_eq!(row.score, Some(1.0), "{} {}: {}", row.case, row.arm, row.text);
        }
    }
}

#[test]
fn a_text_that_was_read_before_changes_no_mask() {
    let setup = setup(1);
    let cases = cases(&setup, 2);
    let arms = ["mask:perplexity@0.3", "mask:attention@0.3", "mask:gemfilter@0.3", "mask:paper@0.3"];
    let together = rows(&setup, jobs(&cases, &arms));
    let alone = cases.iter().flat_map(|case| rows(&setup, jobs(std::slice::from_ref(case), &arms)));
    let mut alone: Vec<Row> = alone.collect();
    alone.sort_by(|a, b| (&a.case, &a.arm).cmp(&(&b.case, &b.arm)));
    assert_eq!(together, alone);
    assert!(together.iter().all(|row| row.error.is_none() && row.ratio.is_some()));
}

#[test]
fn workers_and_interruptions_change_nothing() {
    let (one, two) = (setup(1), setup(2));
    let cases = cases(&one, 3);
    let arms = ["cloud", "mask:bm25@0.25", "relay:phone:attention@0.25:2:device", "device:narrow"];
    let want = rows(&one, jobs(&cases, &arms));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.jsonl");
    let mut rounds = 0;
    loop {
        rounds += 1;
        let mut store = Store::open(&path, &two.origin()).unwrap();
        let stop = AtomicBool::new(false);
        // Stop every round after its fourth new case.
        let mut done_now = 0;
        let ended = run(&two, jobs(&cases, &arms), &mut store, &stop, &mut |_, _, _| {
            done_now += 1;
            stop.store(done_now >= 4, Ordering::Relaxed);
        });
        let have: Vec<Row> = store.rows().into_iter().cloned().collect();
        if ended.unwrap() == Ended::Whole {
            assert_eq!(have, want);
            break;
        }
        assert!(rounds < 10 && have.len() >= 4 * arms.len() * rounds, "each round keeps what it did");
    }
    assert!(rounds > 1, "it was interrupted");
}

#[test]
fn prompts_that_do_not_fit_are_results_that_say_so() {
    let setup = setup(1);
    let mut case = cases(&setup, 1).remove(0);
    case.content = case.content.repeat(20);
    let rows =
        rows(&setup, jobs(&[case], &["cloud", "mask:bm25@0.25", "device:phone", "evict:phone:h2o@0.5"]));
    for row in rows {
        let error = row.error.expect("too long");
        assert!(error.contains("tokens") && row.score.is_none(), "{}: {error}", row.arm);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_before_anything_runs() {
    let setup = setup(1);
    let cases = cases(&setup, 1);
    let mut store = Store::in_memory();
    let jobs = jobs(&cases, &["cloud", "device:nobody"]);
    let got = run(&setup, jobs, &mut store, &AtomicBool::new(false), &mut |_, _, _| {});
    assert!(matches!(got, Err(EvalError::NoDevice { arm }) if arm == "device:nobody"));
    assert!(store.rows().is_empty());
}

#[test]
fn the_generated_suites_run() {
    let setup = setup(2);
    let tokenizer = setup.cloud.tokenizer();
    let mut cases = ruler::cases(&[400], 1, 5, tokenizer);
    cases.extend(badcases::cases(&[300], 1, 5, tokenizer));
    assert_eq!(cases.len(), 6 + 4);
    for row in rows(&setup, jobs(&cases, &["cloud", "mask:bm25@0.5"])) {
        assert_eq!(row.error, None, "{}", row.case);
        if row.arm == "mask:bm25@0.5" && row.group == "single" {
            assert_eq!(row.recall, Some(1.0), "the question has the needle's words");
        }
        if row.arm == "cloud" && row.group == "everything" {
            assert_eq!(row.score, Some(1.0), "{}", row.text);
        }
    }
}
