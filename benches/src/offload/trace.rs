//! What the two engines of an emulated device did in one token: overlap, a picture, and a strip of letters.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use baton_kernels_gpu::cases::Span;

use super::bed::Figure;

/// A matrix that an engine copied, or multiplied with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    /// Its place in the walk since the first pass.
    pub(super) unit: usize,
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) bytes: u64,
}

/// The loads and the products of a run in which every matrix of the layers is loaded for each pass, by one
/// thread.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) copies: Vec<Task>,
    pub(super) computes: Vec<Task>,
    /// When the last step began.
    from_s: f64,
    /// Matrices of a pass.
    units: usize,
}

/// Width of the strip in letters.
const STRIP: usize = 96;
/// Units of the strip, and of the picture.
const SHOWN: usize = 14;

impl Trace {
    /// Reads the spans of a run. A pass loads `units` matrices of layers. It multiplies with `products`
    /// matrices: those, and the projection to logits if it is on the device.
    pub(super) fn new(figure: &Figure, units: usize, products: usize) -> Self {
        let [commands, loads] = &figure.spans;
        let task =
            |unit, span: &Span| Task { unit, start_s: span.start_s, end_s: span.end_s, bytes: span.bytes };
        let copies = loads.iter().enumerate().map(|(unit, span)| task(unit, span)).collect();
        let computes = multiplied(commands)
            .enumerate()
            .filter(|(number, _)| number % products.max(1) < units)
            .map(|(number, span)| task(number / products.max(1) * units + number % products.max(1), span))
            .collect();
        Self { copies, computes, from_s: figure.last_step_s, units }
    }

    /// The products of the last step.
    fn last(&self) -> impl Iterator<Item = &Task> {
        self.computes.iter().filter(|task| task.start_s >= self.from_s)
    }

    /// Returns the share of the last step's products during which a later matrix was on its way.
    pub(super) fn overlapped(&self) -> f64 {
        let is_beside = |task: &&Task| {
            let meets = |copy: &Task| copy.start_s < task.end_s && task.start_s < copy.end_s;
            self.copies.iter().any(|copy| copy.unit > task.unit && meets(copy))
        };
        self.last().filter(is_beside).count() as f64 / self.last().count() as f64
    }

    /// Returns the share of the last step in which matrices were copied.
    pub(super) fn copy_share(&self) -> f64 {
        let end_s = self.computes.last().map_or(self.from_s, |task| task.end_s);
        let within = |task: &Task| (task.end_s.min(end_s) - task.start_s.max(self.from_s)).max(0.0);
        self.copies.iter().map(within).sum::<f64>() / (end_s - self.from_s)
    }

    /// Returns the times between which the first units of the last step are shown.
    fn window(&self) -> (f64, f64) {
        (self.from_s, self.last().nth(SHOWN - 1).map_or(self.from_s, |task| task.end_s))
    }

    /// Returns a line of letters for each engine: a unit's letter while the engine is busy with it.
    pub(super) fn strip(&self) -> [String; 2] {
        let (from_s, to_s) = self.window();
        let lane = |tasks: &[Task]| {
            let letter = |column: usize| {
                let at_s = from_s + (to_s - from_s) * (column as f64 + 0.5) / STRIP as f64;
                let busy = tasks.iter().find(|task| (task.start_s..task.end_s).contains(&at_s));
                busy.map_or('.', |task| letter_of(task.unit % self.units))
            };
            (0..STRIP).map(letter).collect()
        };
        [lane(&self.copies), lane(&self.computes)]
    }
}

/// Returns the products of commands.
pub(super) fn multiplied(commands: &[Span]) -> impl Iterator<Item = &Span> {
    commands.iter().filter(|span| span.bytes > 0 && !matches!(&*span.what, "write" | "read"))
}

/// Returns the letter of a unit of a pass.
fn letter_of(unit: usize) -> char {
    let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char::from(letters[unit % letters.len()])
}

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 90.0;
const LANE: f64 = 34.0;
const BLOCK: f64 = 130.0;
const COLOURS: [&str; 4] = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1"];

