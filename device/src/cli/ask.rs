//! `baton ask DOC QUESTION`.

use super::interrupts::{Interrupts, Stopped};
use super::open::{open, question, scene_of};
use super::terminal::Shown;
use super::{AnswerArgs, CommonArgs, document, terminal};
use crate::agent::AnswerReport;
use anyhow::{Context, bail};
use baton_protocol::{Role, SceneInfo, Segment};
use baton_terminal::errln;
use clap::Args;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct AskArgs {
    /// Text file to ask about; `-` is standard input
    doc: PathBuf,
    /// The question
    question: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write the same JSON object to this file, while the text is shown as ever
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// The prompt of a document question: system text, document, question.
pub(super) fn document_segments(scene: &SceneInfo, document: String, question: &str) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(3);
    if !scene.system.is_empty() {
        segments.push(Segment::fixed(Role::System, &*scene.system));
    }
    segments.push(Segment { role: Role::User, text: document, refine: scene.refine });
    segments.push(Segment::fixed(Role::User, format!("{}{question}", scene.question_prefix)));
    segments
}

/// The file of a report, as it is until there is one.
fn open_report(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.with_context(|| format!("write `{}`", path.display()))
}

fn write_report(report: &AnswerReport, mut file: File) -> std::io::Result<()> {
    let json = serde_json::to_vec(report)?;
    // What is no file, such as a pipe, has no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(&json)
}

pub(super) async fn run(args: AskArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    args.answer.check()?;
    if args.question.trim().is_empty() {
        bail!("the question is empty");
    }
    // Found out before minutes are spent on an answer.
    let report_file = args.report.as_deref().map(open_report).transpose()?;
    let path = args.doc.clone();
    let document = tokio::task::spawn_blocking(move || document::read(&path)).await??;
    let opened = open(&args.common).await?;
    let (scene, note) = scene_of(&opened, args.answer.scene.as_deref().unwrap_or("doc-qa")).await?;
    if let Some(note) = &note {
        errln!("note: {note}");
    }
    let segments = document_segments(&scene, document, &args.question);
    let asked = question(&args.answer, opened.mode, scene, segments);
    let Shown { mut report, stopped } = terminal::show(&opened, asked, args.json, interrupts).await?;
    report.notes.splice(0..0, note);
    if args.answer.trace {
        terminal::print_trace(&report);
    }
    if args.json {
        terminal::print_json(&report)?;
    }
    if let Some((path, file)) = args.report.as_deref().zip(report_file) {
        write_report(&report, file).with_context(|| format!("write `{}`", path.display()))?;
    }
    match (&report.error, stopped) {
        (_, Some(signal)) => bail!(Stopped(signal)),
        (Some(error), None) => bail!("{}", error.message),
        (None, None) => Ok(()),
    }
}
