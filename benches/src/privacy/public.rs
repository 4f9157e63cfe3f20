//! Strings of public texts that are no names, with their context: how many the redactor still replaces.
//!
//! They are read from `not-names.tsv` in the folder that `BATON_NAMES` names. A header row comes first. Each
//! other row has the kind of text, the string, the kind that it was taken for, and the context with `⟦` and
//! `⟧` around it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::json;

use super::score::{Scene, findings};
use crate::report::Report;

/// The variable with the folder.
pub(super) const FOLDER: &str = "BATON_NAMES";
/// Largest share of the strings that may still be replaced, outside conversations.
const REPLACED_MAX: f64 = 0.25;

/// Most characters of the line around a value that is printed.
const CONTEXT_CHARS: usize = 30;

/// Prints what the redactor replaces in a file: kind, value, how often, and the text around the first one.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn print(report: &mut Report, path: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("read `{}`", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut values: BTreeMap<(String, &str), (usize, Range<usize>)> = BTreeMap::new();
    for finding in findings(&text, Scene::Other)? {
        let value = (finding.label, &text[finding.range.clone()]);
        values.entry(value).or_insert((0, finding.range)).0 += 1;
    }
    let row = |((label, value), (count, range)): (&(String, &str), &(usize, Range<usize>))| {
        let before: Vec<char> = text[..range.start].chars().rev().take(CONTEXT_CHARS).collect();
        let before: String = before.into_iter().rev().collect();
        let after: String = text[range.end..].chars().take(CONTEXT_CHARS).collect();
        [label.clone(), format!("{value:?}"), count.to_string(), format!("{before:?} {after:?}")].to_vec()
    };
    let rows: Vec<Vec<String>> = values.iter().map(row).collect();
    let title = format!("{} ({} bytes)", path.display(), text.len());
    report.table(&title, &["kind", "value", "count", "text around the first"], &rows);
    Ok(())
}

/// Measures the redactor on the strings.
///
/// # Errors
/// Fails if the file cannot be read or has a row of another form.
pub(super) fn measure(report: &mut Report, folder: &Path, print: bool) -> anyhow::Result<()> {
    let path = folder.join("not-names.tsv");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()))?;
    let mut rows = Vec::new();
    for (name, scene) in [("other", Scene::Other), ("conversation", Scene::Conversation)] {
        let (mut all, mut replaced) = (0u32, 0u32);
        for row in text.lines().skip(1).filter(|row| !row.is_empty()) {
            let context =
                row.split('\t').nth(3).with_context(|| format!("a row of four columns: `{row}`"))?;
            let (before, rest) = context.split_once('⟦').with_context(|| format!("`⟦` in `{row}`"))?;
            let (string, after) = rest.split_once('⟧').with_context(|| format!("`⟧` in `{row}`"))?;
            let range = before.len()..before.len() + string.len();
            let found = findings(&[before, string, after].concat(), scene)?;
            let is_replaced = found.iter().any(|f| f.range.start < range.end && range.start < f.range.end);
            all += 1;
            replaced += u32::from(is_replaced);
            if is_replaced && print {
                report.note(format!("{name}: replaced: {row}"));
            }
        }
        ensure!(all > 0, "`{}` has no rows", path.display());
        let share = f64::from(replaced) / f64::from(all);
        rows.push(vec![name.to_owned(), all.to_string(), replaced.to_string(), format!("{share:.3}")]);
        report.data(&format!("public strings, {name}"), json!({ "strings": all, "replaced": replaced }));
        if scene == Scene::Other {
            report.check_at_most("public strings that are replaced", share, REPLACED_MAX);
        }
    }
    report.table(
        "strings of public texts that are no names",
        &["scene", "strings", "replaced", "share"],
        &rows,
    );
    Ok(())
}
