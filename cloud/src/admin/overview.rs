//! Figures of the running service: its load now and in the last half hour, and sums from the database.
//!
//! Never: delays an answer to a device, because only this page reads the database. Always: bounded. If the
//! database does not answer, the page says so and shows the rest.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::Admin;
use super::chart::{Axis, Bars, Chart, Line, grouped};
use crate::learn::traffic::{Histogram, MINUTE_MS, TTFT_BOUNDS_MS, TrafficRow, TrafficSums};
use crate::observe::metrics::ModelUsage;
use crate::service::CloudService;
use crate::service::upstream::EngineView;
use crate::store::now_ms;

/// How often the load is sampled.
pub(super) const PERIOD: Duration = Duration::from_secs(5);
/// The most samples that are kept: half an hour.
const SAMPLES_MAX: usize = 360;
/// Minutes of sums from the database that are shown.
const MINUTES: i64 = 30;
const POISONED: &str = "nothing panics while the samples are locked";

/// The load of the service at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub(super) struct LoadSample {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Answers that are being written.
    pub slots_used: usize,
    /// Requests in the queue.
    pub queue_len: usize,
    /// The prefill that is waiting, in seconds.
    pub backlog_s: f64,
    /// The share of the KV cache that is not free, 0 to 1.
    pub kv_used: f64,
}

/// The last samples.
#[derive(Debug, Default)]
pub(super) struct LoadHistory {
    samples: Mutex<VecDeque<LoadSample>>,
}

impl LoadHistory {
    /// Takes a sample.
    pub(super) fn record(&self, service: &CloudService) {
        let sample = sample(service);
        let mut samples = self.samples.lock().expect(POISONED);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    fn samples(&self) -> Vec<LoadSample> {
        self.samples.lock().expect(POISONED).iter().copied().collect()
    }
}

fn sample(service: &CloudService) -> LoadSample {
    let (stats, kv, measured) = (service.stats(), service.kv(), service.measured());
    let total = stats.kv_tokens.max(1) as f64;
    LoadSample {
        at_ms: now_ms(),
        slots_used: stats.running,
        queue_len: stats.waiting,
        backlog_s: stats.backlog_tokens as f64 * measured.prefill_ms_per_token / 1e3,
        kv_used: (1.0 - kv.free_tokens as f64 / total).clamp(0.0, 1.0),
    }
}

/// Sums of one minute over every replica.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Minute {
    /// Its start, in milliseconds since 1970.
    pub start_ms: i64,
    /// Requests that ended.
    pub requests: u64,
    /// Of these, those that ended with an error.
    pub failures: u64,
    /// Median time to the first token, in milliseconds; null if there was none.
    pub ttft_p50_ms: Option<f64>,
    /// 95 % of first tokens came within this time, in milliseconds.
    pub ttft_p95_ms: Option<f64>,
}

/// The number of values in one range.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Bucket {
    /// Upper end of the range; null for the range above all others.
    pub to: Option<f64>,
    /// Values in it.
    pub count: u64,
}

/// Sums of the last half hour over every replica.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Totals {
    /// Requests that ended.
    pub requests: u64,
    /// Of these, those that ended with an error.
    pub failures: u64,
    /// Median time to the first token, in milliseconds.
    pub ttft_p50_ms: Option<f64>,
    /// 95 % of first tokens came within this time, in milliseconds.
    pub ttft_p95_ms: Option<f64>,
    /// Prompt tokens that devices did not have to prefill.
    pub prompt_tokens_saved: u64,
    /// Slot time saved, in seconds, compared with answers that the cloud writes to their end.
    pub slot_seconds_saved: f64,
    /// The distribution of L.
    pub assist_tokens: Vec<Bucket>,
    /// The distribution of r.
    pub ratio: Vec<Bucket>,
}

/// The present load of one model.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct ModelNow {
    /// Its name in requests.
    pub model: String,
    /// Answers that are being written.
    pub slots_used: usize,
    /// Requests in the queue.
    pub queue_len: usize,
    /// The prefill that is waiting, in seconds.
    pub backlog_s: f64,
    /// The share of its KV cache that running requests hold, 0 to 1.
    pub kv_used: f64,
}

