//! `baton model list`, `show` and `rm`: the models that are kept.

use super::StoreArgs;
use crate::models::about::About;
use crate::models::store::{Begun, Record};
use baton_terminal::{outln, size};
use clap::Args;
use serde_json::{Value, json};
use std::path::Path;

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Name of the model
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Names of the models
    #[arg(required = true)]
    names: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<()> {
    let store = args.store.open()?;
    let (kept, begun) = (store.list(), store.begun());
    if args.json {
        let models: Vec<Value> = kept.iter().map(object).collect();
        let folder = store.folder().to_string_lossy();
        outln!("{}", json!({ "folder": folder, "models": models, "begun": begun }))?;
        return Ok(());
    }
    if kept.is_empty() && begun.is_empty() {
        outln!("no model is kept in `{}`; `baton model pull` gets one", store.folder().display())?;
    }
    let rows: Vec<[String; 6]> = kept.iter().map(row).collect();
    if !rows.is_empty() {
        outln!("{}", table(&rows))?;
    }
    for Begun { name, bytes, of } in begun {
        let of = of.map_or_else(String::new, |of| format!(" of {}", size(of)));
        outln!(
            "begun: {name}, {}{of}; pull it again to go on, or remove it by `baton model rm {name}`",
            size(bytes)
        )?;
    }
    Ok(())
}

const HEADINGS: [&str; 6] = ["name", "size", "family", "format", "context", "source"];

fn row(record: &Record) -> [String; 6] {
    let About { family, format, context, .. } = &record.about;
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
    let context = context.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
    [record.name.clone(), size(record.bytes()), text(family), text(format), context, record.source.clone()]
}

/// Lays rows out in columns below their headings.
fn table(rows: &[[String; 6]]) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let all: Vec<&[String; 6]> = std::iter::once(&headings).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &&[String; 6]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The object of a model in JSON.
fn object(record: &Record) -> Value {
    let About { title, family, format, weights, context, has_template, licence } = &record.about;
    json!({
        "name": record.name, "source": record.source, "bytes": record.bytes(), "files": record.files,
        "title": title, "family": family, "format": format, "weights": weights, "context": context,
        "chat_template": has_template, "licence": licence,
    })
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let store = args.store.open()?;
    let path = store.path(&args.name)?;
    // There, because it has a path.
    let Some(record) = store.find(&args.name) else { return Ok(()) };
    if args.json {
        let mut object = object(&record);
        object["path"] = path.to_string_lossy().into();
        outln!("{object}")?;
        return Ok(());
    }
    print(&record, &path)
}

fn print(record: &Record, path: &Path) -> anyhow::Result<()> {
    let About { title, family, format, weights, context, has_template, licence } = &record.about;
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "not said".to_owned());
    let context = context.map_or_else(|| "not said".to_owned(), |tokens| format!("{tokens} tokens"));
    let template = if *has_template { "yes" } else { "no: a base model, which continues texts" };
    for (heading, value) in [
        ("name", record.name.clone()),
        ("title", text(title)),
        ("family", text(family)),
        ("format", text(format)),
        ("weights", weights.to_string()),
        ("context", context),
        ("chat template", template.to_owned()),
        ("licence", text(licence)),
        ("source", record.source.clone()),
        ("size", size(record.bytes())),
        ("path", path.display().to_string()),
    ] {
        outln!("{heading:<14} {value}")?;
    }
    for file in &record.files {
        outln!("{:<14} {}  {}", "sha256", file.sha256, file.file)?;
    }
    Ok(())
}

pub(super) fn remove(args: &RmArgs) -> anyhow::Result<()> {
    let store = args.store.open()?;
    for name in &args.names {
        let bytes = store.remove(name)?;
        outln!("removed {name}, {}", size(bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let row = ["a", "1.0 MB", "llama", "Q4_K", "8192", "hf:x/y"].map(str::to_owned);
        let shown = table(&[row]);
        let want =
            "name  size    family  format  context  source\na     1.0 MB  llama   Q4_K    8192     hf:x/y";
        assert_eq!(shown, want);
    }
}
