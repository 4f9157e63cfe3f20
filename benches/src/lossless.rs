//! `baton-bench lossless`: answers that the device drafts and the cloud checks, beside the cloud alone and
//! beside the relay without checks.
//!
//! Both engines compute for real; time is virtual, at the speeds of the demo's phone and cloud. A pass of the
//! cloud costs its whole decode step, also if it only checks a draft: that is the time to read the weights.

mod pairs;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use baton_device::relay::{Ending, Verification};
use baton_e2e::pair::Question;
use baton_e2e::simulation::{Line, LineFault, Told};
use baton_engine::pace_emulation::PassCost;
use baton_protocol::{AssistEvent, VerifyPolicy};
use serde_json::json;

use self::pairs::Subject;
use crate::report::Report;

/// Largest tolerable gap of the scene, in milliseconds.
const TAU_MS: f64 = 100.0;
/// Round trips of the line, in milliseconds.
const TRIPS_MS: [f64; 4] = [20.0, 100.0, 200.0, 300.0];
/// Acceptance from which on the bound of the passes is claimed.
const ACCEPTANCE: f64 = 0.8;
/// Slots of the cloud for requests per second.
const SLOTS: f64 = 8.0;
/// The cloud: a pass that begins a prompt or checks a draft reads the weights once, as a decode step does.
/// Prompts are computed at 10,000 tokens a second.
const CLOUD: PassCost = PassCost { base_ms: 20.0, prefill_ms_per_token: 0.1, decode_ms: 20.0 };

/// Options of `baton-bench lossless`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Answers of the demo models at each round trip; half of them are sampled at temperature 0.8
    #[arg(long, default_value_t = 128)]
    answers: usize,
    /// Answers of the real model with each of its requantized copies
    #[arg(long, default_value_t = 12)]
    real_answers: usize,
    /// GGUF file of the real cloud model [default: SmolLM2-135M-Instruct, which is fetched once]
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Measure the demo models only
    #[arg(long)]
    no_real: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    ensure!(args.answers >= 4, "needs at least 4 answers");
    let begun = Instant::now();
    let mut report = Report::new("lossless");
    report.note(format!(
        "virtual time: a phone at 45 ms a token, a cloud at {} ms a pass, tau {TAU_MS} ms",
        CLOUD.decode_ms
    ));
    let mut all = Vec::new();
    for subject in pairs::subjects(args, &mut report)? {
        for trip_ms in subject.trips_ms() {
            all.push(measure(&subject, *trip_ms).with_context(|| format!("measure {}", subject.name))?);
        }
    }
    tables(&all, &mut report);
    checks(&all, &mut report);
    cuts(&mut report)?;
    report.data("seconds", begun.elapsed().as_secs());
    Ok(report)
}

/// Sums over the answers of one pair at one round trip.
#[derive(Debug, Default)]
struct Sums {
    name: String,
    trip_ms: f64,
    answers: usize,
    equal: usize,
    /// Answers without a gap above tau, and the largest gap.
    in_pace: usize,
    gap_ms: f64,
    /// Tokens of the answers, and those of the cloud's first part.
    tokens: usize,
    first: usize,
    checked: Verification,
    /// The same sums over answers with at least [`ACCEPTANCE`].
    likely: Likely,
    slot_ms: SlotMs,
    open_mb_s: f64,
}

/// Sums over answers whose drafts are mostly right.
#[derive(Debug, Default, Clone, Copy)]
struct Likely {
    answers: usize,
    passes: f64,
    /// L and a quarter of the rest.
    bound: f64,
    /// The same, if tokens that the cloud wrote behind drafts beyond one for each count as L.
    bound_with_written: f64,
}

/// Time in slots of the same answers, in milliseconds.
#[derive(Debug, Default, Clone, Copy)]
struct SlotMs {
    verified: f64,
    relay: f64,
    alone: f64,
}

