//! Tests of keys and values in place of a prefill, with a real engine: which prompt is used, and that the
//! answer is that of exactly this prompt.

use super::real::{local, script_of, short_spec, text_of};
use super::sim::Script;
use super::*;
use crate::local::tests::{continuation, model};
use baton_engine::engine::KvFormat;
use baton_engine::prompt::{PromptSegment, assemble};
use baton_engine::{Engine, EngineOptions, Kept, KvRows, Sampler, SeqId, StepSeq, Wanted};
use baton_generate::speculation::Speculation;
use baton_protocol::{KvEncoding, KvTicket};

/// Tokens that the cloud writes.
const L: usize = 6;
const MODEL: &str = "model";
const PROMPT: &str = "prompt";

fn question() -> AnswerSpec {
    short_spec(SamplingParams::default(), 24, 5)
}

fn ids(segments: &[Segment]) -> Vec<u32> {
    let parts: Vec<PromptSegment<'_>> =
        segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
    assemble(model().tokenizer(), model().template(), &parts).unwrap().ids
}

/// Positions that are kept of a prompt's tokens but the last.
fn kept(tokens: usize) -> Vec<usize> {
    (0..tokens - 1).filter(|at| at / 11 % 2 == 0 || *at + 20 > tokens).collect()
}

/// An engine that has computed all of a prompt but its last token.
fn computed(prompt: &[u32]) -> (Engine, SeqId) {
    let threads = std::num::NonZeroUsize::new(1);
    let options = EngineOptions { threads, kv_tokens: 1024, ..EngineOptions::default() };
    let mut engine = Engine::new(model(), options).unwrap();
    let seq = engine.create();
    let known = &prompt[..prompt.len() - 1];
    engine.step(&[StepSeq { seq, ids: known, logits: Wanted::None, capture: None }], &mut ()).unwrap();
    (engine, seq)
}

/// Returns the kept keys and values of a prompt, as a cloud would send them.
fn rows(prompt: &[u32]) -> KvRows {
    let (engine, seq) = computed(prompt);
    let (kept, layers) = (kept(prompt.len()), engine.kv_widths().unwrap().len());
    let mut rows = KvRows::new(KvFormat::F16, kept.len(), layers);
    for layer in 0..layers {
        let mut bytes = Vec::new();
        engine.export_rows(seq, layer, &kept, KvFormat::F16, &mut bytes).unwrap();
        rows.push(layer, &bytes);
    }
    rows
}

