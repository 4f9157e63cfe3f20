//! Charts as SVG: lines over an axis with units, a legend, a shaded region, and a table of the same numbers.
//!
//! Never: draws a number that its table does not have; uses a script, an inline style or a colour. It has
//! only classes, because the style sheet has a light and a dark scheme. Always: every text is escaped; every
//! chart has a title, and a description for readers who cannot see it; the same data give the same bytes.

mod scale;

use std::fmt::Write as _;

use html_escape::encode_quoted_attribute as escape;

pub use self::scale::{Axis, grouped};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 280.0;
/// Space for labels left, above, right and below of the plot.
const LEFT: f64 = 76.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// About the width of a letter and the height of a line in the small texts of a chart.
const CHAR: f64 = 6.2;
const LINE: f64 = 13.0;
const WRITES: &str = "writing to a String cannot fail";

/// Lines over one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// A prefix for ids in the SVG: letters, digits and `-`, unique on a page.
    pub id: &'static str,
    /// Its title, a few words.
    pub title: String,
    /// A description in a sentence, for readers who cannot see it.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Decimals of x and y in the table.
    pub decimals: (usize, usize),
    /// Lines, the first one the most important.
    pub lines: Vec<Line>,
    /// The allowed range of x, if it is shown.
    pub region: Option<Region>,
    /// Values that are marked for comparison.
    pub marks: Vec<Mark>,
    /// The chosen point, with its text.
    pub chosen: Option<(f64, f64, String)>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Points by rising x. Those above the axis are cut off, and one without a number (NaN) is a gap in the
    /// line.
    pub points: Vec<(f64, f64)>,
    /// Lower and upper end of y at each point, if they are known.
    pub band: Vec<(f64, f64)>,
}

impl Line {
    /// Makes a line without a band.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, band: Vec::new() }
    }
}

/// A range of x that is shaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// The least.
    pub from: f64,
    /// The largest.
    pub to: f64,
    /// Its name in the legend.
    pub name: String,
}

/// A value that is marked across the chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The axis of the value.
    pub across: Across,
    /// The value.
    pub value: f64,
    /// Its text.
    pub text: String,
}

/// The axis of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// A value of x: an upright line.
    X,
    /// A value of y: a level line.
    Y,
}

