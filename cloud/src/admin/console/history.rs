//! The page of sums over a range of time, and of tenants' usage by day.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::{Choice, Frame, PageResult, choices, page, time, utc};
use crate::admin::Admin;
use crate::admin::chart::{Axis, Chart, Line, grouped};
use crate::admin::operations::history::RangeInput;
use crate::admin::overview::ttft_text;
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::history::{HistorySums, HistoryView, UsageView};
use crate::learn::traffic::history::GroupBy;
use crate::learn::traffic::{DAY_MS, HOUR_MS, MINUTE_MS};
use crate::store::now_ms;

/// Ranges that end now: their names and lengths.
const RANGES: [(&str, i64); 4] =
    [("1 hour", HOUR_MS), ("1 day", DAY_MS), ("7 days", 7 * DAY_MS), ("30 days", 30 * DAY_MS)];
const RANGE_DEFAULT: &str = "1 day";
/// Days of tenants that the page lists; the API has more.
const DAYS_SHOWN_MAX: usize = 500;

/// The query of the page, as it was typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HistoryAsked {
    last: String,
    from: String,
    to: String,
    by: String,
    scene: String,
    tenant: String,
}

impl HistoryAsked {
    fn range(&self, now_ms: i64) -> Result<RangeInput, Problem> {
        let (from_ms, to_ms) = (moment("from", &self.from)?, moment("to", &self.to)?);
        if from_ms.is_some() || to_ms.is_some() {
            return Ok(RangeInput { from_ms, to_ms });
        }
        let last = if self.last.is_empty() { RANGE_DEFAULT } else { &self.last };
        let found = RANGES.iter().find(|(name, _)| *name == last);
        let (_, length_ms) =
            found.ok_or_else(|| Problem::field("last", &"`last` must be a range that the page offers"))?;
        Ok(RangeInput { from_ms: Some(now_ms - length_ms), to_ms: Some(now_ms) })
    }

    fn by(&self) -> &str {
        if self.by.is_empty() { GroupBy::default().as_str() } else { &self.by }
    }
}

/// Reads a time in UTC, as a browser sends it; `None` if there is none.
fn moment(field: &str, text: &str) -> Result<Option<i64>, Problem> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let read = text.trim().parse::<DateTime>().and_then(|civil| civil.to_zoned(TimeZone::UTC));
    let wrong = |_| Problem::field(field, &format!("`{field}` must be a time such as 2026-02-28T17:30"));
    read.map(|zoned| Some(zoned.timestamp().as_millisecond())).map_err(wrong)
}

/// One row of sums.
struct SumsRow {
    name: String,
    cells: Vec<String>,
}

impl SumsRow {
    fn new(name: String, sums: &HistorySums) -> SumsRow {
        let count = |value: u64| grouped(value as f64, 0);
        let cells = vec![
            count(sums.requests),
            count(sums.failures),
            count(sums.prompt_tokens),
            count(sums.completion_tokens),
            count(sums.prompt_tokens_saved),
            grouped(sums.slot_seconds, 1),
            grouped(sums.slot_seconds_saved, 1),
            ttft_text(sums.ttft_p50_ms),
            ttft_text(sums.ttft_p95_ms),
        ];
        SumsRow { name, cells }
    }
}

struct UsageRow {
    day: String,
    tenant: String,
    requests: String,
    tokens: String,
}

/// What is shown of a range that could be read.
struct Shown {
    span: String,
    rows: Vec<SumsRow>,
    charts: Vec<Chart>,
    tenants: Vec<UsageRow>,
    days: Vec<UsageRow>,
    has_more: bool,
}

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryPage {
    frame: Frame,
    asked: HistoryAsked,
    ranges: Vec<Choice>,
    groups: Vec<Choice>,
    problem: Option<String>,
    shown: Option<Shown>,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<HistoryAsked>,
) -> PageResult {
    let (status, problem, shown) = match read(&admin, &asked).await {
        Ok(shown) => (StatusCode::OK, None, Some(shown)),
        Err(problem) if problem.kind == Kind::Invalid => (problem.kind.status(), Some(problem.detail), None),
        Err(problem) => return Err(problem.into()),
    };
    let last = if asked.last.is_empty() { RANGE_DEFAULT } else { &asked.last };
    let shown = HistoryPage {
        frame: Frame::of(&session, "/admin/history", "History"),
        ranges: choices(RANGES.map(|(name, _)| name), last),
        groups: choices(GroupBy::ALL.map(GroupBy::as_str), asked.by()),
        asked,
        problem,
        shown,
    };
    Ok(page(status, &shown))
}

async fn read(admin: &Admin, asked: &HistoryAsked) -> Result<Shown, Problem> {
    let now = now_ms();
    let range = asked.range(now)?;
    let scene = Some(asked.scene.trim().to_owned()).filter(|scene| !scene.is_empty());
    let history = admin.operations.traffic_history(range, asked.by(), scene, now).await?;
    let usage = admin.operations.tenant_usage(range, asked.tenant.trim(), now).await?;
    Ok(Shown {
        span: span(&history),
        rows: rows(&history),
        charts: charts(&history),
        tenants: tenants(&usage),
        days: days(&usage),
        has_more: usage.has_more || usage.days.len() > DAYS_SHOWN_MAX,
    })
}

fn span(view: &HistoryView) -> String {
    format!("{} to {}", time(view.from_ms), time(view.to_ms))
}

