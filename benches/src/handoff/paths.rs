//! When the device has its own first token: by the mask, by keys and values, by the whole prompt, and by the
//! choice that the agent makes while it runs.
//!
//! Mask, whole prompt and choice are answers of the real agent. By keys and values alone is the same without
//! the prefill beside it: the same requests, frames, checks and commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_device::client::OutgoingRequest;
use baton_device::local::{Accepted, AnswerSpec, EngineCommand, EngineReport, PromptId, Reports, Scope};
use baton_device::privacy::Redactor;
use baton_device::relay::KvTrace;
use baton_engine::engine::KvFormat;
use baton_engine::rows::rows_are_sound;
use baton_engine::sampling::SamplingParams;
use baton_engine::{KvRows, TokenId};
use baton_pacing::refit::median;
use baton_protocol::{
    AssistEvent, AssistRequest, DeviceInfo, KvFrames, KvLayer, KvLayout, KvTicket, PROTOCOL_VERSION, Segment,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::world::{ANSWER_TOKENS, FORMS, PLAIN, World, prompt, question};
use crate::report::Report;

/// Most times the best path that the choice may take.
const CHOICE_MAX: f64 = 1.05;
const REFINED: PromptId = PromptId(1);
const TAKEN: PromptId = PromptId(2);

/// What is measured.
pub(super) struct Plan<'a> {
    /// Bytes of documents.
    pub(super) prompts: &'a [usize],
    /// Megabits a second.
    pub(super) lines: &'a [u64],
    /// Runs of each path, of which the median counts.
    pub(super) runs: usize,
}

/// The times of one prompt over one line, in milliseconds.
#[derive(Default)]
struct Times {
    mask: f64,
    whole: f64,
    moved: BTreeMap<&'static str, f64>,
    /// With how many runs of all took keys and values.
    choice: BTreeMap<&'static str, (f64, usize)>,
}

/// Measures all prompts over all lines.
pub(super) fn measure(plan: &Plan<'_>, report: &mut Report) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
    let (mut rows, mut data, mut worst) = (Vec::new(), Vec::new(), 0.0f64);
    let mut faster = 0;
    runtime.block_on(async {
        let longest = plan.prompts.iter().copied().max().unwrap_or(0);
        let world = World::start(longest).await?;
        for &bytes in plan.prompts {
            // The cloud's cache knows the prompt from here on, as it would know a scene's.
            world.line(10_000);
            answered(&world, PLAIN, bytes, None).await?;
            let whole = middle(plan.runs, || answered(&world, PLAIN, bytes, Some(1.0))).await?;
            for &line in plan.lines {
                world.line(line);
                let mut times = times(&world, bytes, plan.runs).await?;
                times.whole = whole;
                eprintln!("{bytes} bytes at {line} Mb/s: mask {:.0} ms", times.mask);
                for form in FORMS {
                    let best = times.mask.min(times.moved[form]);
                    worst = worst.max(times.choice[form].0 / best);
                    faster += usize::from(times.moved[form] < times.mask);
                }
                rows.push(row(bytes, line, &times));
                data.push(json!({
                    "bytes": bytes, "mbit_per_s": line, "mask_ms": times.mask, "whole_ms": times.whole,
                    "moved_ms": times.moved,
                    "choice_ms": times.choice.iter().map(|(form, (ms, _))| (*form, *ms)).collect::<BTreeMap<_, _>>(),
                    "choice_took_moved": times.choice.iter().map(|(form, (_, used))| (*form, *used)).collect::<BTreeMap<_, _>>(),
                }));
            }
        }
        Ok::<(), anyhow::Error>(())
    })?;
    let header =
        ["document, line", "whole", "mask", "kv f16", "q8", "q4", "choice f16", "q8", "q4", "took kv"];
    report.table("time to the device's own first token (TTFT_d), ms", &header, &rows);
    report.data("paths", data);
    report.check_at_most(
        "the choice, times the better of mask and keys and values (worst)",
        worst,
        CHOICE_MAX,
    );
    report.check_at_least(
        "prompts, lines and forms at which keys and values are faster than the mask",
        faster as f64,
        1.0,
    );
    Ok(())
}