impl From<ModelUsage> for ModelNow {
    fn from(usage: ModelUsage) -> ModelNow {
        ModelNow {
            model: usage.model,
            slots_used: usage.running,
            queue_len: usage.waiting,
            backlog_s: usage.backlog_seconds,
            kv_used: usage.kv_usage,
        }
    }
}

/// An engine elsewhere that writes the answers of a model, as this replica sees it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct EngineNow {
    /// The model that it writes for.
    pub model: String,
    /// Its URL.
    pub url: String,
    /// `vllm`, `llamacpp` or `openai`; null if it has not answered yet.
    pub kind: Option<String>,
    /// The name of its model there; null if it has not answered yet.
    pub engine_model: Option<String>,
    /// What it has in common with the scorer: `prompts`, `tokens` or `text`; null if it has not answered yet.
    pub common: Option<String>,
    /// Why no more is common; empty if nothing is missing.
    pub reason: String,
    /// What it was found not to have, and what is done instead. One sentence each.
    pub lacks: Vec<String>,
    /// Whether it takes requests.
    pub open: bool,
    /// Requests of this replica that it has.
    pub in_flight: usize,
}

impl From<EngineView> for EngineNow {
    fn from(view: EngineView) -> EngineNow {
        let facts = view.facts.as_ref();
        EngineNow {
            kind: facts.map(|facts| facts.kind.as_str().to_owned()),
            engine_model: facts.map(|facts| facts.model.clone()),
            common: facts.map(|facts| facts.common.as_str().to_owned()),
            reason: facts.map(|facts| facts.reason.clone()).unwrap_or_default(),
            lacks: facts
                .iter()
                .flat_map(|facts| &facts.lacks)
                .map(|lack| lack.instead().to_owned())
                .collect(),
            model: view.model,
            url: view.url,
            open: view.is_open,
            in_flight: view.in_flight,
        }
    }
}

/// Figures of the running service.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct OverviewView {
    /// The default model.
    pub model: String,
    /// Every model, the default first.
    pub models: Vec<ModelNow>,
    /// The engines elsewhere that write answers, in the order of the models.
    pub engines: Vec<EngineNow>,
    /// `open`, `draining` or `failed`.
    pub state: String,
    /// Why the sums could not be read; null if they were.
    pub database_problem: Option<String>,
    /// Since when the database does not answer, in milliseconds since 1970; null if it does.
    pub away_since_ms: Option<i64>,
    /// Since when the database answers but accepts no change, in milliseconds since 1970; null if it accepts
    /// changes.
    pub not_writable_since_ms: Option<i64>,
    /// The most answers that may be written at the same time.
    pub slots: usize,
    /// The most requests in the queue.
    pub queue: usize,
    /// The load now.
    pub now: LoadSample,
    /// Samples of this replica in the last half hour, one every 5 s.
    pub looks: Vec<LoadSample>,
    /// Sums over every replica in the last half hour, by minute.
    pub minutes: Vec<Minute>,
    /// Sums over the last half hour.
    pub totals: Totals,
}

/// Reads the figures. If the database is away, the sums are empty and the problem is named.
pub(super) async fn read(admin: &Admin) -> OverviewView {
    let (service, now) = (&admin.service, now_ms());
    let from = now - now.rem_euclid(MINUTE_MS) - (MINUTES - 1) * MINUTE_MS;
    let (rows, database_problem) = match admin.operations.traffic(MINUTE_MS, from, now + MINUTE_MS).await {
        Ok(rows) => (rows, None),
        Err(problem) => (Vec::new(), Some(problem.detail)),
    };
    let health = admin.operations.health();
    let stats = service.stats();
    let state = match (service.failure().is_some(), service.is_open()) {
        (true, _) => "failed",
        (false, true) => "open",
        (false, false) => "draining",
    };
    OverviewView {
        model: service.model_name().to_owned(),
        models: service.models_in_use().into_iter().map(ModelNow::from).collect(),
        engines: service.engines().into_iter().map(EngineNow::from).collect(),
        state: state.to_owned(),
        database_problem,
        away_since_ms: health.away_since_ms,
        not_writable_since_ms: health.not_writable_since_ms,
        slots: stats.slots,
        queue: stats.queue,
        now: sample(service),
        looks: admin.load_history.samples(),
        minutes: minutes(&rows, from),
        totals: totals(&rows),
    }
}