fn rows(view: &HistoryView) -> Vec<SumsRow> {
    let absent = if view.by == "scene" { "none (chat)" } else { "none" };
    let name = |name: &str| if name.is_empty() { absent.to_owned() } else { name.to_owned() };
    let total = SumsRow::new("all".to_owned(), &view.total);
    let groups = view.groups.iter().map(|group| SumsRow::new(name(&group.name), &group.sums));
    [total].into_iter().chain(groups).collect()
}

fn usage_row(day: String, tenant: &str, requests: u64, tokens: u64) -> UsageRow {
    let tenant = if tenant.is_empty() { "none" } else { tenant };
    let count = |value: u64| grouped(value as f64, 0);
    UsageRow { day, tenant: tenant.to_owned(), requests: count(requests), tokens: count(tokens) }
}

fn tenants(view: &UsageView) -> Vec<UsageRow> {
    let row = |used: &crate::admin::view::history::TenantUsageView| {
        usage_row(String::new(), &used.tenant, used.requests, used.tokens)
    };
    view.tenants.iter().map(row).collect()
}

fn days(view: &UsageView) -> Vec<UsageRow> {
    let date = |ms: i64| utc(ms).map_or_else(|| "?".to_owned(), |shown| shown.chars().take(10).collect());
    let days = view.days.iter().take(DAYS_SHOWN_MAX);
    days.map(|day| usage_row(date(day.day_ms), &day.tenant, day.requests, day.tokens)).collect()
}

fn charts(view: &HistoryView) -> Vec<Chart> {
    let line = |name: &str, value: fn(&HistorySums) -> Option<f64>| {
        let (_, unit_ms) = unit(view);
        let x = |start_ms: i64| (start_ms - view.to_ms) as f64 / unit_ms as f64;
        // A step without a value is a gap in the line.
        let points =
            view.points.iter().map(|point| (x(point.start_ms), value(&point.sums).unwrap_or(f64::NAN)));
        Line::new(name, points.collect())
    };
    vec![
        chart(
            view,
            ("requests", "Requests", "requests"),
            "",
            vec![
                line("ended", |sums| Some(sums.requests as f64)),
                line("with an error", |sums| Some(sums.failures as f64)),
            ],
        ),
        chart(
            view,
            ("first-token", "Time to the first token", "TTFT"),
            "ms",
            vec![line("p50", |sums| sums.ttft_p50_ms), line("p95", |sums| sums.ttft_p95_ms)],
        ),
        chart(
            view,
            ("tokens", "Tokens", "tokens"),
            "",
            vec![
                line("of prompts", |sums| Some(sums.prompt_tokens as f64)),
                line("written", |sums| Some(sums.completion_tokens as f64)),
            ],
        ),
    ]
}

/// Returns the unit of the axis of time, and its length.
fn unit(view: &HistoryView) -> (&'static str, i64) {
    match view.to_ms - view.from_ms {
        length if length <= 3 * HOUR_MS => ("min", MINUTE_MS),
        length if length <= 3 * DAY_MS => ("h", HOUR_MS),
        _ => ("d", DAY_MS),
    }
}

fn chart(
    view: &HistoryView,
    (id, title, label): (&'static str, &str, &str),
    y_unit: &'static str,
    lines: Vec<Line>,
) -> Chart {
    let highest = lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y).fold(0.0, f64::max);
    let (x_unit, unit_ms) = unit(view);
    let first = view.points.first().map_or(view.from_ms, |point| point.start_ms);
    let minutes = view.step_ms / MINUTE_MS;
    let step = if minutes < 60 { format!("{minutes} min") } else { format!("{} h", minutes / 60) };
    Chart {
        id,
        title: title.to_owned(),
        description: format!("Sums of steps of {step}, up to the end of the range."),
        x: Axis::new("before the end", x_unit, (first - view.to_ms) as f64 / unit_ms as f64, 0.0),
        y: Axis::from_zero(label, y_unit, highest.max(4.0)),
        decimals: (2, 0),
        lines,
        region: None,
        marks: Vec::new(),
        chosen: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_browsers_send_them() {
        assert_eq!(moment("from", " ").unwrap(), None);
        assert_eq!(moment("from", "1970-01-02T00:01").unwrap(), Some(DAY_MS + MINUTE_MS));
        assert_eq!(moment("to", "1970-01-02T00:00:30").unwrap(), Some(DAY_MS + 30_000));
        for wrong in ["yesterday", "1970-13-01T00:00", "0"] {
            assert_eq!(moment("to", wrong).unwrap_err().field_name(), Some("to"), "{wrong}");
        }
    }

    #[test]
    fn a_typed_time_replaces_the_choice() {
        let asked = HistoryAsked { to: "1970-01-02T00:00".into(), ..HistoryAsked::default() };
        let range = asked.range(9 * DAY_MS).unwrap();
        assert_eq!((range.from_ms, range.to_ms), (None, Some(DAY_MS)));
        let range = HistoryAsked::default().range(9 * DAY_MS).unwrap();
        assert_eq!((range.from_ms, range.to_ms), (Some(8 * DAY_MS), Some(9 * DAY_MS)));
        let wrong = HistoryAsked { last: "1 year".into(), ..HistoryAsked::default() };
        assert_eq!(wrong.range(0).unwrap_err().field_name(), Some("last"));
    }
}
