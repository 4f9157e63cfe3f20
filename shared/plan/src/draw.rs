//! Draws each round's windows, for a terminal and as SVG: one row per device, time to the right.

use std::fmt::Write as _;

use html_escape::encode_double_quoted_attribute as escaped;

use crate::cost::{DeviceTime, Prediction};
use crate::plan::{Plan, Window};

/// One window on the time axis, in seconds since the token began.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    window: Window,
    begin_s: f64,
    /// The computing part of it; the rest is waiting for the disk.
    busy_s: f64,
    end_s: f64,
}

/// Places windows one after another: each device's time is split in proportion to the layers of its windows,
/// with hops between.
fn spans(plan: &Plan, prediction: &Prediction) -> Vec<Span> {
    let windows = plan.windows();
    let mut at = 0.0;
    let mut spans = Vec::new();
    for (index, window) in windows.iter().enumerate() {
        let time = &prediction.devices[window.place];
        let part = (window.end - window.begin) as f64 / plan.shares[window.place].layers as f64;
        let busy_s = part * (time.compute_s + time.memory_s);
        let end_s = at + busy_s + part * time.disk_s;
        spans.push(Span { window: *window, begin_s: at, busy_s, end_s });
        let goes_on = windows.get(index + 1).is_none_or(|next| next.place != window.place);
        let hop = time.network_s / plan.rounds as f64;
        at = end_s + if goes_on { hop } else { 0.0 };
    }
    spans
}

/// Formats milliseconds with about three digits.
fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms >= 100.0 {
        format!("{ms:.0}")
    } else if ms >= 10.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.2}")
    }
}

/// Returns the plan as text of about `columns` columns: `#` GPU layers, `=` CPU layers, `.` waiting for the
/// disk.
pub fn text(plan: &Plan, prediction: &Prediction, columns: usize) -> String {
    let names = plan.shares.iter().map(|share| share.device.chars().count()).max().unwrap_or(0);
    let width = columns.saturating_sub(names + 3).max(20);
    let spans = spans(plan, prediction);
    let whole = spans.last().map_or(1.0, |span| span.end_s).max(f64::MIN_POSITIVE);
    let column = |seconds: f64| ((seconds / whole * width as f64).round() as usize).min(width);
    let mut drawn = String::new();
    for (place, share) in plan.shares.iter().enumerate() {
        let mut line = vec![' '; width];
        for span in spans.iter().filter(|span| span.window.place == place) {
            let (begin, end) =
                (column(span.begin_s), column(span.end_s).max(column(span.begin_s) + 1).min(width));
            let computing = column(span.begin_s + span.busy_s).clamp(begin, end);
            let layers = (span.window.end - span.window.begin).max(1);
            let gpu = begin + (computing - begin) * span.window.gpu / layers;
            line[begin.min(width)..gpu].fill('#');
            line[gpu..computing].fill('=');
            line[computing..end].fill('.');
            if computing == begin && begin < width {
                line[begin] = '=';
            }
        }
        let line: String = line.into_iter().collect();
        let _ = writeln!(drawn, "{:names$} |{line}|", share.device);
    }
    let _ = writeln!(drawn, "{:names$}  0{:>right$} ms", "", ms(whole), right = width - 1);
    drawn
}

/// Colours of devices, distinct on light and dark and for colour-blind readers (Okabe and Ito 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const ROW: usize = 34;
const LEFT: usize = 130;
const WIDTH: usize = 900;

/// Returns the plan as a self-contained SVG picture.
pub fn svg(plan: &Plan, prediction: &Prediction) -> String {
    let spans = spans(plan, prediction);
    let whole = spans.last().map_or(1.0, |span| span.end_s).max(f64::MIN_POSITIVE);
    let x = |seconds: f64| LEFT as f64 + seconds / whole * (WIDTH - LEFT - 20) as f64;
    let height = plan.shares.len() * ROW + 60;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>{} layers in {} rounds on {} devices: {} ms a token</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n",
        plan.layers,
        plan.rounds,
        plan.shares.len(),
        ms(prediction.token_s)
    );
    for (place, (share, time)) in plan.shares.iter().zip(&prediction.devices).enumerate() {
        let y = place * ROW + 20;
        let name = escaped(&share.device);
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{name}</text>", y + 12);
        let of = layers_of(share.layers, share.gpu_layers);
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\" fill=\"#555\" font-size=\"10\">{of}</text>", y + 24);
        for span in spans.iter().filter(|span| span.window.place == place) {
            rectangle(&mut svg, span, time, place, y, &x);
        }
    }
    let base = height - 24;
    let end = WIDTH - 20;
    let _ = writeln!(svg, "<path d=\"M{LEFT} {base}H{end}\" stroke=\"#555\"/>");
    for tenth in [0, 5, 10] {
        let seconds = whole * f64::from(tenth) / 10.0;
        let (at, label) = (x(seconds), ms(seconds));
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label} ms</text>", base + 16);
    }
    svg.push_str("</svg>\n");
    svg
}

fn rectangle(
    svg: &mut String,
    span: &Span,
    time: &DeviceTime,
    place: usize,
    y: usize,
    x: &dyn Fn(f64) -> f64,
) {
    let colour = COLOURS[place % COLOURS.len()];
    let Window { round, begin, end, gpu, .. } = span.window;
    let computing = span.begin_s + span.busy_s;
    let (from, to, stop) = (x(span.begin_s), x(computing), x(span.end_s));
    let title = format!(
        "{}, round {}: layers {begin} to {}, {gpu} of them on the GPU; {} ms, {} ms of it waiting for the disk",
        escaped(&time.device),
        round + 1,
        end - 1,
        ms(span.end_s - span.begin_s),
        ms(span.end_s - computing)
    );
    let _ = writeln!(
        svg,
        "<g><title>{title}</title><rect x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"24\" fill=\"{colour}\"/>\
         <rect x=\"{to:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"24\" fill=\"{colour}\" fill-opacity=\".3\"/></g>",
        (to - from).max(0.5),
        stop - to
    );
}

fn layers_of(layers: usize, gpu: usize) -> String {
    match (layers, gpu) {
        (0, _) => "text, embedding, output".to_owned(),
        (_, 0) => format!("{layers} layers"),
        _ => format!("{layers} layers, {gpu} on the GPU"),
    }
}

#[cfg(test)]
mod tests;