/// Returns what the model writes behind these tokens over the kept keys and values alone.
fn over_kept(spec: &AnswerSpec, accepted: &[u32]) -> Vec<u32> {
    let prompt = ids(&spec.segments);
    let (mut engine, seq) = computed(&prompt);
    let config = model().config().clone();
    let heads = vec![kept(prompt.len()); config.n_layers * config.n_kv_heads];
    let thin = engine.evict(seq, &Kept::new(&heads).unwrap()).unwrap();
    let sampler = Sampler::new(spec.sampling).unwrap();
    let (mut answer, mut feed) = (accepted.to_vec(), [&prompt[prompt.len() - 1..], accepted].concat());
    while answer.len() < spec.tokens_max {
        let step = StepSeq { seq: thin, ids: &feed, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
        let token = sampler.sample(&logits, answer.len() as u64, &answer);
        if model().tokenizer().is_end(token) {
            break;
        }
        answer.push(token);
        feed = vec![token];
    }
    answer
}

fn ticket(spec: &AnswerSpec) -> KvTicket {
    KvTicket {
        bytes: 1_000_000,
        format: KvEncoding::F16,
        tokens: kept(ids(&spec.segments).len()).len() as u32,
        prompt_sha256: PROMPT.into(),
        model: MODEL.into(),
    }
}

fn terms(spec: &AnswerSpec) -> KvTerms {
    KvTerms {
        refused: None,
        model: MODEL.into(),
        prompt_sha256: PROMPT.into(),
        prompt_tokens: ids(&spec.segments).len(),
        line_bytes_per_s: None,
    }
}

/// Keeps every other sentence.
fn mask_of(spec: &AnswerSpec) -> (MaskEvent, Vec<Segment>) {
    let map = SentenceMap::new(&spec.segments);
    let kept: Vec<bool> = (0..map.len()).map(|i| i % 2 == 0).collect();
    (MaskEvent::new(&map, &kept, 0.5, 0.6), baton_refine::rebuild(&spec.segments, &map, &kept))
}

/// Scripts the cloud's part with a mask and an offer, and these news.
fn script(spec: &AnswerSpec, cloud: &[u32], offer: KvTicket, news: Vec<(f64, KvNews)>) -> Script {
    let mut script = vec![(300.0, RelayEvent::Cloud(AssistEvent::Mask(mask_of(spec).0)))];
    script.extend(script_of(cloud, L, None));
    if let RelayEvent::Cloud(AssistEvent::First(first)) = &mut script[1].1 {
        first.kv = Some(offer);
    }
    script.extend(news.into_iter().map(|(at, news)| (at, RelayEvent::Kv(news))));
    script.sort_by(|a, b| a.0.total_cmp(&b.0));
    script
}

/// Runs an answer on a device that is slower than a phone by `slowness`.
fn run(spec: &AnswerSpec, kv: KvTerms, script: Script, slowness: f64) -> (Outcome, Option<KvTicket>) {
    let core = RelayCore::new(RelayConfig { kv: Some(kv), ..config() }, spec.clone(), rules(&[]));
    let mut sim = Sim::new(core, local(&Speculation::Off), script);
    sim.slowness = slowness;
    let outcome = sim.run();
    (outcome, sim.fetched)
}

/// Returns the cloud's tokens, and the answers over the mask and over the kept keys and values.
fn answers(spec: &AnswerSpec) -> (Vec<u32>, String, String) {
    let cloud = continuation(spec, &[])[..L].to_vec();
    let refined = AnswerSpec { segments: Arc::from(mask_of(spec).1), ..spec.clone() };
    let (by_mask, by_kv) = (continuation(&refined, &cloud), over_kept(spec, &cloud));
    (cloud, text_of(&by_mask), text_of(&by_kv))
}

#[test]
fn what_comes_before_the_prefill_ends_is_used_without_a_seam() {
    let spec = question();
    let (cloud, by_mask, by_kv) = answers(&spec);
    assert_ne!(by_mask, by_kv, "the test tells both apart");
    let rows = Arc::new(rows(&ids(&spec.segments)));
    let (slow, _) =
        run(&spec, KvTerms::refusing("no"), script(&spec, &cloud, ticket(&spec), Vec::new()), 20.0);
    assert_eq!(slow.answer, by_mask);
    // The second time, the cloud's part is complete long before.
    for at in [360.0, 900.0] {
        let come = (at - 20.0, KvNews::Come { bytes: 500_000 });
        let news = vec![come, (at, KvNews::Whole(Arc::clone(&rows)))];
        let (outcome, fetched) = run(&spec, terms(&spec), script(&spec, &cloud, ticket(&spec), news), 20.0);
        assert_eq!(fetched, Some(ticket(&spec)));
        assert_eq!((outcome.answer.as_str(), &outcome.ending), (by_kv.as_str(), &Ending::Length), "{at}");
        let kv = outcome.timeline.kv.clone().unwrap();
        assert!(kv.used && kv.reason.is_none(), "{kv:?}");
        assert_eq!((kv.format, kv.fetched_bytes, kv.fetch_ms), (Some("f16"), 1_000_000, at - 300.0));
        assert_eq!(outcome.timeline.prompt_tokens_refined, Some(kv.tokens + 1));
        assert!(!outcome.timeline.is_read_whole());
        assert!(slow.timeline.ttft_device_ms > outcome.timeline.ttft_device_ms, "no prefill");
    }
}

#[test]
fn whichever_is_ready_first_is_used_whenever_that_is() {
    let spec = question();
    let (cloud, by_mask, by_kv) = answers(&spec);
    let rows = Arc::new(rows(&ids(&spec.segments)));
    let mut used = 0;
    for step in 0..120 {
        let at = 300.0 + 5.0 * f64::from(step);
        let news = vec![(at, KvNews::Whole(Arc::clone(&rows)))];
        let (outcome, _) = run(&spec, terms(&spec), script(&spec, &cloud, ticket(&spec), news), 2.0);
        let kv = outcome.timeline.kv.unwrap();
        let want = if kv.used { &by_kv } else { &by_mask };
        assert_eq!(&outcome.answer, want, "at {at} ms: {kv:?}, {}", kv.used);
        assert_eq!(kv.used, kv.reason.is_none());
        used += usize::from(kv.used);
    }
    assert!((10..110).contains(&used), "{used} of 120");
}

#[test]
fn what_fails_at_any_moment_leaves_the_prompt_in_force() {
    let spec = question();
    let (cloud, by_mask, _) = answers(&spec);
    let sound = rows(&ids(&spec.segments));
    let mut faulty = KvRows::new(KvFormat::F16, sound.tokens(), 1);
    faulty.push(0, sound.layer(0));
    let faulty = Arc::new(faulty);
    for step in 0..40 {
        let at = 300.0 + 15.0 * f64::from(step);
        for last in [KvNews::Failed { reason: "cut".into() }, KvNews::Whole(Arc::clone(&faulty))] {
            let news = vec![(at, last)];
            let (outcome, _) = run(&spec, terms(&spec), script(&spec, &cloud, ticket(&spec), news), 2.0);
            assert_eq!(outcome.answer, by_mask, "at {at} ms");
            let kv = outcome.timeline.kv.unwrap();
            assert!(!kv.used && kv.reason.is_some(), "{kv:?}");
        }
    }
}

#[test]
fn nothing_is_fetched_that_does_not_fit_or_does_not_pay() {
    let spec = question();
    let (cloud, by_mask, _) = answers(&spec);
    let check = |terms: KvTerms, offer: KvTicket, want: &str| {
        let (outcome, fetched) = run(&spec, terms, script(&spec, &cloud, offer, Vec::new()), 2.0);
        let reason = outcome.timeline.kv.unwrap().reason.unwrap();
        assert!(fetched.is_none() && reason.contains(want), "{reason}");
        assert_eq!(outcome.answer, by_mask);
    };
    let (terms, ticket) = (|| terms(&spec), || ticket(&spec));
    check(terms(), KvTicket { model: "other".into(), ..ticket() }, "another model");
    check(terms(), KvTicket { prompt_sha256: "other".into(), ..ticket() }, "another prompt");
    check(terms(), KvTicket { tokens: 100_000, ..ticket() }, "more tokens");
    check(KvTerms::refusing("a GPU computes some of the layers"), ticket(), "a GPU");
    // A megabyte over a kilobyte a second.
    check(KvTerms { line_bytes_per_s: Some(1e3), ..terms() }, ticket(), "the line would take 1000000 ms");
    let fast = KvTerms { line_bytes_per_s: Some(1e9), ..terms() };
    let (outcome, fetched) = run(&spec, fast, script(&spec, &cloud, ticket(), Vec::new()), 2.0);
    assert!(fetched.is_some() && outcome.answer == by_mask);
}

#[test]
fn a_fetch_that_turns_out_slow_is_given_up() {
    let spec = question();
    let (cloud, by_mask, _) = answers(&spec);
    let late = KvTicket { bytes: 100_000_000, ..ticket(&spec) };
    let news = [(310.0, 50_000), (450.0, 200_000)].map(|(at, bytes)| (at, KvNews::Come { bytes })).to_vec();
    let (outcome, _) = run(&spec, terms(&spec), script(&spec, &cloud, late, news), 5.0);
    assert_eq!(outcome.answer, by_mask);
    let reason = outcome.timeline.kv.unwrap().reason.unwrap();
    assert!(reason.contains("ms more"), "{reason}");
}