fn row(bytes: usize, line: u64, times: &Times) -> Vec<String> {
    let ms = |ms: f64| format!("{ms:.0}");
    let mut row = vec![format!("{bytes} at {line} Mb/s"), ms(times.whole), ms(times.mask)];
    row.extend(FORMS.iter().map(|form| ms(times.moved[form])));
    row.extend(FORMS.iter().map(|form| ms(times.choice[form].0)));
    row.push(FORMS.map(|form| times.choice[form].1.to_string()).join("/"));
    row
}

/// Measures one prompt over one line.
async fn times(world: &World, bytes: usize, runs: usize) -> Result<Times> {
    let mut times =
        Times { mask: middle(runs, || answered(world, PLAIN, bytes, None)).await?, ..Times::default() };
    for form in FORMS {
        // The first answer learns the line, as a device's first one does; the others are measured, in turn.
        let agent = world.agent()?;
        answer(world, &agent, form, bytes, None).await?;
        let (mut alone, mut all, mut used) = (Vec::new(), Vec::new(), 0);
        for _ in 0..runs {
            alone.push(moved(world, form, bytes).await?);
            let (ms, kv) = answer(world, &agent, form, bytes, None).await?;
            all.push(ms);
            used += usize::from(kv.is_some_and(|kv| kv.used));
        }
        times.moved.insert(form, median(alone).context("there was a run")?);
        times.choice.insert(form, (median(all).context("there was a run")?, used));
    }
    Ok(times)
}

/// Returns the median of some runs.
async fn middle<F: Future<Output = Result<(f64, Option<KvTrace>)>>>(
    runs: usize,
    mut one: impl FnMut() -> F,
) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..runs {
        all.push(one().await?.0);
    }
    median(all).context("there was a run")
}

/// Returns TTFT_d of an answer by a new agent.
async fn answered(
    world: &World,
    scene: &str,
    bytes: usize,
    ratio: Option<f32>,
) -> Result<(f64, Option<KvTrace>)> {
    answer(world, &world.agent()?, scene, bytes, ratio).await
}

async fn answer(
    world: &World,
    agent: &baton_device::agent::Agent,
    scene: &str,
    bytes: usize,
    ratio: Option<f32>,
) -> Result<(f64, Option<KvTrace>)> {
    let question = question(world.scene(scene).await?, prompt(bytes), ratio);
    let (events, mut shown) = mpsc::channel(1024);
    let reader = tokio::spawn(async move { while shown.recv().await.is_some() {} });
    let report = agent.answer(question, events).await?;
    reader.await.context("read the answer")?;
    if let Some(reason) = report.timeline.kv.as_ref().and_then(|kv| kv.reason.as_ref()) {
        eprintln!("{bytes} bytes, {scene}: not taken, {reason}");
    }
    let Some(ms) = report.timeline.ttft_device_ms else {
        bail!("the device wrote nothing of `{}`: {:?}", report.answer, report.notes);
    };
    Ok((ms, report.timeline.kv))
}