fn minutes(rows: &[TrafficRow], from_ms: i64) -> Vec<Minute> {
    let minute = |index: i64| {
        let start_ms = from_ms + index * MINUTE_MS;
        let sums = sum(rows.iter().filter(|row| row.start_ms == start_ms));
        Minute {
            start_ms,
            requests: sums.requests,
            failures: sums.failures,
            ttft_p50_ms: sums.ttft_ms.quantile(0.5),
            ttft_p95_ms: sums.ttft_ms.quantile(0.95),
        }
    };
    (0..MINUTES).map(minute).collect()
}

fn sum<'r>(rows: impl Iterator<Item = &'r TrafficRow>) -> TrafficSums {
    rows.fold(TrafficSums::default(), |mut sums, row| {
        sums.merge(&row.sums);
        sums
    })
}

fn totals(rows: &[TrafficRow]) -> Totals {
    let sums = sum(rows.iter());
    Totals {
        requests: sums.requests,
        failures: sums.failures,
        ttft_p50_ms: sums.ttft_ms.quantile(0.5),
        ttft_p95_ms: sums.ttft_ms.quantile(0.95),
        prompt_tokens_saved: sums.prompt_tokens_saved,
        slot_seconds_saved: sums.slot_ms_saved as f64 / 1e3,
        assist_tokens: buckets(&sums.assist_tokens),
        ratio: buckets(&sums.ratio),
    }
}

fn buckets(histogram: &Histogram) -> Vec<Bucket> {
    let ends = histogram.bounds().iter().copied().map(Some).chain([None]);
    ends.zip(histogram.counts()).map(|(to, &count)| Bucket { to, count }).collect()
}

impl OverviewView {
    /// Returns the models whose engines all take no requests.
    pub(super) fn without_engine(&self) -> Vec<&str> {
        let is_down = |model: &str| {
            let mut engines = self.engines.iter().filter(|engine| engine.model == model).peekable();
            engines.peek().is_some() && engines.all(|engine| !engine.open)
        };
        self.models.iter().map(|model| model.model.as_str()).filter(|model| is_down(model)).collect()
    }

    /// Returns the figures above the charts: name, value, unit.
    pub(super) fn figures(&self) -> Vec<(&'static str, String, &'static str)> {
        let (now, totals) = (&self.now, &self.totals);
        vec![
            ("Requests, 30 min", grouped(totals.requests as f64, 0), ""),
            ("TTFT p50", ttft_text(totals.ttft_p50_ms), "ms"),
            ("TTFT p95", ttft_text(totals.ttft_p95_ms), "ms"),
            ("Slots in use", format!("{} of {}", now.slots_used, self.slots), ""),
            ("Queue", format!("{} of {}", now.queue_len, self.queue), ""),
            ("Backlog", grouped(now.backlog_s, 1), "s of prefill"),
            ("KV cache in use", grouped(now.kv_used * 100.0, 0), "%"),
            ("Prompt tokens saved", grouped(totals.prompt_tokens_saved as f64, 0), ""),
            ("Slot time saved", grouped(totals.slot_seconds_saved, 1), "s"),
            ("Failures", grouped(totals.failures as f64, 0), ""),
        ]
    }