/// Returns the ids and the text of the cloud's own whole answer, and its time in a slot.
fn alone(subject: &mut Subject, question: &Question) -> Result<(usize, String, f64)> {
    let whole = Question {
        assist_tokens: u32::try_from(question.tokens_max).ok(),
        refine_mode: Some("none".to_owned()),
        ..question.clone()
    };
    let request = subject.pair.request(&whole);
    let events = subject.pair.cloud.answer(&request)?;
    let (mut tokens, mut text, mut slot_ms) = (0, String::new(), 0.0);
    for event in events {
        match event {
            AssistEvent::First(first) => {
                tokens += 1;
                text.push_str(&first.text);
            }
            AssistEvent::Token(token) => {
                tokens += 1;
                text.push_str(&token.text);
            }
            AssistEvent::End(end) => slot_ms = end.timing.map_or(0.0, |timing| timing.slot_ms),
            AssistEvent::Progress(_) | AssistEvent::Mask(_) => {}
            AssistEvent::Error(err) => anyhow::bail!("the cloud fails: {err}"),
        }
    }
    Ok((tokens, text, slot_ms))
}

fn slot_ms(told: &Told) -> f64 {
    let slot = told.outcome.timeline.cloud_timing.and_then(|timing| timing.slot);
    slot.map_or(0.0, |slot| slot.slot_ms)
}

fn measure(subject: &Subject, trip_ms: f64) -> Result<Sums> {
    let line = Line { latency_ms: trip_ms, upload_ms: 0.0, fault: LineFault::None };
    let mut subject = subject.fresh()?;
    let mut sums = Sums { name: subject.name.clone(), trip_ms, ..Sums::default() };
    for question in std::mem::take(&mut subject.questions) {
        let (tokens, text, alone_ms) = alone(&mut subject, &question)?;
        subject.pair.verified(VerifyPolicy::Off);
        let relay = subject.pair.relay(&question, line)?;
        subject.pair.verified(VerifyPolicy::On);
        let told = subject.pair.relay(&question, line)?;
        sums.add(&told, tokens, &text);
        sums.slot_ms.relay += slot_ms(&relay);
        sums.slot_ms.alone += alone_ms;
    }
    sums.open_mb_s = subject.open_byte_seconds() / 1e6;
    Ok(sums)
}

impl Sums {
    fn add(&mut self, told: &Told, tokens: usize, text: &str) {
        let timeline = &told.outcome.timeline;
        let checked = timeline.verification.unwrap_or_default();
        let gap_ms = timeline.gaps_ms().into_iter().fold(0.0, f64::max);
        let first = timeline.assist_tokens.unwrap_or(0).min(tokens);
        self.answers += 1;
        self.equal += usize::from(told.outcome.answer == text && checked.unverified_from.is_none());
        self.in_pace += usize::from(gap_ms <= TAU_MS);
        self.gap_ms = self.gap_ms.max(gap_ms);
        self.tokens += tokens;
        self.first += first;
        self.slot_ms.verified += slot_ms(told) + checked.slot_ms as f64;
        let sum = &mut self.checked;
        sum.requests += checked.requests;
        sum.passes += checked.passes;
        sum.drafted += checked.drafted;
        sum.accepted += checked.accepted;
        sum.rejected += checked.rejected;
        sum.written += checked.written;
        let share = checked.accepted as f64 / checked.drafted.max(1) as f64;
        if checked.drafted > 0 && share >= ACCEPTANCE {
            let (first, rest) = (first as f64, (tokens - first) as f64);
            let beyond = checked.written.saturating_sub(checked.requests) as f64;
            self.likely.answers += 1;
            self.likely.passes += first + checked.passes as f64;
            self.likely.bound += first + rest / 4.0;
            self.likely.bound_with_written += first + beyond + (rest - beyond).max(0.0) / 4.0;
        }
    }

    fn acceptance(&self) -> f64 {
        self.checked.accepted as f64 / self.checked.drafted.max(1) as f64
    }

    /// Returns requests per second if all slots are in use.
    fn rate(&self, slot_ms: f64) -> f64 {
        SLOTS * self.answers as f64 / slot_ms.max(1e-9) * 1e3
    }
}

