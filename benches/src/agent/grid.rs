//! The choice of routes on emulated devices, prompts and networks, audited: each turn is run in all three
//! ways, in virtual time.
//!
//! The relay's core, the device's host and the cloud's service are the real ones. Engines compute nothing and
//! take the time of the emulated machine. Choices are made from estimates that are wrong by up to 15 %, as
//! measured ones are.

use anyhow::{Context as _, Result, ensure};
use baton_device::relay::{RelayMode, Source, Timeline};
use baton_e2e::demo::emulation::{CLOUD, PHONE, Speed};
use baton_e2e::pair::{Pair, Question};
use baton_e2e::sim::engine::long_model;
use baton_e2e::simulation::{Line, LineFault};
use baton_pacing::optimizer::{OptimizerInput, PromptShape, ScenePolicy, SlowDevice};
use baton_pacing::refit::median;
use baton_pacing::route::{Outlook, Route, Turn, Weights, choose};
use baton_pacing::{CloudCost, DeviceCost};
use baton_protocol::{Role, Sampling, Segment};
use serde_json::json;

use crate::random::Random;
use crate::report::Report;

/// The least share of the device's wait that a relay must save.
const SAVED_MIN: f64 = 0.6;
/// The most that the choices cost more than the best ones, on average.
const REGRET_MAX: f64 = 0.05;
/// The largest tolerable gap, in milliseconds, and what a timer may be late.
const TAU_MS: f64 = 100.0;
/// Share of the content that is kept.
const RATIO: f32 = 0.25;
/// Tokens of an answer.
const ANSWER: usize = 200;
/// How wrong an estimate may be.
const WRONG: f64 = 0.15;
/// Bytes of text that a token stands for. Tokens of the emulated models are single bytes.
const BYTES_A_TOKEN: f64 = 4.0;
const LENGTHS: [usize; 7] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768];

const TABLET: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 1.2, decode_ms: 30.0 };
const LAPTOP: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 0.5, decode_ms: 18.0 };

/// A network: one way through it in milliseconds, and bytes a millisecond.
#[derive(Clone, Copy)]
struct Network {
    name: &'static str,
    latency_ms: f64,
    bytes_per_ms: f64,
}

const DEVICES: [(&str, Speed); 3] = [("phone", PHONE), ("tablet", TABLET), ("laptop", LAPTOP)];
const NETWORKS: [Network; 3] = [
    Network { name: "LAN", latency_ms: 1.0, bytes_per_ms: 100_000.0 },
    Network { name: "Wi-Fi", latency_ms: 8.0, bytes_per_ms: 2_500.0 },
    Network { name: "LTE", latency_ms: 40.0, bytes_per_ms: 625.0 },
];

/// One turn in all three ways.
struct Cell {
    device: &'static str,
    tokens: usize,
    network: &'static str,
    chosen: Route,
    /// In the order of [`Route::ALL`].
    runs: [Outlook; 3],
}

impl Cell {
    fn run(&self, route: Route) -> &Outlook {
        &self.runs[route as usize]
    }

    fn weighted(&self, route: Route) -> f64 {
        Weights::default().of(route, self.run(route), Some(TAU_MS), ANSWER as f64)
    }

    /// Returns what the choice costs more than the best one, as a share.
    fn regret(&self) -> f64 {
        let best = Route::ALL.into_iter().map(|route| self.weighted(route)).fold(f64::INFINITY, f64::min);
        self.weighted(self.chosen) / best - 1.0
    }

    /// Returns the share of the device's wait that the choice saves.
    fn saved(&self) -> f64 {
        1.0 - self.run(self.chosen).first_ms / self.run(Route::Device).first_ms
    }
}

/// Chooses a route for each cell of the grid, and runs all.
pub(super) fn measure(report: &mut Report) -> Result<()> {
    let mut cells = Vec::new();
    for (at, (device, speed)) in DEVICES.into_iter().enumerate() {
        for tokens in LENGTHS {
            for network in NETWORKS {
                let mut random = Random::new(at as u64, tokens as u64, network.latency_ms as u64);
                let chosen = chosen(speed, tokens, network, &mut random)?;
                let run = |route| {
                    run(speed, tokens, network, route).with_context(|| {
                        format!("{device}, {tokens} tokens, {}: {}", network.name, route.as_str())
                    })
                };
                let runs = [run(Route::Device)?, run(Route::Relay)?, run(Route::Cloud)?];
                cells.push(Cell { device, tokens, network: network.name, chosen, runs });
            }
        }
    }
    tell(report, &cells);
    Ok(())
}

