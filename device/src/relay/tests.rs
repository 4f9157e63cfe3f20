//! Tests the relay core in virtual time, with a scripted cloud and a scripted or real engine.

mod continues;
mod faults;
mod hostile;
mod kv;
mod properties;
mod real;
mod sim;
mod tools;

use super::*;
use crate::privacy::{Redactor, Restorer};
use baton_engine::sampling::SamplingParams;
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::Tokenizer;
use baton_protocol::{
    AssistEvent, EndEvent, EndReason, FirstEvent, MaskEvent, PROTOCOL_VERSION, Role, Segment, Timing,
    TokenEvent, Usage,
};
use sim::{ScriptedEngine, Sim};
use std::sync::{Arc, LazyLock};

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let bytes = baton_synthetic::SyntheticModel::small("llama", baton_kernels_format(), 1).to_gguf().unwrap();
    let gguf = baton_engine::gguf::Gguf::from_bytes(bytes).unwrap();
    Arc::new(Tokenizer::from_gguf(&gguf).unwrap())
});

fn baton_kernels_format() -> baton_kernels_cpu::Format {
    baton_kernels_cpu::Format::F32
}

fn tokenizer() -> Arc<Tokenizer> {
    TOKENIZER.clone()
}

/// Returns the id of a one-letter token.
fn letter(c: char) -> u32 {
    let ids = tokenizer().encode(&c.to_string());
    assert_eq!(ids.len(), 1);
    ids[0]
}

/// Returns the lower-case letter that the cloud writes at index `i`.
fn cloud_letter(i: usize) -> char {
    char::from(b'a' + (i % 26) as u8)
}

/// Returns the upper-case letter that the device writes at index `i`.
fn device_letter(i: usize) -> char {
    char::from(b'A' + (i % 26) as u8)
}

fn segments() -> Arc<[Segment]> {
    let document: String = (0..40).map(|i| format!("The thing number {i} is here. ")).collect();
    Arc::from(vec![
        Segment::fixed(Role::System, "You answer."),
        Segment::refinable(Role::User, document),
        Segment::fixed(Role::User, "\n\nQuestion: why?"),
    ])
}

fn config() -> RelayConfig {
    RelayConfig {
        mode: RelayMode::Relay,
        has_device: true,
        pace: PaceMode::Paced,
        tau_ms: 100.0,
        refine: true,
        corrector: Corrector::Cloud,
        corrector_override: None,
        verify: VerifyPolicy::Off,
        cost: DeviceCost {
            prefill_ms_per_token: 2.5,
            prefill_ms_per_token2: 0.0,
            decode_ms: 45.0,
            decompress_ms: 0.0,
        },
        hedge_after_ms: 1_500.0,
        first_timeout_ms: 10_000.0,
        idle_timeout_ms: 5_000.0,
        may_continue: true,
        kv: None,
        first_prompt: PromptId(16),
    }
}

fn spec(tokens_max: usize) -> AnswerSpec {
    AnswerSpec { shorten: true, ..AnswerSpec::plain(segments(), SamplingParams::default(), tokens_max) }
}

fn rules(stop: &[&str]) -> TextRules {
    let stop: Vec<String> = stop.iter().map(ToString::to_string).collect();
    TextRules {
        tokenizer: tokenizer(),
        restorer: Restorer::new(Redactor::default().table()),
        stop: StopStrings::new(&stop).unwrap(),
    }
}

fn core(config: RelayConfig, tokens_max: usize) -> RelayCore {
    RelayCore::new(config, spec(tokens_max), rules(&[]))
}

fn first(assist_tokens: u32) -> FirstEvent {
    FirstEvent {
        protocol: PROTOCOL_VERSION,
        scene_version: 1,
        index: 0,
        id: letter(cloud_letter(0)),
        text: cloud_letter(0).to_string(),
        assist_tokens,
        assist_bound_by: "tau".into(),
        tau_ms: 100.0,
        corrector: Corrector::Cloud,
        model: None,
        adapter: None,
        tokenizer_sha256: Some(tokenizer().digest_hex().to_owned()),
        timing: Timing::default(),
        experiment: None,
        verify: None,
        kv: None,
    }
}

fn first_event(assist_tokens: u32) -> RelayEvent {
    RelayEvent::Cloud(AssistEvent::First(Box::new(first(assist_tokens))))
}