    /// Returns the charts over the last half hour.
    pub(super) fn charts(&self) -> Vec<Chart> {
        let by_minute = |value: fn(&Minute) -> Option<f64>| -> Vec<(f64, f64)> {
            let last = self.minutes.last().map_or(0, |minute| minute.start_ms);
            // A minute without a value is a gap in the line.
            let point =
                |minute: &Minute| ((minute.start_ms - last) as f64 / 60e3, value(minute).unwrap_or(f64::NAN));
            self.minutes.iter().map(point).collect()
        };
        let by_sample = |value: fn(&LoadSample) -> f64| -> Vec<(f64, f64)> {
            // Every sixth sample is enough for a chart; the API has all.
            let newest = self.looks.iter().rev().step_by(6).collect::<Vec<&LoadSample>>().into_iter().rev();
            newest.map(|sample| ((sample.at_ms - self.now.at_ms) as f64 / 60e3, value(sample))).collect()
        };
        vec![
            over_time(
                "requests",
                "Requests a minute",
                "requests",
                "",
                0,
                vec![
                    Line::new("ended", by_minute(|minute| Some(minute.requests as f64))),
                    Line::new("with an error", by_minute(|minute| Some(minute.failures as f64))),
                ],
            ),
            over_time(
                "first-token",
                "Time to the first token",
                "TTFT",
                "ms",
                0,
                vec![
                    Line::new("p50", by_minute(|minute| minute.ttft_p50_ms)),
                    Line::new("p95", by_minute(|minute| minute.ttft_p95_ms)),
                ],
            ),
            over_time(
                "queue",
                "Slots and queue",
                "requests",
                "",
                0,
                vec![
                    Line::new("slots in use", by_sample(|sample| sample.slots_used as f64)),
                    Line::new("waiting", by_sample(|sample| sample.queue_len as f64)),
                ],
            ),
            over_time(
                "backlog",
                "Prefill that waits",
                "backlog",
                "s",
                2,
                vec![Line::new("backlog", by_sample(|sample| sample.backlog_s))],
            ),
            over_time(
                "kv",
                "KV cache in use",
                "share",
                "%",
                1,
                vec![Line::new("in use", by_sample(|sample| sample.kv_used * 100.0))],
            ),
        ]
    }

    /// Returns the distributions of L and r.
    pub(super) fn histograms(&self) -> Vec<Bars> {
        vec![
            bars("assist", "L of the last half hour", "L (tokens)", &self.totals.assist_tokens),
            bars("ratio", "r of the last half hour", "r", &self.totals.ratio),
        ]
    }
}

/// Formats a time to the first token in milliseconds, without its unit.
pub(super) fn ttft_text(value: Option<f64>) -> String {
    let longest = TTFT_BOUNDS_MS.last().copied().unwrap_or(f64::INFINITY);
    match value {
        None => "–".to_owned(),
        // All longer times are in one bucket.
        Some(ms) if ms >= longest => format!("> {}", grouped(longest, 0)),
        Some(ms) => grouped(ms, 0),
    }
}

fn over_time(
    id: &'static str,
    title: &str,
    label: &str,
    unit: &'static str,
    decimals: usize,
    lines: Vec<Line>,
) -> Chart {
    let highest = lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y).fold(0.0, f64::max);
    let least = if unit == "%" { 100.0 } else { 4.0 };
    let last = |line: &Line| {
        let known = line.points.last().filter(|(_, y)| y.is_finite());
        match known {
            Some(&(_, y)) => format!("{} {} {unit}", line.name, grouped(y, decimals)),
            None => format!("{} unknown", line.name),
        }
    };
    let now: Vec<String> = lines.iter().map(last).collect();
    Chart {
        id,
        title: title.to_owned(),
        description: format!(
            "The last {MINUTES} minutes. Now: {}.",
            now.join(", ").replace(" ,", ",").trim()
        ),
        x: Axis::new("minutes from now", "min", -(MINUTES as f64), 0.0),
        y: Axis::from_zero(label, unit, highest.max(least)),
        decimals: (1, decimals),
        lines,
        region: None,
        marks: Vec::new(),
        chosen: None,
    }
}