/// Returns a number that is wrong by up to [`WRONG`].
fn about(value: f64, random: &mut Random) -> f64 {
    value * random.uniform((1.0 - WRONG, 1.0 + WRONG))
}

fn upload_ms(tokens: usize, network: Network) -> f64 {
    tokens as f64 * BYTES_A_TOKEN / network.bytes_per_ms
}

/// Returns the tokens of the prompt that are never refined.
fn fixed(prompt: &Question) -> usize {
    let fixed = prompt.segments.iter().filter(|segment| !segment.refine);
    fixed.map(|segment| segment.text.len()).sum()
}

fn chosen(speed: Speed, tokens: usize, network: Network, random: &mut Random) -> Result<Route> {
    let question = question(tokens, RelayMode::Relay);
    let fixed_tokens = u32::try_from(fixed(&question))?;
    let turn = Turn {
        input: OptimizerInput {
            prompt: PromptShape {
                fixed_tokens,
                content_tokens: u32::try_from(tokens)? - fixed_tokens,
                prefix_tokens: fixed_tokens / 2,
                cached_tokens: 0,
            },
            device: DeviceCost {
                prefill_ms_per_token: about(speed.prefill_ms_per_token, random),
                prefill_ms_per_token2: 0.0,
                decode_ms: about(speed.decode_ms, random),
                decompress_ms: 0.0,
            },
            cloud: CloudCost {
                ttft_base_ms: about(CLOUD.prefill_base_ms, random),
                prefill_ms_per_token: about(CLOUD.prefill_ms_per_token, random),
                decode_ms: about(CLOUD.decode_ms, random),
                rtt_ms: about(network.latency_ms + upload_ms(tokens, network), random),
                queue_ms: 0.0,
                compress_ms: 0.0,
            },
            scene: ScenePolicy {
                xi: f64::from(RATIO),
                ratio: Some(f64::from(RATIO)),
                assist_tokens: None,
                assist_floor: 4,
                tau_ms: TAU_MS,
                answer_tokens_max: ANSWER as u32,
                slow_device: SlowDevice::AcceptGap,
            },
            load: 0.0,
        },
        is_cloud_known: true,
        device_room: f64::INFINITY,
        answer_tokens: ANSWER as f64,
        is_paced: true,
        request_bytes: tokens as f64 * BYTES_A_TOKEN,
        device_watts: None,
    };
    Ok(choose(&turn, &Weights::default())?.route)
}

/// Makes a question about a document; the whole prompt has about so many tokens.
fn question(tokens: usize, mode: RelayMode) -> Question {
    let (system, asked) = ("You answer from the document.", "\n\nQuestion: what was said?");
    let sentence = |at: usize| format!("Sentence {at} of the report says how much was sold. ");
    let mut document: String = (0..tokens / 40).map(sentence).collect();
    document.truncate(tokens.saturating_sub(system.len() + asked.len()));
    Question {
        segments: vec![
            Segment::fixed(Role::System, system),
            Segment::refinable(Role::User, document),
            Segment::fixed(Role::User, asked),
        ],
        sampling: Sampling::default(),
        tokens_max: ANSWER,
        assist_tokens: None,
        refine_mode: None,
        mode,
    }
}