impl Chart {
    fn left(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - BOTTOM - TOP)
    }

    /// Draws the chart as one `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        let id = self.id;
        let mut out = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-desc\"><title id=\"{id}-title\">{}</title>\
             <desc id=\"{id}-desc\">{}</desc><clipPath id=\"{id}-clip\"><rect x=\"{LEFT}\" y=\"{TOP}\" \
             width=\"{}\" height=\"{}\"/></clipPath>",
            escape(&self.title),
            escape(&self.description),
            WIDTH - LEFT - RIGHT,
            HEIGHT - BOTTOM - TOP,
        );
        self.draw_region(&mut out);
        self.draw_axes(&mut out);
        write!(out, "<g clip-path=\"url(#{id}-clip)\">").expect(WRITES);
        // The first line is drawn last, on top of the others.
        for (index, line) in self.lines.iter().enumerate().rev() {
            self.draw_line(index, line, &mut out);
        }
        out.push_str("</g>");
        self.draw_marks(&mut out);
        self.draw_chosen(&mut out);
        self.draw_nothing(&mut out);
        out.push_str("</svg>");
        out
    }

    fn draw_region(&self, out: &mut String) {
        let Some(region) = &self.region else { return };
        let from = self.left(region.from.clamp(self.x.min, self.x.max));
        let to = self.left(region.to.clamp(self.x.min, self.x.max));
        write!(
            out,
            "<rect class=\"region\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"/>",
            (to - from).max(1.5),
            HEIGHT - BOTTOM - TOP
        )
        .expect(WRITES);
    }

    fn draw_axes(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, text) in self.y.ticks() {
            let top = self.top(value);
            write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{top:.1}\" x2=\"{right}\" y2=\"{top:.1}\"/>\
                 <text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                LEFT - 6.0,
                top + 4.0
            )
            .expect(WRITES);
        }
        for (value, text) in self.x.ticks() {
            let left = self.left(value);
            write!(
                out,
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{bottom}\" x2=\"{left:.1}\" y2=\"{}\"/>\
                 <text class=\"tick middle\" x=\"{left:.1}\" y=\"{}\">{text}</text>",
                bottom + 4.0,
                bottom + 17.0
            )
            .expect(WRITES);
        }
        write!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>\
             <text class=\"label middle\" x=\"{:.1}\" y=\"{}\">{}</text>\
             <text class=\"label middle\" transform=\"translate(13 {:.1}) rotate(-90)\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 8.0,
            self.x.title(),
            f64::midpoint(TOP, bottom),
            self.y.title(),
        )
        .expect(WRITES);
    }

    fn draw_line(&self, index: usize, line: &Line, out: &mut String) {
        if line.band.len() == line.points.len() && !line.band.is_empty() {
            let upper = line.points.iter().zip(&line.band).map(|(&(x, _), &(_, high))| (x, high));
            let lower = line.points.iter().zip(&line.band).rev().map(|(&(x, _), &(low, _))| (x, low));
            write!(out, "<polygon class=\"band s{index}\" points=\"{}\"/>", self.path(upper.chain(lower)))
                .expect(WRITES);
        }
        for part in line.points.split(|(_, y)| y.is_nan()) {
            match *part {
                [] => {}
                [(x, y)] => {
                    let (left, top) = (self.left(x), self.top(y));
                    write!(out, "<circle class=\"dot s{index}\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3\"/>")
                        .expect(WRITES);
                }
                _ => {
                    let points = self.path(part.iter().copied());
                    write!(out, "<polyline class=\"line s{index}\" points=\"{points}\"/>").expect(WRITES);
                }
            }
        }
    }

    /// Writes "nothing yet" if there is no number.
    fn draw_nothing(&self, out: &mut String) {
        if self.lines.iter().flat_map(|line| &line.points).any(|(_, y)| !y.is_nan()) {
            return;
        }
        let (left, top) = (f64::midpoint(LEFT, WIDTH - RIGHT), f64::midpoint(TOP, HEIGHT - BOTTOM));
        write!(out, "<text class=\"note middle\" x=\"{left:.1}\" y=\"{top:.1}\">nothing yet</text>")
            .expect(WRITES);
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut out = String::new();
        // A value far above the axis stands for infinity, and stays a number.
        let far = self.y.max + 4.0 * (self.y.max - self.y.min);
        for (x, y) in points.filter(|(x, y)| x.is_finite() && !y.is_nan()) {
            let comma = if out.is_empty() { "" } else { " " };
            write!(out, "{comma}{:.1},{:.1}", self.left(x), self.top(y.min(far))).expect(WRITES);
        }
        out
    }

    fn draw_marks(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for mark in &self.marks {
            let text = escape(&mark.text);
            match mark.across {
                Across::Y if self.y.place(mark.value) <= 1.0 => {
                    let top = self.top(mark.value);
                    write!(
                        out,
                        "<line class=\"mark\" x1=\"{LEFT}\" y1=\"{top:.1}\" x2=\"{right}\" y2=\"{top:.1}\"/>\
                         <text class=\"note end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                        right - 3.0,
                        (top - 5.0).max(TOP + 9.0)
                    )
                    .expect(WRITES);
                }
                Across::X if (0.0..=1.0).contains(&self.x.place(mark.value)) => {
                    let left = self.left(mark.value);
                    let (class, at) =
                        if self.x.place(mark.value) > 0.7 { ("note end", -4.0) } else { ("note", 4.0) };
                    write!(
                        out,
                        "<line class=\"mark\" x1=\"{left:.1}\" y1=\"{TOP}\" x2=\"{left:.1}\" y2=\"{bottom}\"/>\
                         <text class=\"{class}\" x=\"{:.1}\" y=\"{}\">{text}</text>",
                        left + at,
                        bottom - 6.0
                    )
                    .expect(WRITES);
                }
                Across::X | Across::Y => {}
            }
        }
    }

    fn draw_chosen(&self, out: &mut String) {
        let Some((x, y, text)) = &self.chosen else { return };
        let (left, top) = (self.left(*x), self.top(y.min(self.y.max)));
        let (class, at) =
            if self.x.place(*x) > 0.55 { ("chosen-text end", -9.0) } else { ("chosen-text", 9.0) };
        let above = (top - 8.0).max(TOP + 10.0);
        // Texts of marks are at the right end, above their lines. If the point's own text would overlap one,
        // it goes below the point.
        let meets = self.marks.iter().any(|mark| {
            let line =
                (mark.across == Across::Y && self.y.place(mark.value) <= 1.0).then(|| self.top(mark.value));
            let begins = WIDTH - RIGHT - 3.0 - CHAR * mark.text.chars().count() as f64;
            line.is_some_and(|line| {
                ((line - 5.0).max(TOP + 9.0) - above).abs() < LINE
                    && left + at + CHAR * text.len() as f64 > begins
            })
        });
        let baseline = if meets { (top + 8.0 + LINE).min(HEIGHT - BOTTOM - 4.0) } else { above };
        write!(
            out,
            "<circle class=\"chosen\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"5\"/>\
             <text class=\"{class}\" x=\"{:.1}\" y=\"{baseline:.1}\">{}</text>",
            left + at,
            escape(text)
        )
        .expect(WRITES);
    }

    /// Returns the names of the lines, in the order of their classes `s0`, `s1`, ...
    #[must_use]
    pub fn legend(&self) -> Vec<String> {
        self.lines.iter().map(|line| line.name.clone()).collect()
    }

    /// Returns the heads of the table's columns.
    #[must_use]
    pub fn table_head(&self) -> Vec<String> {
        let unit =
            |axis: &Axis| if axis.unit.is_empty() { String::new() } else { format!(" ({})", axis.unit) };
        let mut head = vec![format!("{}{}", self.x.label, unit(&self.x))];
        head.extend(self.lines.iter().map(|line| format!("{}{}", line.name, unit(&self.y))));
        head
    }

    /// Returns the rows of the table: every x of the first line, with y of each line that has a value there.
    #[must_use]
    pub fn table_rows(&self) -> Vec<Vec<String>> {
        let Some(first) = self.lines.first() else { return Vec::new() };
        let row = |&(x, _): &(f64, f64)| {
            let mut row = vec![grouped(x, self.decimals.0)];
            row.extend(self.lines.iter().map(|line| {
                let found = line.points.iter().find(|&&(at, _)| (at - x).abs() < 1e-9);
                let found = found.filter(|(_, y)| !y.is_nan());
                found.map_or("–".to_owned(), |&(_, y)| grouped(y, self.decimals.1))
            }));
            row
        };
        first.points.iter().map(row).collect()
    }
}

