//! Axes: their ranges, marks and numbers.

use html_escape::encode_quoted_attribute as escape;

/// The number of marks wanted on an axis; there may be one or two more or fewer.
const TICKS: f64 = 5.0;

/// One axis of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// Its unit; empty for none.
    pub unit: &'static str,
    /// Its smallest value.
    pub min: f64,
    /// Its largest value, above `min`.
    pub max: f64,
}

impl Axis {
    /// Makes an axis over these values. An empty range is widened, so that every value has a position.
    #[must_use]
    pub fn new(label: impl Into<String>, unit: &'static str, min: f64, max: f64) -> Axis {
        let finite = |value: f64, other: f64| if value.is_finite() { value } else { other };
        let min = finite(min, 0.0);
        let max = finite(max, min + 1.0);
        let max = if max > min { max } else { min + 1.0 };
        Axis { label: label.into(), unit, min, max }
    }

    /// Makes an axis from 0 to the next round number above `max`.
    #[must_use]
    pub fn from_zero(label: impl Into<String>, unit: &'static str, max: f64) -> Axis {
        let axis = Axis::new(label, unit, 0.0, max);
        let step = axis.step();
        Axis { max: (axis.max / step).ceil() * step, ..axis }
    }

    /// Returns label and unit as HTML, for the text beside the axis.
    #[must_use]
    pub fn title(&self) -> String {
        if self.unit.is_empty() {
            escape(&self.label).into_owned()
        } else {
            format!("{} ({})", escape(&self.label), self.unit)
        }
    }

    /// Returns the position of `value`: 0 at `min`, 1 at `max`.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        (value - self.min) / (self.max - self.min)
    }

    /// Returns the distance between marks: 1, 2 or 5 times a power of ten.
    fn step(&self) -> f64 {
        let rough = (self.max - self.min) / TICKS;
        let power = 10_f64.powf(rough.log10().floor());
        let factor = match rough / power {
            share if share <= 1.0 => 1.0,
            share if share <= 2.0 => 2.0,
            share if share <= 5.0 => 5.0,
            _ => 10.0,
        };
        factor * power
    }

    /// Returns the values that are marked, with their texts.
    #[must_use]
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let step = self.step();
        let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
        let first = (self.min / step).ceil() as i64;
        let last = (self.max / step + 1e-9).floor() as i64;
        (first..=last.min(first + 20))
            .map(|index| {
                let value = index as f64 * step;
                (value, grouped(value, decimals))
            })
            .collect()
    }
}

/// Formats a number with commas between groups of three digits.
#[must_use]
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, digits) = match text.strip_prefix('-') {
        // A number that is rounded to zero has no sign.
        Some(rest) if rest.bytes().all(|byte| matches!(byte, b'0' | b'.')) => ("", rest),
        Some(rest) => ("-", rest),
        None => ("", text.as_str()),
    };
    let (whole, rest) =
        digits.split_once('.').map_or((digits, String::new()), |(whole, part)| (whole, format!(".{part}")));
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(min: f64, max: f64, want: &[&str]) {
        let ticks: Vec<String> =
            Axis::new("x", "", min, max).ticks().into_iter().map(|(_, text)| text).collect();
        assert_eq!(ticks, want, "{min}..{max}");
    }

    #[test]
    fn marks_are_round() {
        check(0.0, 1.0, &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        check(0.0, 12_000.0, &["0", "5,000", "10,000"]);
        check(0.05, 0.35, &["0.1", "0.2", "0.3"]);
        check(3.0, 3.0, &["3.0", "3.2", "3.4", "3.6", "3.8", "4.0"]);
        check(f64::NAN, f64::INFINITY, &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(Axis::from_zero("y", "ms", 937.0).max, 1000.0);
        assert_eq!(Axis::from_zero("y", "ms", 0.0).max, 1.0);
    }

    #[test]
    fn large_numbers_are_grouped() {
        for (value, decimals, want) in
            [(0.0, 0, "0"), (999.0, 0, "999"), (1000.0, 0, "1,000"), (-1_234_567.25, 2, "-1,234,567.25")]
        {
            assert_eq!(grouped(value, decimals), want);
        }
    }
}
