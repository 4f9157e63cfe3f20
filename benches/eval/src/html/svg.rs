//! Draws line charts with intervals as SVG.

use std::fmt::Write as _;

use html_escape::encode_double_quoted_attribute as escaped;

const WIDTH: f64 = 520.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 30.0;
const PLOT_HEIGHT: f64 = 200.0;
const LEGEND_LINE: f64 = 15.0;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8c6bb1"];
/// Dash patterns of lines that share a colour: the first line is solid.
const DASHES: [&str; 3] = ["none", "7 3", "2 3"];

/// A point with its interval; `y` in 0..=1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    /// By rising x.
    pub(super) points: Vec<Point>,
}

/// A chart of shares over x.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_label: &'static str,
    /// Whether the axis shows the logarithm of x.
    pub(super) log_x: bool,
    pub(super) series: Vec<Series>,
}

impl Chart {
    /// Returns whether there are at least two different values of x.
    pub(super) fn is_worth_drawing(&self) -> bool {
        let (low, high) = self.range();
        high > low
    }

    fn scaled(&self, x: f64) -> f64 {
        if self.log_x { x.max(1e-9).ln() } else { x }
    }

    fn range(&self) -> (f64, f64) {
        let xs = self.series.iter().flat_map(|series| &series.points).map(|point| self.scaled(point.x));
        xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    }

    /// Returns the chart as an `svg` element.
    pub(super) fn draw(&self) -> String {
        let (low, high) = self.range();
        let plot_width = WIDTH - LEFT - RIGHT;
        let x_of = |x: f64| LEFT + plot_width * (self.scaled(x) - low) / (high - low).max(1e-12);
        let y_of = |y: f64| TOP + PLOT_HEIGHT * (1.0 - y.clamp(0.0, 1.0));
        let bottom = TOP + PLOT_HEIGHT;
        let height = bottom + 42.0 + LEGEND_LINE * self.series.len() as f64;
        let mut out = String::new();
        let mut add = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text).expect("writing to a String cannot fail");
        };
        add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<text x=\"{LEFT}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{}</text>\n",
            escaped(&self.title)
        ));
        for fifth in 0..=5 {
            let share = f64::from(fifth) / 5.0;
            let y = y_of(share);
            add(format_args!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0}</text>\n",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                100.0 * share
            ));
        }
        for x in self.ticks() {
            add(format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                x_of(x),
                bottom + 15.0,
                (x * 1e3).round() / 1e3
            ));
        }
        add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{}</text>\n",
            LEFT + plot_width / 2.0,
            bottom + 30.0,
            escaped(self.x_label)
        ));
        for (index, series) in self.series.iter().enumerate() {
            let look = Look::of(index);
            let legend = bottom + 44.0 + LEGEND_LINE * index as f64;
            add(format_args!("{}", line(series, look, &x_of, &y_of)));
            add(format_args!(
                "<path d=\"M{LEFT} {:.1}h24\" {look}/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                legend - 5.0,
                LEFT + 30.0,
                legend - 1.0,
                escaped(&series.name)
            ));
        }
        out.push_str("</svg>\n");
        out
    }

    /// Returns the labelled values of x: all values, or about eight of them if there are more.
    fn ticks(&self) -> Vec<f64> {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let step = xs.len().div_ceil(8).max(1);
        xs.into_iter().step_by(step).collect()
    }
}

/// The style of a series' line. The first [`COLOURS`] x [`DASHES`] styles are all different.
#[derive(Debug, Clone, Copy)]
struct Look {
    colour: &'static str,
    dash: &'static str,
    /// Earlier lines are wider, so that they are visible under later ones.
    width: f64,
}

impl Look {
    fn of(index: usize) -> Self {
        Self {
            colour: COLOURS[index % COLOURS.len()],
            dash: DASHES[index / COLOURS.len() % DASHES.len()],
            width: (3.6 - 0.4 * index as f64).max(1.4),
        }
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { colour, dash, width } = self;
        write!(f, "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\" stroke-dasharray=\"{dash}\"")
    }
}

/// Draws the line of a series, its points, and a bar for each interval.
fn line(series: &Series, look: Look, x_of: &dyn Fn(f64) -> f64, y_of: &dyn Fn(f64) -> f64) -> String {
    let path: Vec<String> =
        series.points.iter().map(|point| format!("{:.1},{:.1}", x_of(point.x), y_of(point.y))).collect();
    let mut out = format!("<polyline points=\"{}\" {look}/>\n", path.join(" "));
    let colour = look.colour;
    for point in &series.points {
        let (x, y) = (x_of(point.x), y_of(point.y));
        let written = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-opacity=\".4\"/>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>",
            y_of(point.low),
            y_of(point.high)
        );
        written.expect("writing to a String cannot fail");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(xs: &[f64], log_x: bool) -> Chart {
        let points = xs.iter().map(|&x| Point { x, y: 0.5, low: 0.25, high: 0.75 }).collect();
        Chart {
            title: "a < b".into(),
            x_label: "r",
            log_x,
            series: vec![Series { name: "one".into(), points }],
        }
    }

    #[test]
    fn points_stand_where_their_numbers_say() {
        let svg = chart(&[0.1, 0.5], false).draw();
        assert!(svg.contains("a &lt; b"));
        assert!(svg.contains("points=\"46.0,130.0 508.0,130.0\""), "{svg}");
        assert!(svg.contains("y1=\"180.0\" y2=\"80.0\""), "the interval: {svg}");
        let svg = chart(&[1.0, 4.0, 16.0], true).draw();
        assert!(svg.contains("46.0,130.0 277.0,130.0 508.0,130.0"), "even steps of the logarithm: {svg}");
    }

    #[test]
    fn no_two_lines_of_a_chart_look_alike() {
        let looks: std::collections::BTreeSet<_> =
            (0..24).map(Look::of).map(|look| (look.colour, look.dash)).collect();
        assert_eq!(looks.len(), 24);
    }

    #[test]
    fn one_place_is_no_chart() {
        assert!(!chart(&[0.1], false).is_worth_drawing());
        assert!(!chart(&[], false).is_worth_drawing());
        assert!(chart(&[0.1, 0.2], false).is_worth_drawing());
    }
}