fn token_event(i: usize) -> RelayEvent {
    let c = cloud_letter(i);
    RelayEvent::Cloud(AssistEvent::Token(TokenEvent { index: i as u32, id: letter(c), text: c.to_string() }))
}

fn end_event(reason: EndReason, tokens: usize) -> RelayEvent {
    let usage = Usage { completion_tokens: tokens as u64, ..Usage::default() };
    RelayEvent::Cloud(AssistEvent::End(EndEvent { reason, usage, timing: None }))
}

/// Makes a mask that keeps every fourth sentence.
fn mask() -> MaskEvent {
    let map = SentenceMap::new(&segments());
    let kept: Vec<bool> = (0..map.len()).map(|i| i % 4 == 0).collect();
    MaskEvent::new(&map, &kept, 0.25, 0.3)
}

fn mask_event() -> RelayEvent {
    RelayEvent::Cloud(AssistEvent::Mask(mask()))
}

/// Scripts a well-behaved cloud: mask and first token after 300 ms, then a token every 20 ms, `l` tokens in
/// all.
fn good_cloud(l: usize) -> Vec<(f64, RelayEvent)> {
    let mut script = vec![(300.0, mask_event()), (300.0, first_event(l as u32))];
    script.extend((1..l).map(|i| (300.0 + 20.0 * i as f64, token_event(i))));
    script.push((300.0 + 20.0 * l as f64, end_event(EndReason::Cap, l)));
    script
}

/// Makes an engine that writes the device's letters and ends after `end_at` tokens.
fn engine(end_at: usize) -> ScriptedEngine {
    ScriptedEngine::new(|i| letter(device_letter(i)), end_at)
}

/// Returns the expected answer if the first `cloud` tokens are the cloud's and the device ends at `end_at`.
fn expected(cloud: usize, end_at: usize) -> String {
    (0..end_at.max(cloud)).map(|i| if i < cloud { cloud_letter(i) } else { device_letter(i) }).collect()
}

#[test]
fn the_cloud_begins_and_the_device_finishes() {
    let mut sim = Sim::new(core(config(), 100), engine(70), good_cloud(26));
    let outcome = sim.run();
    assert_eq!(outcome.ending, Ending::Stop);
    assert_eq!(outcome.answer, expected(26, 70));
    let t = &outcome.timeline;
    assert_eq!((t.tokens_from(Source::Cloud), t.tokens_from(Source::Device)), (26, 44));
    assert_eq!(t.ttft_user_ms, Some(300.0), "the first token is shown at once");
    assert_eq!(t.assist_tokens, Some(26));
    assert_eq!(t.refined_ratio, Some(0.25));
    assert!(t.mask_bytes.is_some_and(|n| n <= 5 + 12), "{:?}", t.mask_bytes);
    assert_eq!(t.agreement, Some(0.0), "the scripted device would have written other letters");
    assert!(t.prompt_tokens_refined < t.prompt_tokens);
    assert_eq!(sim.notes(), [""; 0]);
    let largest = t.gaps_ms().into_iter().fold(0.0, f64::max);
    assert!(largest <= 100.0, "largest gap {largest}");
}

#[test]
fn with_r_1_the_device_prefills_from_the_start() {
    let relay = RelayConfig { refine: false, ..config() };
    let script: Vec<_> = good_cloud(20).into_iter().skip(1).collect();
    let mut sim = Sim::new(core(relay, 60), engine(50), script);
    let outcome = sim.run();
    assert_eq!(outcome.answer, expected(20, 50));
    assert_eq!(outcome.timeline.prompt_tokens_refined, outcome.timeline.prompt_tokens);
    assert_eq!(outcome.timeline.refined_ratio, None);
}

#[test]
fn device_alone_and_cloud_alone() {
    let alone = RelayConfig { mode: RelayMode::DeviceOnly, ..config() };
    let outcome = Sim::new(core(alone, 100), engine(30), Vec::new()).run();
    assert_eq!((outcome.answer, outcome.ending), (expected(0, 30), Ending::Stop));

    let cloud = RelayConfig { mode: RelayMode::CloudOnly, ..config() };
    let mut script = good_cloud(100);
    script.truncate(41);
    script.push((2_000.0, end_event(EndReason::Stop, 40)));
    let mut sim = Sim::new(core(cloud, 100), engine(30), script);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (expected(40, 0), Ending::Stop));
    assert_eq!(sim.engine_commands, 0, "the device did nothing");
}