/// Runs a turn by a route; returns what was measured.
fn run(speed: Speed, tokens: usize, network: Network, route: Route) -> Result<Outlook> {
    let costs = (speed.pass_cost(), CLOUD.pass_cost());
    let mut pair = Pair::of_times(long_model(), 36_864, costs, RATIO)?;
    let mode = match route {
        Route::Device => RelayMode::DeviceOnly,
        Route::Relay => RelayMode::Relay,
        Route::Cloud => RelayMode::CloudOnly,
    };
    let upload_ms = upload_ms(tokens, network);
    let line = Line { latency_ms: network.latency_ms, upload_ms, fault: LineFault::None };
    let told = pair.relay(&question(tokens, mode), line)?;
    let timeline: &Timeline = &told.outcome.timeline;
    ensure!(timeline.shown.len() == ANSWER, "the answer has {} tokens", timeline.shown.len());
    // An answer that is whole before the cloud's L tokens are ends the stream, which then reports no costs.
    let by_cloud = timeline.tokens_from(Source::Cloud) as f64;
    let cloud_ms = timeline.cloud_timing.map_or(0.0, |timing| {
        let first = timing.first;
        let cut_ms = first.prefill_ms + (by_cloud - 1.0).max(0.0) * first.decode_ms;
        timing.slot.map_or(cut_ms, |slot| slot.slot_ms)
    });
    let gap_ms = timeline.gaps_ms().into_iter().fold(0.0, f64::max);
    Ok(Outlook {
        first_ms: timeline.ttft_user_ms.context("nothing was shown")?,
        gap_ms,
        total_ms: timeline.total_ms.context("nothing was shown")?,
        cloud_ms,
        bytes: if route.asks_cloud() { tokens as f64 * BYTES_A_TOKEN } else { 0.0 },
        joules: None,
    })
}

fn tell(report: &mut Report, cells: &[Cell]) {
    let row = |cell: &Cell| {
        let first = Route::ALL.map(|route| format!("{:.0}", cell.run(route).first_ms));
        let cloud = Route::ALL.map(|route| format!("{:.1}", cell.run(route).cloud_ms / 1e3));
        let [by_device, by_relay, by_cloud] = first;
        let [_, relay_s, cloud_s] = cloud;
        [
            cell.device.to_owned(),
            cell.tokens.to_string(),
            cell.network.to_owned(),
            cell.chosen.as_str().to_owned(),
            by_device,
            by_relay,
            by_cloud,
            relay_s,
            cloud_s,
            format!("{:.0}", cell.run(cell.chosen).gap_ms),
            format!("{:.1}", 100.0 * cell.regret()),
        ]
        .to_vec()
    };
    let rows: Vec<Vec<String>> = cells.iter().map(row).collect();
    let header = [
        "device",
        "tokens",
        "network",
        "chosen",
        "first token by device, ms",
        "by relay",
        "by cloud",
        "cloud seconds of relay",
        "of cloud",
        "longest gap of the chosen",
        "regret, %",
    ];
    report.table("routes of cold turns, all of them run in virtual time", &header, &rows);
    let relays = || cells.iter().filter(|cell| cell.chosen == Route::Relay);
    let regret = cells.iter().map(Cell::regret).sum::<f64>() / cells.len() as f64;
    let worst = cells.iter().map(Cell::regret).fold(0.0, f64::max);
    let saved = relays().map(Cell::saved).fold(f64::INFINITY, f64::min);
    let gap = cells.iter().map(|cell| cell.run(cell.chosen).gap_ms).fold(0.0, f64::max);
    let counts = Route::ALL.map(|route| cells.iter().filter(|cell| cell.chosen == route).count());
    let usual = median(relays().map(Cell::saved)).unwrap_or(f64::NAN);
    report.note(format!(
        "chosen: device {}, relay {}, cloud {}; a relay saves {:.0} % of the wait as a median; worst regret {:.1} %",
        counts[0],
        counts[1],
        counts[2],
        100.0 * usual,
        100.0 * worst
    ));
    report.check_at_least("routes: turns by the relay", counts[1] as f64, 1.0);
    report.check_at_least(
        "routes: share of the device's wait that a relay saves, the least",
        saved,
        SAVED_MIN,
    );
    report.check_at_most("routes: longest gap of the chosen routes, ms", gap, TAU_MS);
    report.check_at_most("routes: cost of the choices beside the best ones, mean regret", regret, REGRET_MAX);
    report.data(
        "routes",
        json!({ "device": counts[0], "relay": counts[1], "cloud": counts[2], "regret_mean": regret, "regret_worst": worst, "saved_least": saved, "saved_median": usual }),
    );
}