/// Draws at most eight bars, by joining neighbouring buckets.
fn bars(id: &'static str, title: &str, x_label: &str, buckets: &[Bucket]) -> Bars {
    let group = buckets.len().div_ceil(8).max(1);
    let mut bars: Vec<(String, u64)> = Vec::new();
    let mut below = 0.0;
    for chunk in buckets.chunks(group) {
        let count = chunk.iter().map(|bucket| bucket.count).sum();
        match chunk.last().and_then(|bucket| bucket.to) {
            Some(to) => {
                bars.push((format!("≤ {to}"), count));
                below = to;
            }
            None => bars.push((format!("> {below}"), count)),
        }
    }
    Bars { id, title: title.to_owned(), x_label: x_label.to_owned(), bars }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::traffic::{RequestFigures, TrafficKey};

    fn row(start_ms: i64, ttft_ms: f64, assist: u32) -> TrafficRow {
        let mut sums = TrafficSums::default();
        sums.record(&RequestFigures {
            ttft_ms: Some(ttft_ms),
            assist_tokens: Some(assist),
            ratio: Some(0.25),
            prompt_tokens_saved: 100,
            slot_ms_saved: 1500,
            ..RequestFigures::default()
        });
        TrafficRow { period_ms: MINUTE_MS, start_ms, key: TrafficKey::default(), sums }
    }

    fn empty() -> OverviewView {
        OverviewView {
            model: "m".into(),
            models: Vec::new(),
            engines: Vec::new(),
            state: "open".into(),
            database_problem: None,
            away_since_ms: None,
            not_writable_since_ms: None,
            slots: 1,
            queue: 1,
            now: LoadSample { at_ms: 0, slots_used: 0, queue_len: 0, backlog_s: 0.0, kv_used: 0.0 },
            looks: Vec::new(),
            minutes: Vec::new(),
            totals: totals(&[]),
        }
    }

    #[test]
    fn rows_of_one_minute_are_summed() {
        let rows = [row(0, 40.0, 9), row(0, 400.0, 30), row(MINUTE_MS, 20.0, 9)];
        let minutes = minutes(&rows, 0);
        let counts: Vec<u64> = minutes.iter().map(|minute| minute.requests).collect();
        assert_eq!((counts.len(), &counts[..3]), (30, &[2, 1, 0][..]));
        assert!(minutes[0].ttft_p95_ms > minutes[0].ttft_p50_ms && minutes[2].ttft_p50_ms.is_none());
        let totals = totals(&rows);
        assert_eq!((totals.requests, totals.prompt_tokens_saved, totals.slot_seconds_saved), (3, 300, 4.5));
        let bars = bars("assist", "L", "L", &totals.assist_tokens);
        assert_eq!(bars.bars.iter().map(|&(_, count)| count).sum::<u64>(), 3);
        assert!(bars.bars.len() <= 8, "{bars:?}");
        assert_eq!(bars.bars.last().map(|(text, _)| text.as_str()), Some("> 256"));
    }

    #[test]
    fn minutes_without_a_first_token_are_a_gap() {
        let view = OverviewView {
            minutes: minutes(&[row(0, 40.0, 9), row(MINUTE_MS, 50.0, 9), row(9 * MINUTE_MS, 90_000.0, 9)], 0),
            totals: totals(&[row(0, 700_000.0, 9)]),
            ..empty()
        };
        let charts = view.charts();
        let ttft = charts.iter().find(|chart| chart.id == "first-token").unwrap();
        let svg = ttft.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 2), "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
        assert_eq!(ttft.table_rows()[5][1], "–");
        assert!(ttft.y.max > 75_000.0, "a minute and a half is not cut at one: {:?}", ttft.y);
        assert_eq!(view.figures()[1].1, "> 600,000");
    }

    #[test]
    fn a_model_is_without_engine_if_none_of_its_own_is_open() {
        let engine = |model: &str, open| EngineNow {
            model: model.into(),
            url: "http://e".into(),
            kind: None,
            engine_model: None,
            common: None,
            reason: String::new(),
            lacks: Vec::new(),
            open,
            in_flight: 0,
        };
        let model = |name: &str| ModelNow::from(ModelUsage { model: name.into(), ..ModelUsage::default() });
        let view = OverviewView {
            models: vec![model("own"), model("half"), model("down")],
            engines: vec![engine("half", false), engine("half", true), engine("down", false)],
            ..empty()
        };
        assert_eq!(view.without_engine(), ["down"]);
    }

    #[test]
    fn an_empty_half_hour_is_drawn() {
        let chart = over_time("kv", "KV", "share", "%", 0, vec![Line::new("in use", Vec::new())]);
        assert_eq!(chart.y.max, 100.0);
        assert!(!chart.svg().contains("NaN"));
        assert!(chart.description.ends_with("in use unknown."), "{}", chart.description);
        assert!(chart.svg().contains("nothing yet"), "{}", chart.svg());
    }
}