fn tables(all: &[Sums], report: &mut Report) {
    let number = |value: f64| format!("{value:.2}");
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|sums| {
            let (answers, likely) = (sums.answers as f64, sums.likely);
            vec![
                format!("{}, {} ms", sums.name, sums.trip_ms),
                format!("{} of {}", sums.equal, sums.answers),
                format!("{:.3}", sums.acceptance()),
                number(sums.tokens as f64 / answers),
                number(sums.first as f64 / answers),
                number(sums.checked.passes as f64 / answers),
                number(sums.checked.written as f64 / answers),
                format!("{} / {}", number(likely.passes), number(likely.bound)),
                format!("{} of {}", sums.in_pace, sums.answers),
                number(sums.gap_ms),
            ]
        })
        .collect();
    let header = [
        "pair, round trip",
        "equal",
        "accepted",
        "tokens",
        "L",
        "passes",
        "written",
        "passes / bound",
        "in pace",
        "largest gap",
    ];
    report.table("verified answers (means of an answer; times in ms)", &header, &rows);
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|sums| {
            let SlotMs { verified, relay, alone } = sums.slot_ms;
            let each = |slot_ms: f64| number(slot_ms / sums.answers as f64 / 1e3);
            vec![
                format!("{}, {} ms", sums.name, sums.trip_ms),
                each(verified),
                each(relay),
                each(alone),
                number(sums.rate(verified)),
                number(sums.rate(relay)),
                number(sums.rate(alone)),
                number(sums.open_mb_s / sums.answers as f64),
            ]
        })
        .collect();
    let header = ["pair, round trip", "verified", "L only", "alone", "req/s", "L only", "alone", "kept MB s"];
    report.table("slot seconds of an answer, requests/s of 8 slots, keys and values kept", &header, &rows);
    let data: Vec<_> = all
        .iter()
        .map(|sums| {
            json!({
                "pair": sums.name, "round_trip_ms": sums.trip_ms, "answers": sums.answers,
                "equal": sums.equal, "acceptance": sums.acceptance(), "in_pace": sums.in_pace,
                "largest_gap_ms": sums.gap_ms, "tokens": sums.tokens, "first_tokens": sums.first,
                "verification": sums.checked, "slot_ms_verified": sums.slot_ms.verified,
                "slot_ms_relay": sums.slot_ms.relay, "slot_ms_alone": sums.slot_ms.alone,
                "kept_mb_s": sums.open_mb_s, "likely_answers": sums.likely.answers,
                "likely_passes": sums.likely.passes, "likely_bound": sums.likely.bound,
                "likely_bound_with_written": sums.likely.bound_with_written,
            })
        })
        .collect();
    report.data("points", data);
}

fn checks(all: &[Sums], report: &mut Report) {
    let answers: usize = all.iter().map(|sums| sums.answers).sum();
    let equal: usize = all.iter().map(|sums| sums.equal).sum();
    report.check_at_least("answers", answers as f64, 500.0);
    report.check_equal("answers equal to the cloud alone", equal as f64, answers as f64);
    for sums in all {
        let what = format!("{}, {} ms", sums.name, sums.trip_ms);
        if sums.likely.answers > 0 {
            let Likely { passes, bound, .. } = sums.likely;
            report.check_at_most(format!("{what}: passes / (L + (n - L) / 4)"), passes / bound, 1.0);
        }
        report.check_at_most(format!("{what}: largest gap, ms"), sums.gap_ms, TAU_MS);
        let ratio = sums.slot_ms.verified / sums.slot_ms.alone.max(1e-9);
        report.check_at_most(format!("{what}: slot time beside the cloud alone"), ratio, 1.0);
    }
}

/// Cuts the line at every token, for good and once.
fn cuts(report: &mut Report) -> Result<()> {
    let mut subject = pairs::demo(4)?.fresh()?;
    subject.pair.verified(VerifyPolicy::On);
    let (mut runs, mut unfinished, mut taken_back) = (0, 0, 0);
    for question in std::mem::take(&mut subject.questions) {
        let (tokens, ..) = alone(&mut subject, &question)?;
        for cut in 0..=tokens {
            for fault in [LineFault::CutAt(cut), LineFault::CutOnceAt(cut)] {
                let told =
                    subject.pair.relay(&question, Line { latency_ms: 100.0, upload_ms: 0.0, fault })?;
                let indices = told.shown.iter().map(|(index, _)| *index).filter(|at| *at != usize::MAX);
                let shown: String = told.shown.iter().map(|(_, text)| text.as_str()).collect();
                let in_order = indices.enumerate().all(|(at, index)| at == index);
                runs += 1;
                unfinished += usize::from(!matches!(told.outcome.ending, Ending::Stop | Ending::Length));
                taken_back += usize::from(!in_order || shown != told.outcome.answer);
            }
        }
    }
    report.note(format!("\nlines cut at every token: {runs} answers"));
    report.check_at_least("answers whose line was cut", f64::from(runs), 100.0);
    report.check_equal("unfinished", unfinished as f64, 0.0);
    report.check_equal("with a token that is taken back, repeated or left out", taken_back as f64, 0.0);
    Ok(())
}
