//! The report of every bench: text tables, then one JSON object as the last line.
//!
//! The JSON object has the fields `bench`, `holds` (whether all checks hold), `checks` (a list of
//! `{name, value, want, holds}`) and `data` (further figures of the bench). A report without checks holds.

use std::fmt::Write as _;
use std::process::ExitCode;

use baton_e2e::stop::Stopped;
use baton_terminal::{CLOSED_STATUS, errln, is_closed, out};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// One requirement and its measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Check {
    /// The name of the value, with its unit, e.g. `"encode median us"`.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// The requirement as text, e.g. `"<= 1000"`.
    pub want: String,
    /// Whether the requirement holds.
    pub holds: bool,
}

/// The result of a bench: tables, notes, checks and figures.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    bench: &'static str,
    text: String,
    checks: Vec<Check>,
    data: Map<String, Value>,
    only_json: bool,
}

impl Report {
    /// Makes an empty report of the subcommand `bench`.
    pub(crate) fn new(bench: &'static str) -> Self {
        Self { bench, text: String::new(), checks: Vec::new(), data: Map::new(), only_json: false }
    }

    /// Makes the report print only the JSON object.
    pub(crate) fn print_only_json(&mut self) {
        self.only_json = true;
    }

    /// Adds one line of text.
    pub(crate) fn note(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// Adds a table with a title line. The first column is aligned left, the others right. A row shorter than
    /// the header is padded with empty cells; cells beyond the header are left out.
    pub(crate) fn table(&mut self, title: &str, header: &[&str], rows: &[Vec<String>]) {
        let cell = |row: &[String], c: usize| row.get(c).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..header.len())
            .map(|c| {
                let widest = rows.iter().map(|row| cell(row, c).chars().count()).max().unwrap_or(0);
                widest.max(header[c].chars().count())
            })
            .collect();
        let line = |cells: Vec<String>| {
            let mut out = String::new();
            for (c, (text, &width)) in cells.iter().zip(&widths).enumerate() {
                let written =
                    if c == 0 { write!(out, "{text:<width$}") } else { write!(out, "  {text:>width$}") };
                written.expect("writing to a String cannot fail");
            }
            out.trim_end().to_owned()
        };
        if !self.text.is_empty() {
            self.note("");
        }
        self.note(title);
        self.note(line(header.iter().map(|h| (*h).to_owned()).collect()));
        self.note("-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)));
        for row in rows {
            self.note(line((0..header.len()).map(|c| cell(row, c)).collect()));
        }
    }

    /// Adds a figure or a list of figures to `data` in the JSON object.
    pub(crate) fn data(&mut self, name: &str, value: impl Into<Value>) {
        self.data.insert(name.to_owned(), value.into());
    }

    /// Adds a check whose result the bench has decided.
    pub(crate) fn check(
        &mut self,
        name: impl Into<String>,
        value: f64,
        want: impl Into<String>,
        holds: bool,
    ) {
        self.checks.push(Check { name: name.into(), value, want: want.into(), holds });
    }

    /// Adds the check `value <= limit` (a NaN fails).
    pub(crate) fn check_at_most(&mut self, name: impl Into<String>, value: f64, limit: f64) {
        self.check(name, value, format!("<= {limit}"), value <= limit);
    }

    /// Adds the check `value >= limit` (a NaN fails).
    pub(crate) fn check_at_least(&mut self, name: impl Into<String>, value: f64, limit: f64) {
        self.check(name, value, format!(">= {limit}"), value >= limit);
    }

    /// Adds the check `value == wanted`, exactly. It is for counts.
    pub(crate) fn check_equal(&mut self, name: impl Into<String>, value: f64, wanted: f64) {
        self.check(name, value, format!("== {wanted}"), value == wanted);
    }

    /// Returns whether every check holds.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    /// Returns the report as printed: tables, checks, and the JSON object as the last line.
    pub(crate) fn render(&self) -> String {
        let mut out = self.clone();
        if !self.checks.is_empty() {
            let rows: Vec<Vec<String>> = self.checks.iter().map(check_row).collect();
            out.table("checks", &["check", "value", "want", "holds"], &rows);
        }
        let json =
            json!({ "bench": self.bench, "holds": self.holds(), "checks": self.checks, "data": self.data });
        if self.only_json { format!("{json}\n") } else { format!("{}\n{json}\n", out.text) }
    }
}

fn check_row(check: &Check) -> Vec<String> {
    let holds = if check.holds { "yes" } else { "NO" };
    vec![check.name.clone(), number(check.value), check.want.clone(), holds.to_owned()]
}

/// Formats a figure: integers without decimals, other numbers with four decimals.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// Prints the report (or the error) and returns the exit status: 0 if all checks hold, 1 if one fails, 2 if
/// the bench could not run. It is 141 if the reader of the output has closed it (see [`exit`]).
pub(crate) fn finish(result: anyhow::Result<Report>) -> ExitCode {
    match result {
        Ok(report) => match out!("{}", report.render()) {
            Ok(()) if report.holds() => ExitCode::SUCCESS,
            Ok(()) => ExitCode::from(1),
            Err(error) => exit(Err(error.into())),
        },
        Err(error) => exit(Err(error)),
    }
}

/// Returns the exit status of a subcommand without a report: 0, or 2 after printing the error. If the program
/// was told to stop or its output was closed, it is the status that a shell would report.
pub(crate) fn exit(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed(error.as_ref()) => ExitCode::from(CLOSED_STATUS),
        Err(error) => {
            errln!("error: {error:#}");
            ExitCode::from(error.downcast_ref::<Stopped>().map_or(2, |stopped| stopped.exit_code()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_one_json_object_with_all_checks() {
        let mut report = Report::new("mask");
        report.table("sizes", &["r", "bytes"], &[vec!["0.1".into(), "50".into()], vec!["0.25".into()]]);
        report.check_at_most("bytes", 50.0, 60.0);
        report.check_at_least("recall", 0.5, 0.9);
        report.data("note", "kept");
        let text = report.render();
        let last = text.lines().last().expect("a report has lines");
        let json: Value = serde_json::from_str(last).expect("the last line is JSON");
        assert_eq!(json["bench"], "mask");
        assert_eq!(json["holds"], false);
        assert_eq!(
            json["checks"][0],
            json!({"name": "bytes", "value": 50.0, "want": "<= 60", "holds": true})
        );
        assert_eq!(json["checks"][1]["holds"], false);
        assert_eq!(json["data"]["note"], "kept");
        assert!(text.contains("recall  0.5000  >= 0.9     NO"), "{text}");
    }

    #[test]
    fn only_the_json_object_is_printed_on_request() {
        let mut report = Report::new("mask");
        report.note("a line");
        report.print_only_json();
        let text = report.render();
        assert!(text.starts_with("{\"bench\":\"mask\"") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn a_check_of_nan_fails() {
        let mut report = Report::new("mask");
        report.check_at_most("nan", f64::NAN, 1.0);
        assert!(!report.holds());
    }

    #[test]
    fn a_report_without_checks_holds_and_errors_exit_with_2() {
        assert!(Report::new("mask").holds());
        assert_eq!(
            format!("{:?}", finish(Err(anyhow::anyhow!("no data")))),
            format!("{:?}", ExitCode::from(2))
        );
    }
}