/// Returns TTFT_d by keys and values alone.
async fn moved(world: &World, form: &str, bytes: usize) -> Result<f64> {
    let (segments, side) = (prompt(bytes), world.worker.kv().map_err(anyhow::Error::msg)?);
    let request = OutgoingRequest::new(&Redactor::default().redact_request(&request(
        form,
        &segments,
        &side.identity,
    ))?)?;
    let begun = Instant::now();
    let (mut local, mut reports) = world.worker.answer()?;
    let spec = spec(segments);
    local.command(EngineCommand::Open { prompt: REFINED, spec, scope: Scope::Prefix });
    let client = world.client()?;
    let (mut tokens, mut fetch) = (Vec::<TokenId>::new(), None);
    {
        use futures_util::StreamExt as _;
        let mut events = std::pin::pin!(client.assist(&request).await?);
        while let Some(event) = events.next().await {
            match event? {
                AssistEvent::First(first) => {
                    let ticket = first.kv.clone().context("the cloud offers no keys and values")?;
                    let source = client.kv_source(&request);
                    let side = side.clone();
                    fetch = Some(tokio::spawn(async move { fetched(source, ticket, &side).await }));
                    tokens.push(first.id);
                }
                AssistEvent::Token(token) => tokens.push(token.id),
                AssistEvent::End(_) => break,
                AssistEvent::Error(error) => bail!("the cloud failed: {}", error.error.message),
                AssistEvent::Progress(_) | AssistEvent::Mask(_) => {}
            }
        }
    }
    let rows = fetch.context("there is no first token")?.await.context("fetch keys and values")??;
    local.command(EngineCommand::Take { prompt: TAKEN, rows: Arc::new(rows) });
    until(&mut reports, |report| matches!(report, EngineReport::Ready { prompt: TAKEN })).await?;
    local.command(EngineCommand::Verify { prompt: TAKEN, accepted: Accepted::Ids(tokens) });
    until(&mut reports, |report| matches!(report, EngineReport::Verified { prompt: TAKEN, .. })).await?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Reads reports up to the one that is waited for.
async fn until(reports: &mut Reports, wanted: impl Fn(&EngineReport) -> bool) -> Result<()> {
    loop {
        match reports.recv().await.context("the engine has ended")? {
            report if wanted(&report) => return Ok(()),
            EngineReport::NotTaken { reason, .. } | EngineReport::Failed { reason, .. } => bail!("{reason}"),
            _ => {}
        }
    }
}

/// Fetches and checks all frames.
async fn fetched(
    source: baton_device::client::KvSource,
    ticket: KvTicket,
    side: &baton_device::local::KvSide,
) -> Result<KvRows> {
    use futures_util::StreamExt as _;
    let format: KvFormat = ticket.format.as_str().parse()?;
    let layers = side.widths.iter();
    let layers =
        layers.map(|width| KvLayer { heads: width.heads, token_bytes: width.token_bytes(format) }).collect();
    let layout = KvLayout::new(
        ticket.format,
        ticket.tokens as usize,
        layers,
        (source.request_id(), &ticket.prompt_sha256),
    );
    layout.check(&ticket)?;
    let mut rows = KvRows::new(format, layout.tokens(), side.widths.len());
    let (mut frames, mut sound) = (KvFrames::new(layout), true);
    let mut pieces = std::pin::pin!(source.frames(0).await?);
    while let Some(piece) = pieces.next().await {
        frames.push(&piece?, |place, bytes| {
            sound &= rows_are_sound(format, side.widths[place.layer], bytes);
            rows.push(place.layer, bytes);
        })?;
    }
    if !sound || !frames.is_complete() {
        bail!("keys and values are not whole and sound");
    }
    Ok(rows)
}

fn request(scene: &str, segments: &[Segment], identity: &str) -> AssistRequest {
    AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: uuid::Uuid::new_v4(),
        scene: scene.to_owned(),
        scene_version: None,
        model: "default".to_owned(),
        tokenizer_sha256: None,
        segments: segments.to_vec(),
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        continue_from: None,
        device: Some(DeviceInfo {
            class: "laptop".to_owned(),
            model: "shaped".to_owned(),
            pair: None,
            kv: Some(identity.to_owned()),
            prefill_ms_per_token: None,
            prefill_ms_per_token2: 0.0,
            decode_ms: None,
            network: None,
            network_ms: None,
        }),
        sampling: baton_protocol::Sampling::default(),
        refine: baton_protocol::RefineOptions::default(),
        assist_tokens: None,
        resume: false,
        verify: false,
    }
}

fn spec(segments: Vec<Segment>) -> AnswerSpec {
    AnswerSpec::plain(segments.into(), SamplingParams::default(), ANSWER_TOKENS)
}
