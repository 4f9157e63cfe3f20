//! The report as one HTML page: figures as tables, curves as inline SVG. It needs no script, no network and
//! no other files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use html_escape::encode_double_quoted_attribute as escaped;

use crate::arm::Arm;
use crate::stats::{Estimate, Sample, estimate};
use crate::store::Row;
use crate::summary::{Figures, fitting_recall, samples};

mod svg;

use svg::{Chart, Point, Series};

/// Number of positions in the chart of agreement.
const POSITIONS_MAX: usize = 64;
/// Minimum number of answers for a position in the chart.
const ANSWERS_MIN: usize = 5;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#1b1b1f}\
    table{border-collapse:collapse;margin:.6em 0 1.6em}th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}\
    th:first-child,td:first-child{text-align:left;font-family:ui-monospace,monospace;font-size:.9em}\
    .charts{display:flex;flex-wrap:wrap;gap:1em}svg{background:#fff}h2{margin-top:1.6em}small{color:#666}";

/// Makes the page. `about`: lines that name the models and the data.
pub fn page(rows: &[&Row], figures: &[Figures], about: &[String]) -> String {
    let mut body = String::new();
    let mut add = |text: String| body.push_str(&text);
    add("<h1>Answer quality</h1>\n<p>".to_owned());
    add(about.iter().map(escaped).collect::<Vec<_>>().join("<br>"));
    add("</p>\n<p><small>Means with 95&nbsp;% intervals of a bootstrap over texts. Recall counts cases whose gold \
         sentences fit into the budget.</small></p>\n"
        .to_owned());
    let suites: BTreeSet<&str> = rows.iter().map(|row| row.suite.as_str()).collect();
    for suite in suites {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.suite == suite).collect();
        add(format!("<h2>{}</h2>\n<div class=\"charts\">\n", escaped(suite)));
        for chart in charts(&own) {
            add(chart.draw());
        }
        add("</div>\n".to_owned());
        add(tables(figures.iter().filter(|figure| figure.key.suite == suite)));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Answer quality</title>\
         <style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
}

fn charts(rows: &[&Row]) -> Vec<Chart> {
    let mut charts = Vec::new();
    let groups: BTreeSet<&str> = rows.iter().map(|row| row.group.as_str()).collect();
    for group in groups {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.group == group).collect();
        charts.push(over_ratio(&format!("{group}: recall over r"), &own, Wanted::Recall));
        charts.push(over_ratio(&format!("{group}: score over r"), &own, Wanted::Score));
        charts.push(over_assist(&format!("{group}: score over L"), &own));
        charts.push(over_length(&format!("{group}: score over length"), &own));
    }
    charts.push(agreement(rows));
    charts.retain(Chart::is_worth_drawing);
    charts
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Recall,
    Score,
}

