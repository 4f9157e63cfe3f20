//! One simulated answer before it is shown: a request, the optimizer's plan, the arrival of each cloud token,
//! and the real times of the device. None of them depends on the pace at which text is shown.

use baton_pacing::{
    DeviceCost, Millis, OptimizerInput, Plan, PromptShape, ScenePolicy, SlowDevice, Verdict, optimize,
};

use super::{Class, Kind, PARAMS};
use crate::random::Random;

/// An event on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// Tokens `0..count` have arrived.
    Available(usize),
    /// The device's KV cache contains this many tokens.
    Progress(usize),
    /// The cloud writes no token from this index on, because the connection broke or an early takeover
    /// cancelled it.
    CloudEnds(usize),
}

/// One answer.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    /// The optimizer's plan for the estimates.
    pub plan: Plan,
    /// The device's estimated costs.
    pub estimate: DeviceCost,
    /// When prefill for the takeover begins.
    pub prefill_start: Millis,
    /// Tokens in the KV cache at that time.
    pub held_tokens: usize,
    /// Tokens in the KV cache at the planned takeover.
    pub target_tokens: usize,
    /// The events, sorted by time.
    pub events: Vec<(Millis, Event)>,
    /// When token `i` arrives, for the whole answer.
    pub available_at: Vec<Millis>,
    /// Tokens that the cloud wrote.
    pub cloud_tokens: usize,
    /// Ratios of real to estimated time: prefill, decoding.
    pub factors: (f64, f64),
    /// The longest time without the cloud: a stall, or from a broken connection to the takeover.
    pub stall_ms: f64,
    /// Maximum delay after a stall: the next token, and the jitter of its packet.
    pub recovery_ms: f64,
}

/// The real device, relative to its estimate.
struct RealDevice {
    cost: DeviceCost,
    prefill_factor: f64,
    decode_factor: f64,
    chunk_sd: f64,
    drift: f64,
}

impl Trace {
    /// Draws one answer. `None` if the optimizer chooses no relay, or if the whole prompt is prefilled first.
    pub(super) fn draw(class: &Class, random: &mut Random) -> anyhow::Result<Option<Self>> {
        let input = draw_request(class, random);
        let plan = optimize(&input)?;
        if !matches!(plan.verdict, Verdict::Relay | Verdict::NoRefinement) {
            return Ok(None);
        }
        let device = RealDevice {
            cost: input.device,
            prefill_factor: random.log_uniform(PARAMS.device_factor),
            decode_factor: random.log_uniform(PARAMS.device_factor),
            chunk_sd: class.chunk_sd,
            drift: random.uniform((-class.drift, class.drift)),
        };
        let network = Arrivals::draw(class, &input, &plan, random);
        let trace = Self::run(&input, plan, &device, network, random);
        Ok(trace.filter(|trace| trace.held_tokens < trace.target_tokens))
    }

    /// Simulates the device with these arrivals, up to the last token.
    fn run(
        input: &OptimizerInput,
        plan: Plan,
        device: &RealDevice,
        network: Arrivals,
        random: &mut Random,
    ) -> Option<Self> {
        let first_at = network.at[0];
        let prompt = (f64::from(input.prompt.fixed_tokens)
            + plan.ratio * f64::from(input.prompt.content_tokens))
        .ceil() as usize;
        let (start, held) = if plan.verdict == Verdict::Relay {
            let free_ms = first_at / device.prefill_factor;
            let held = input.device.tokens_within(0.0, free_ms).min(f64::from(input.prompt.prefix_tokens));
            (first_at + device.prefill_factor * input.device.decompress_ms, held as usize)
        } else {
            (0.0, 0)
        };
        let mut events: Vec<(Millis, Event)> = Vec::new();
        let planned = network.planned;
        let cut_at = network.cut_at;
        let (ready_at, cloud_tokens) = prefill(device, (start, held, prompt), &network, random, &mut events);
        if plan.verdict == Verdict::NoRefinement && ready_at <= first_at {
            return None;
        }
        let mut available_at = network.at;
        available_at.truncate(cloud_tokens);
        if cloud_tokens < planned {
            // The connection broke, or a device that was ready cancelled the cloud.
            let known_at = cut_at.unwrap_or(ready_at).min(ready_at);
            events.push((Millis::new(known_at), Event::CloudEnds(cloud_tokens)));
        }
        let own = random.count(PARAMS.device_tokens) as usize;
        let mut at = ready_at;
        for _ in 0..own {
            available_at.push(at);
            at += device.decode_factor * device.cost.decode_ms * random.around_one(PARAMS.decode_sd);
        }
        for (index, &at) in available_at.iter().enumerate() {
            events.push((Millis::new(at), Event::Available(index + 1)));
        }
        // The sort is stable: at equal times, the event pushed first comes first.
        events.sort_by(|a, b| a.0.as_f64().total_cmp(&b.0.as_f64()));
        let stall_ms = cut_at.map_or(network.stall_ms, |cut_at| (ready_at - cut_at).max(0.0));
        Some(Self {
            plan,
            estimate: input.device,
            prefill_start: Millis::new(start),
            held_tokens: held,
            target_tokens: prompt + planned,
            events,
            available_at: available_at.into_iter().map(Millis::new).collect(),
            cloud_tokens,
            factors: (device.prefill_factor, device.decode_factor),
            stall_ms,
            recovery_ms: network.recovery_ms,
        })
    }
}