/// A histogram: the number of values in each range.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// A prefix for ids in the SVG, unique on a page.
    pub id: &'static str,
    /// Its title.
    pub title: String,
    /// The label of the ranges.
    pub x_label: String,
    /// Each range's text, and the number of values in it.
    pub bars: Vec<(String, u64)>,
}

impl Bars {
    /// Returns the largest number of values in one range.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.bars.iter().map(|&(_, count)| count).max().unwrap_or(0)
    }

    /// Draws the bars as one `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        let (id, total) = (self.id, self.bars.iter().map(|&(_, count)| count).sum::<u64>());
        let y = Axis::from_zero("requests", "", self.most().max(4) as f64);
        let bottom = HEIGHT - BOTTOM;
        let mut out = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-desc\"><title id=\"{id}-title\">{}</title>\
             <desc id=\"{id}-desc\">{total} values; the table beside it lists them.</desc>",
            escape(&self.title)
        );
        let top = |value: f64| bottom - y.place(value) * (bottom - TOP);
        for (value, text) in y.ticks() {
            let at = top(value);
            write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            )
            .expect(WRITES);
        }
        let step = (WIDTH - LEFT - RIGHT) / self.bars.len().max(1) as f64;
        for (index, (text, count)) in self.bars.iter().enumerate() {
            let (left, at) = (LEFT + index as f64 * step, top(*count as f64));
            write!(
                out,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{at:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
                 <text class=\"tick middle\" x=\"{:.1}\" y=\"{}\">{}</text>",
                left + step * 0.12,
                step * 0.76,
                bottom - at,
                left + step / 2.0,
                bottom + 17.0,
                escape(text)
            )
            .expect(WRITES);
        }
        write!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{}\" y2=\"{bottom}\"/>\
             <text class=\"label middle\" x=\"{:.1}\" y=\"{}\">{}</text></svg>",
            WIDTH - RIGHT,
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 8.0,
            escape(&self.x_label)
        )
        .expect(WRITES);
        out
    }
}

#[cfg(test)]
mod tests;