/// Writes a picture of some runs below each other, with one scale of time.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn draw(path: &Path, note: &str, runs: &[(&str, &Trace)]) -> Result<()> {
    let span = |trace: &Trace| trace.window().1 - trace.window().0;
    let longest_s = runs.iter().map(|(_, trace)| span(trace)).fold(0.0, f64::max);
    let height = BLOCK * runs.len() as f64 + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\">{note}</text>\n",
        LEFT + WIDTH + 20.0
    );
    for (at, (name, trace)) in runs.iter().enumerate() {
        let top = 40.0 + BLOCK * at as f64;
        let _ = writeln!(svg, "<text x=\"10\" y=\"{top}\" font-weight=\"bold\">{name}</text>");
        for (lane, what, tasks) in [(0.0, "copy", &trace.copies), (1.0, "compute", &trace.computes)] {
            let y = top + 10.0 + lane * (LANE + 6.0);
            let _ = writeln!(svg, "<text x=\"10\" y=\"{}\">{what}</text>", y + LANE / 2.0 + 4.0);
            svg.push_str(&boxes(trace, tasks, y, WIDTH / longest_s));
        }
        let ms = span(trace) * 1e3;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\">{ms:.2} ms for the first {SHOWN} matrices of a token</text>",
            top + 2.0 * LANE + 34.0
        );
    }
    svg.push_str("</svg>\n");
    std::fs::write(path, svg).with_context(|| format!("write {}", path.display()))
}

/// Returns the rectangles of a lane. `scale` is in pixels a second.
fn boxes(trace: &Trace, tasks: &[Task], y: f64, scale: f64) -> String {
    let (from_s, to_s) = trace.window();
    let mut svg = String::new();
    for task in tasks.iter().filter(|task| task.end_s > from_s && task.start_s < to_s) {
        let (start_s, end_s) = (task.start_s.max(from_s), task.end_s.min(to_s));
        let (x, width) = (LEFT + (start_s - from_s) * scale, (end_s - start_s) * scale);
        let unit = task.unit % trace.units;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{LANE}\" fill=\"{}\" stroke=\"white\">\
             <title>matrix {unit}: {} bytes, {:.3} ms</title></rect>",
            COLOURS[unit % COLOURS.len()],
            task.bytes,
            (task.end_s - task.start_s) * 1e3
        );
        if width > 9.0 {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" fill=\"white\" text-anchor=\"middle\">{}</text>",
                x + width / 2.0,
                y + LANE / 2.0 + 4.0,
                letter_of(unit)
            );
        }
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(unit: usize, start_s: f64, end_s: f64) -> Task {
        Task { unit, start_s, end_s, bytes: 8 }
    }

    /// Two matrices a pass; the last pass begins at second 2.
    fn trace(copies: Vec<Task>) -> Trace {
        let computes = vec![task(0, 0.0, 1.0), task(1, 1.0, 2.0), task(2, 2.0, 3.0), task(3, 3.0, 4.0)];
        Trace { copies, computes, from_s: 2.0, units: 2 }
    }

    #[test]
    fn overlap_is_that_of_later_matrices() {
        let ahead = trace(vec![task(2, 1.0, 2.0), task(3, 2.0, 3.0), task(4, 3.0, 4.0)]);
        assert_eq!((ahead.overlapped(), ahead.copy_share()), (1.0, 1.0));
        let late = trace(vec![task(3, 2.5, 3.0)]);
        assert_eq!((late.overlapped(), late.copy_share()), (0.5, 0.25));
        let same = trace(vec![task(2, 2.0, 3.0), task(3, 3.0, 4.0)]);
        assert_eq!(same.overlapped(), 0.0, "a matrix beside itself is no overlap");
    }

    #[test]
    fn a_picture_has_a_rectangle_for_each_task_in_the_window() {
        let mut trace = trace(vec![task(2, 1.0, 2.0), task(3, 2.0, 3.0)]);
        trace.computes.extend((4..30).map(|unit| task(unit, unit as f64, unit as f64 + 1.0)));
        let file = tempfile::NamedTempFile::new().unwrap();
        draw(file.path(), "a note", &[("one", &trace)]).unwrap();
        let svg = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(svg.matches("<title>").count(), 1 + SHOWN, "{svg}");
        let [copy, compute] = trace.strip();
        assert_eq!((copy.len(), compute.len()), (STRIP, STRIP));
        assert!(
            copy.starts_with('b') && copy.ends_with('.') && compute.starts_with("aaa"),
            "{copy} {compute}"
        );
    }
}
