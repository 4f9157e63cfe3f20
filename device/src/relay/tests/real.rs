//! Tests with a real engine and a model of random weights: the relay writes what the cloud alone would have
//! written.

use super::*;
use crate::local::tests::{continuation, model};
use crate::local::{Driven, LocalOptions};
use crate::relay::tests::sim::RealEngine;
use baton_engine::sampling::SamplingParams;
use baton_engine::{Engine, EngineOptions};
use baton_generate::speculation::Speculation;

pub(super) fn local(speculation: &Speculation) -> RealEngine<Engine> {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let proposer = speculation.proposer(&model(), options.clone()).unwrap();
    let local = LocalOptions { proposer, ..LocalOptions::new(options.kv_tokens) };
    RealEngine::new(Driven::new(Engine::new(model(), options).unwrap(), local))
}

pub(super) fn short_spec(sampling: SamplingParams, tokens_max: usize, seed: usize) -> AnswerSpec {
    let document: String = (0..6).map(|i| format!("Item {} of {seed} is here. ", i * seed)).collect();
    let segments = vec![
        Segment::fixed(Role::System, "You answer."),
        Segment::refinable(Role::User, document),
        Segment::fixed(Role::User, "\n\nQuestion: why?"),
    ];
    AnswerSpec::plain(Arc::from(segments), sampling, tokens_max)
}

pub(super) fn script_of(ids: &[u32], l: usize, texts: Option<&[String]>) -> Vec<(f64, RelayEvent)> {
    let text = |i: usize| texts.map_or(String::new(), |t| t[i].clone());
    let mut first = first(l as u32);
    (first.id, first.text) = (ids[0], text(0));
    if texts.is_some() {
        first.tokenizer_sha256 = Some("0".repeat(64));
    }
    let mut script = vec![(300.0, RelayEvent::Cloud(AssistEvent::First(Box::new(first))))];
    script.extend((1..l).map(|i| {
        let token = TokenEvent { index: i as u32, id: ids[i], text: text(i) };
        (300.0 + 20.0 * i as f64, RelayEvent::Cloud(AssistEvent::Token(token)))
    }));
    script.push((300.0 + 20.0 * l as f64, end_event(EndReason::Cap, l)));
    script
}

pub(super) fn text_of(ids: &[u32]) -> String {
    let mut detokenizer = baton_engine::detokenize::Detokenizer::new(tokenizer());
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

fn relay(spec: &AnswerSpec, script: Vec<(f64, RelayEvent)>) -> Outcome {
    let config = RelayConfig { refine: false, ..config() };
    let run = |engine: RealEngine<Engine>| {
        let core = RelayCore::new(config.clone(), spec.clone(), rules(&[]));
        Sim::new(core, engine, script.clone()).run()
    };
    let outcome = run(local(&Speculation::Off));
    // Proposed tokens change how many tokens come at once, never which ones.
    let speculated = run(local(&Speculation::Lookup));
    assert_eq!((&speculated.answer, &speculated.ending), (&outcome.answer, &outcome.ending));
    outcome
}

/// Relays an answer whose cloud must keep to a form; returns the codes of its notes too.
pub(super) fn relay_guarded(
    spec: AnswerSpec,
    form: baton_constrain::Constraint,
    script: Vec<(f64, RelayEvent)>,
) -> (Outcome, Vec<&'static str>) {
    let core = RelayCore::new(RelayConfig { refine: false, ..config() }, spec, rules(&[]));
    let mut sim = Sim::new(core.with_guard(Some(FormGuard::new(form))), local(&Speculation::Off), script);
    let outcome = sim.run();
    (outcome, sim.notes())
}

#[test]
fn equal_models_write_the_same_greedy_and_sampled() {
    for seed in 1..=6 {
        let sampling = match seed % 2 {
            0 => SamplingParams::default(),
            _ => SamplingParams { temperature: 1.0, seed: seed as u64, ..SamplingParams::default() },
        };
        let spec = short_spec(sampling, 24, seed);
        let alone = continuation(&spec, &[]);
        for l in [1, alone.len().min(9)] {
            let outcome = relay(&spec, script_of(&alone, l, None));
            assert_eq!(outcome.answer, text_of(&alone), "seed {seed}, L {l}");
            assert_eq!(outcome.timeline.agreement, Some(1.0), "seed {seed}, L {l}");
        }
    }
}

#[test]
fn after_a_cut_the_device_continues_the_same_accepted_prefix() {
    let spec = short_spec(SamplingParams::default(), 20, 3);
    // This model would not have written these tokens, so a wrong prefix shows.
    let cloud: Vec<u32> = "qzxjkvwpym".chars().map(letter).collect();
    for cut in 0..=cloud.len() {
        let mut script = script_of(&cloud, cloud.len(), None);
        script.truncate(cut);
        script.push((900.0, RelayEvent::CloudLost(CloudFault::Disconnected)));
        let outcome = relay(&spec, script);
        let want = continuation(&spec, &cloud[..cut]);
        assert_eq!(outcome.answer, text_of(&want), "cut at {cut}");
    }
}

#[test]
fn with_other_tokenizers_the_accepted_text_stays_and_the_device_goes_on() {
    let spec = short_spec(SamplingParams::default(), 20, 4);
    for pieces in [&["The", " re", "port", " say", "s né"][..], &["好。", "", "他", "说 x"], &["one two thr"]]
    {
        let texts: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        let ids = vec![7; texts.len()];
        let outcome = relay(&spec, script_of(&ids, texts.len(), Some(&texts)));
        let accepted = texts.concat();
        assert!(outcome.answer.starts_with(&accepted), "{:?} after {accepted:?}", outcome.answer);
        // The vocabulary is bytes, so continuing the text is the same as continuing its bytes.
        let own = tokenizer().encode(&accepted);
        let want =
            continuation(&AnswerSpec { tokens_max: own.len() + 20 - texts.len(), ..spec.clone() }, &own);
        assert_eq!(outcome.answer.trim_end_matches('\u{fffd}'), text_of(&want).trim_end_matches('\u{fffd}'));
        assert!(outcome.timeline.agreement.is_some());
    }
}