/// Simulates prefill in `PARAMS.chunks` chunks; the last one includes the cloud's tokens. Tokens that have
/// not arrived yet are verified when they come. The device takes over early if the next token takes too long.
///
/// Returns the time of the device's own first token, and the number of cloud tokens that are used.
fn prefill(
    device: &RealDevice,
    (start, held, prompt): (f64, usize, usize),
    network: &Arrivals,
    random: &mut Random,
    events: &mut Vec<(Millis, Event)>,
) -> (f64, usize) {
    let span = (prompt + network.planned - held) as f64;
    let mut pass = |from: usize, to: usize| {
        device.prefill_factor
            * (1.0 + device.drift * ((from + to) as f64 / 2.0 - held as f64) / span)
            * device.cost.prefill_ms(from as f64, (to - from) as f64)
            * random.around_one(device.chunk_sd)
    };
    let target = prompt + network.planned;
    let chunk = (target - held).div_ceil(PARAMS.chunks).max(1);
    let (mut now, mut done) = (start, held);
    while target - done > chunk && done < prompt {
        let next = prompt.min(done + chunk);
        now += pass(done, next);
        done = next;
        events.push((Millis::new(now), Event::Progress(done)));
    }
    // The takeover cannot come before the first cloud token.
    now = now.max(network.at[0]);
    loop {
        let there = network.at.partition_point(|&at| at <= now);
        if prompt + there > done {
            now += pass(done, prompt + there);
            done = prompt + there;
            events.push((Millis::new(now), Event::Progress(done)));
        }
        if there == network.at.len() {
            // The device learns of the broken connection when it happens. Until then it waits as for any
            // token.
            let known_at = network.cut_at.unwrap_or(now).min(now + PARAMS.patience_ms);
            return (now.max(known_at), there);
        }
        if network.at[there] > now + PARAMS.patience_ms {
            return (now + PARAMS.patience_ms, there);
        }
        now = now.max(network.at[there]);
    }
}

/// The arrivals of the cloud's tokens.
struct Arrivals {
    /// Milliseconds, in order: all `L` tokens, or those before the connection broke.
    at: Vec<f64>,
    /// `L`.
    planned: usize,
    stall_ms: f64,
    recovery_ms: f64,
    cut_at: Option<f64>,
}

impl Arrivals {
    fn draw(class: &Class, input: &OptimizerInput, plan: &Plan, random: &mut Random) -> Self {
        let planned = plan.assist_tokens as usize;
        let decode_ms = input.cloud.decode_ms;
        let mut sent = plan.predicted.ttft_c_ms * random.uniform(PARAMS.ttft_factor);
        let span = decode_ms * (planned - 1) as f64;
        let stall_ms = if class.kind == Kind::Stalls { random.log_uniform(PARAMS.stall_ms) } else { 0.0 };
        let stall_from = sent + random.unit() * span.max(1.0);
        let cut = (class.kind == Kind::Stalls) && random.chance(PARAMS.cut_share);
        let mut at: Vec<f64> = Vec::with_capacity(planned);
        for _ in 0..planned {
            let mut arrives = sent + class.jitter(random);
            let stalled = !at.is_empty() && (stall_from..stall_from + stall_ms).contains(&arrives);
            if stalled && cut {
                break;
            }
            if stalled {
                arrives = stall_from + stall_ms;
            }
            at.push(at.last().map_or(arrives, |&last| arrives.max(last)));
            sent += decode_ms * random.around_one(PARAMS.cloud_sd);
        }
        let cut_at = (at.len() < planned).then_some(stall_from.max(at[at.len() - 1]));
        let recovery_ms = decode_ms * (1.0 + 3.0 * PARAMS.cloud_sd) + class.jitter_max_ms;
        Self { at, planned, stall_ms, recovery_ms, cut_at }
    }
}

fn draw_request(class: &Class, random: &mut Random) -> OptimizerInput {
    let prefix_tokens = random.count(PARAMS.prefix_tokens);
    let whole = random.chance(PARAMS.unrefined_share);
    OptimizerInput {
        prompt: PromptShape {
            fixed_tokens: prefix_tokens + random.count(PARAMS.suffix_tokens),
            content_tokens: random.log_uniform(PARAMS.content_tokens) as u32,
            prefix_tokens,
            cached_tokens: 0,
        },
        device: DeviceCost {
            prefill_ms_per_token: random.uniform(PARAMS.device_prefill_ms),
            prefill_ms_per_token2: random.uniform(PARAMS.device_prefill_ms2),
            decode_ms: random.uniform(PARAMS.device_decode_ms),
            decompress_ms: PARAMS.decompress_ms,
        },
        cloud: baton_pacing::CloudCost {
            ttft_base_ms: PARAMS.cloud_base_ms,
            prefill_ms_per_token: PARAMS.cloud_prefill_ms,
            decode_ms: random.uniform(PARAMS.cloud_decode_ms),
            rtt_ms: random.uniform(class.rtt_ms),
            queue_ms: 0.0,
            compress_ms: 1.0,
        },
        scene: ScenePolicy {
            xi: if whole { 1.0 } else { random.uniform(PARAMS.xi) },
            ratio: None,
            assist_tokens: None,
            assist_floor: 1,
            tau_ms: PARAMS.tau_ms,
            answer_tokens_max: 4_096,
            slow_device: SlowDevice::AcceptGap,
        },
        load: 0.0,
    }
}