#[test]
fn the_token_limit_ends_an_answer() {
    for tokens_max in [1, 5, 26, 27, 40] {
        let outcome = Sim::new(core(config(), tokens_max), engine(70), good_cloud(26)).run();
        assert_eq!(outcome.ending, Ending::Length, "limit {tokens_max}");
        assert_eq!(outcome.answer, expected(26.min(tokens_max), tokens_max));
    }
}

#[test]
fn stop_strings_end_an_answer_whoever_wrote_them() {
    for (stop, want) in
        [("ef", "abcd"), ("zA", "abcdefghijklmnopqrstuvwxy"), ("CD", "abcdefghijklmnopqrstuvwxyzAB")]
    {
        let core = RelayCore::new(config(), spec(100), rules(&[stop]));
        let outcome = Sim::new(core, engine(70), good_cloud(26)).run();
        assert_eq!((outcome.answer.as_str(), outcome.ending), (want, Ending::Stop), "stop {stop}");
    }
}

#[test]
fn the_device_corrects_what_is_not_shown() {
    let relay = RelayConfig { corrector_override: Some(Corrector::Device), ..config() };
    let mut sim = Sim::new(core(relay, 60), engine(40), good_cloud(26));
    let outcome = sim.run();
    let cloud = outcome.timeline.tokens_from(Source::Cloud);
    assert!(cloud < 26, "unshown cloud tokens are replaced, {cloud} stay");
    assert_eq!(outcome.answer, expected(cloud, 40));
    assert_eq!(sim.notes(), ["corrected"]);
}

#[test]
fn cancelling_stops_both_sides_at_once() {
    for at in [0.0, 250.0, 310.0, 1_000.0, 2_600.0] {
        let mut script = good_cloud(26);
        script.push((at, RelayEvent::Cancel));
        let mut sim = Sim::new(core(config(), 100), engine(90), script);
        let outcome = sim.run();
        assert_eq!(outcome.ending, Ending::Cancelled, "at {at}");
        assert!(expected(26, 90).starts_with(&outcome.answer), "{}", outcome.answer);
        assert!(sim.engine_stopped, "at {at}");
        assert!(sim.cloud_closed(), "at {at}");
    }
}

#[test]
fn a_cloud_that_wrote_all_still_tells_its_cost() {
    for pace in [PaceMode::Paced, PaceMode::Instant] {
        let cloud = RelayConfig { mode: RelayMode::CloudOnly, pace, ..config() };
        let outcome = Sim::new(core(cloud.clone(), 26), engine(30), good_cloud(26)).run();
        assert_eq!(outcome.ending, Ending::Length);
        assert_eq!(outcome.timeline.cloud_usage.map(|u| u.completion_tokens), Some(26));
        // A missing `end` causes only a short delay.
        let mut script = good_cloud(26);
        script.pop();
        let mut sim = Sim::new(core(cloud, 26), engine(30), script);
        let outcome = sim.run();
        assert_eq!((outcome.answer, outcome.timeline.cloud_usage), (expected(26, 0), None));
        assert!(sim.cloud_closed());
    }
}

#[test]
fn cancelling_an_answer_that_is_all_shown_leaves_its_last_letters() {
    let cloud = RelayConfig { mode: RelayMode::CloudOnly, pace: PaceMode::Instant, ..config() };
    let mut script = good_cloud(26);
    // The last token comes at 800 ms; the `end` never comes.
    script.pop();
    script.push((850.0, RelayEvent::Cancel));
    // The last letter is held back, because it may begin a stop string.
    let core = RelayCore::new(cloud, spec(26), rules(&["z!"]));
    let mut sim = Sim::new(core, engine(30), script);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (expected(26, 0), Ending::Length));
    assert_eq!(sim.now(), 850.0, "it ends at once");
    assert!(sim.cloud_closed());
}

#[test]
fn nothing_happens_before_begin_or_after_the_end() {
    let mut core = core(config(), 10);
    assert_eq!(core.step(first_event(3), Millis::ZERO), []);
    let effects = core.step(RelayEvent::Begin, Millis::ZERO);
    assert!(effects.contains(&RelayEffect::Ask));
    let effects = core.step(RelayEvent::Cancel, Millis::new(1.0));
    assert!(matches!(effects.last(), Some(RelayEffect::Finish(_))));
    assert!(core.finished());
    assert_eq!(core.step(first_event(3), Millis::new(2.0)), []);
    assert_eq!(core.step(RelayEvent::Cancel, Millis::new(3.0)), []);
}