/// Groups rows into points by series and x. `place` returns both, or `None` to leave a row out.
fn series<'a>(
    rows: &[&'a Row],
    place: impl Fn(&'a Row, &Arm) -> Option<(String, f64)>,
    value: impl Fn(&Row) -> Option<f64>,
) -> Vec<Series> {
    let mut found: BTreeMap<String, BTreeMap<u64, (f64, Vec<&Row>)>> = BTreeMap::new();
    for &row in rows {
        let Ok(arm) = row.arm.parse::<Arm>() else { continue };
        if let Some((name, x)) = place(row, &arm) {
            // The bits have the same order as positive floats.
            found.entry(name).or_default().entry(x.to_bits()).or_insert((x, Vec::new())).1.push(row);
        }
    }
    let of_series = |(name, points): (String, BTreeMap<u64, (f64, Vec<&Row>)>)| {
        let points =
            points.into_values().filter_map(|(x, rows)| Some(point(x, estimate(&samples(&rows, &value))?)));
        Series { name, points: points.collect() }
    };
    found.into_iter().map(of_series).filter(|series| !series.points.is_empty()).collect()
}

fn point(x: f64, estimate: Estimate) -> Point {
    Point { x, y: estimate.mean, low: estimate.low, high: estimate.high }
}

fn over_ratio(title: &str, rows: &[&Row], wanted: Wanted) -> Chart {
    let place = |_: &Row, arm: &Arm| {
        let name = match (arm, wanted) {
            (Arm::Mask { ranking, .. }, Wanted::Recall) => ranking.to_string(),
            (Arm::Relay { device, ranking, assist_tokens, .. }, Wanted::Score) => {
                format!("{device} {ranking} L={assist_tokens}")
            }
            (Arm::Evict { device, policy, .. }, Wanted::Score) => format!("{device} {}", policy.as_str()),
            _ => return None,
        };
        Some((name, f64::from(arm.ratio()?)))
    };
    let value = |row: &Row| if wanted == Wanted::Recall { fitting_recall(row) } else { row.score };
    Chart { title: title.to_owned(), x_label: "r", log_x: false, series: series(rows, place, value) }
}

fn over_assist(title: &str, rows: &[&Row]) -> Chart {
    let place = |_: &Row, arm: &Arm| match arm {
        Arm::Relay { device, ranking, ratio, assist_tokens, .. } => {
            Some((format!("{device} {ranking} r={ratio}"), *assist_tokens as f64))
        }
        _ => None,
    };
    Chart { title: title.to_owned(), x_label: "L", log_x: true, series: series(rows, place, |row| row.score) }
}

fn over_length(title: &str, rows: &[&Row]) -> Chart {
    let place = |row: &Row, arm: &Arm| {
        let answers = !matches!(arm, Arm::Mask { .. });
        (answers && row.length > 0).then(|| (arm.to_string(), row.length as f64))
    };
    Chart {
        title: title.to_owned(),
        x_label: "tokens of the text",
        log_x: true,
        series: series(rows, place, |row| row.score),
    }
}

/// Charts the share of the cloud's tokens that the device would have written too, over their index.
fn agreement(rows: &[&Row]) -> Chart {
    let mut by_arm: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for &row in rows.iter().filter(|row| !row.agreement.is_empty()) {
        if let Ok(Arm::Relay { device, ranking, ratio, .. }) = row.arm.parse() {
            by_arm.entry(format!("{device} {ranking} r={ratio}")).or_default().push(row);
        }
    }
    let of_arm = |(name, rows): (String, Vec<&Row>)| {
        let at = |position: usize| {
            let samples: Vec<Sample> = rows
                .iter()
                .filter_map(|row| {
                    let same = *row.agreement.as_bytes().get(position)?;
                    Some(Sample { cluster: row.cluster, value: f64::from(u8::from(same == b'1')) })
                })
                .collect();
            (samples.len() >= ANSWERS_MIN).then(|| estimate(&samples)).flatten()
        };
        let points = (0..POSITIONS_MAX).map_while(|position| Some(point(position as f64, at(position)?)));
        Series { name, points: points.collect() }
    };
    Chart {
        title: "cloud and device agree".to_owned(),
        x_label: "index of the token",
        log_x: false,
        series: by_arm.into_iter().map(of_arm).collect(),
    }
}

fn tables<'a>(figures: impl Iterator<Item = &'a Figures>) -> String {
    let mut out = String::new();
    let cell = |value: &Option<Estimate>| match value {
        Some(e) => format!(
            "<td>{:.1} <small>[{:.1}, {:.1}]</small></td>",
            100.0 * e.mean,
            100.0 * e.low,
            100.0 * e.high
        ),
        None => "<td></td>".to_owned(),
    };
    let mut before: Option<(&str, usize)> = None;
    for figure in figures {
        let key = (figure.key.group.as_str(), figure.key.length);
        if before != Some(key) {
            out.push_str(if before.is_some() { "</table>\n" } else { "" });
            let length = if key.1 > 0 { format!(", {} tokens", key.1) } else { String::new() };
            let head = format!(
                "<h3>{}{length}</h3>\n<table><tr><th>arm</th><th>score&nbsp;%</th><th>recall&nbsp;%</th><th>cases</th>\
                 <th>prompt tokens</th><th>loops</th><th>garbage</th><th>off question</th><th>failed</th></tr>\n",
                escaped(key.0)
            );
            out.push_str(&head);
            before = Some(key);
        }
        let n = figure.score.or(figure.recall).map_or(0, |e| e.n);
        let written = writeln!(
            out,
            "<tr><td>{}</td>{}{}<td>{n}</td><td>{:.0}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&figure.key.arm),
            cell(&figure.score),
            cell(&figure.recall),
            figure.prompt_tokens,
            figure.looped,
            figure.garbled,
            figure.off_question,
            figure.failed
        );
        written.expect("writing to a String cannot fail");
    }
    if before.is_some() {
        out.push_str("</table>\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::figures;

    fn row(case: usize, arm: &str, score: Option<f64>) -> Row {
        Row {
            case: format!("{case}"),
            arm: arm.into(),
            suite: "<s>".into(),
            group: "a&b".into(),
            length: 512,
            cluster: case as u64,
            score,
            recall: Some(0.5),
            agreement: if score.is_some() { "10".into() } else { String::new() },
            ..Row::default()
        }
    }

    #[test]
    fn the_page_has_tables_and_charts_and_no_foreign_markup() {
        let mut rows = Vec::new();
        for case in 0..6 {
            for ratio in ["0.1", "0.25"] {
                rows.push(row(case, &format!("mask:bm25@{ratio}"), None));
                rows.push(row(case, &format!("relay:d:attention@{ratio}:2:cloud"), Some(1.0)));
            }
        }
        let rows: Vec<&Row> = rows.iter().collect();
        let page = page(&rows, &figures(&rows), &["models <x>".to_owned()]);
        assert!(page.contains("&lt;s&gt;") && page.contains("a&amp;b") && page.contains("models &lt;x&gt;"));
        assert!(!page.contains("<s>") && !page.contains("<script"));
        assert_eq!(page.matches("<svg").count(), 3, "recall over r, score over r, agreement");
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
        assert!(page.contains("relay:d:attention@0.25:2:cloud"));
    }

    #[test]
    fn agreement_is_a_share_by_position() {
        let rows: Vec<Row> =
            (0..6).map(|case| row(case, "relay:d:attention@0.1:2:cloud", Some(1.0))).collect();
        let chart = agreement(&rows.iter().collect::<Vec<_>>());
        let ys: Vec<f64> = chart.series[0].points.iter().map(|point| point.y).collect();
        assert_eq!(ys, [1.0, 0.0]);
    }
}
