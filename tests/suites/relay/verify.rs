//! A verified answer is the cloud's own, token for token, whatever the device's model and whatever its
//! refined prompt. A line that is cut costs no token, and none is taken back.

use baton_corpus::{QuestionKind, document};
use baton_device::relay::{Ending, Note, Verification};
use baton_e2e::pair::{Pair, Question, demo_model};
use baton_e2e::simulation::{Line, LineFault, Told};
use baton_protocol::{Corrector, Sampling, VerifyPolicy};

use super::{LINE, TOKENS_MAX, cloud_alone, sampled};

/// Answers that are compared, half of them sampled.
const ANSWERS: u64 = 48;
/// L, small enough that the device writes most of an answer.
const ASSIST: u32 = 8;

fn pair(device: &str, ratio: f32) -> Pair {
    let cloud = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let device = demo_model(device).expect("the demo model is in the checkout");
    let mut pair = Pair::new(cloud, device, ratio, Corrector::Cloud).expect("set up both sides");
    pair.verified(VerifyPolicy::On);
    pair
}

fn question(seed: u64) -> Question {
    let document = document(seed, 100 + 20 * (seed as usize % 12));
    let asked = document.question(QuestionKind::Long).expect("a document has a long question");
    let sampling = if seed.is_multiple_of(2) { Sampling::default() } else { sampled(seed) };
    let question = Question::about(&document, &asked.text, TOKENS_MAX);
    Question { sampling, assist_tokens: Some(ASSIST), ..question }
}

/// Returns what was shown, which must have no token twice and none left out.
fn shown(told: &Told) -> String {
    let indices = told.shown.iter().map(|(index, _)| *index).filter(|&index| index != usize::MAX);
    assert!(indices.enumerate().all(|(at, index)| at == index), "{:?}", told.shown);
    told.shown.iter().map(|(_, text)| text.as_str()).collect()
}

fn verification(told: &Told) -> Verification {
    told.outcome.timeline.verification.expect("the answer was verified")
}

#[test]
fn a_verified_answer_is_the_clouds_own() {
    for (device, ratio) in [("demo-device.gguf", 0.3), ("demo-cloud.gguf", 1.0)] {
        let mut pair = pair(device, ratio);
        let (mut drafted, mut accepted) = (0, 0);
        for seed in 0..ANSWERS {
            let question = question(seed);
            let (ids, text, _) =
                cloud_alone(&mut pair, &Question { refine_mode: Some("none".into()), ..question.clone() });
            let told = pair.relay(&question, LINE).expect("the relay answers");
            assert_eq!(told.outcome.answer, text, "{device}, seed {seed}");
            assert_eq!(shown(&told), text, "{device}, seed {seed}");
            assert_eq!(told.outcome.timeline.shown.len(), ids.len(), "{device}, seed {seed}");
            if ids.len() > ASSIST as usize {
                let checked = verification(&told);
                assert!(checked.requests > 0 && checked.unverified_from.is_none(), "{checked:?}");
                drafted += checked.drafted;
                accepted += checked.accepted;
            }
        }
        assert!(drafted > 200, "{device}: only {drafted} tokens were drafted");
        assert!(accepted * 2 > drafted, "{device}: {accepted} of {drafted} drafted tokens are accepted");
        if device == "demo-cloud.gguf" {
            assert_eq!(accepted, drafted, "a device with the cloud's own prompt and model is always right");
        }
    }
}

#[test]
fn a_cut_costs_no_token_at_any_index() {
    let mut pair = pair("demo-device.gguf", 0.3);
    let question = question(6);
    let (ids, text, _) =
        cloud_alone(&mut pair, &Question { refine_mode: Some("none".into()), ..question.clone() });
    assert!(ids.len() > 24, "the answer has {} tokens", ids.len());
    for cut in 0..=ids.len() {
        let once = Line { fault: LineFault::CutOnceAt(cut), ..LINE };
        let told = pair.relay(&question, once).expect("the relay answers");
        assert!(!matches!(told.outcome.ending, Ending::Failed(_)), "cut {cut}: {:?}", told.outcome.ending);
        assert_eq!(shown(&told), told.outcome.answer, "cut {cut}");
        if cut >= ASSIST as usize {
            assert_eq!(told.outcome.answer, text, "a draft is sent again, cut {cut}");
        }
        let for_ever = Line { fault: LineFault::CutAt(cut), ..LINE };
        let told = pair.relay(&question, for_ever).expect("the relay answers");
        assert!(!matches!(told.outcome.ending, Ending::Failed(_)), "cut {cut}: {:?}", told.outcome.ending);
        assert_eq!(shown(&told), told.outcome.answer, "cut {cut}");
        let from = told.outcome.timeline.verification.and_then(|checked| checked.unverified_from);
        let Some(from) = from.filter(|_| cut >= ASSIST as usize) else {
            assert!(cut < ASSIST as usize || told.outcome.answer == text, "cut {cut}: {:?}", told.notes);
            continue;
        };
        let noted = |note: &Note| matches!(note, Note::Unverified { at, .. } if *at == from);
        assert!(told.notes.iter().any(noted), "cut {cut}: {:?}", told.notes);
        assert!((ASSIST as usize..=cut).contains(&from), "cut {cut} is noted at {from}");
    }
}

#[test]
fn without_the_scenes_consent_nothing_is_verified() {
    let mut pair = pair("demo-device.gguf", 0.3);
    pair.verified(VerifyPolicy::Off);
    let told = pair.relay(&question(6), LINE).expect("the relay answers");
    assert_eq!(told.outcome.timeline.verification, None);
}
