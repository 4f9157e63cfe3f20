//! `baton ask DOC QUESTION`: answers one question about a document.

use super::interrupts::{Interrupts, Stopped};
use super::open::{Opened, Use, note_unused, open, question, scene_of};
use super::terminal::Shown;
use super::{AnswerArgs, CommonArgs, citations, document, terminal};
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
    /// What to ask about: a file (text, Markdown, HTML, PDF, DOCX), a folder of them, the address of a web
    /// page, or `-` for standard input
    doc: PathBuf,
    /// The question
    question: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Also write this JSON object to a file; the text is shown as usual
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Makes the prompt of a document question: system text, document, prefix, question.
pub(super) fn document_segments(scene: &SceneInfo, document: String, question: &str) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(4);
    if !scene.settings.system.is_empty() {
        segments.push(Segment::fixed(Role::System, &*scene.settings.system));
    }
    segments.push(Segment { refine: scene.settings.refine, ..Segment::fixed(Role::User, document) });
    let prefix = &scene.settings.question_prefix;
    if prefix.is_empty() || prefix.ends_with(char::is_whitespace) {
        segments.push(Segment::fixed(Role::User, format!("{prefix}{question}")));
    } else {
        // Prefix and question are separate segments, so that each is searched for private values separately.
        // A prefix that ends in "x" would otherwise hide a telephone number at the start of the question.
        segments.push(Segment::fixed(Role::User, &**prefix));
        segments.push(Segment::fixed(Role::User, question));
    }
    segments
}

/// Opens the file of a report without changing it yet.
fn open_report(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.with_context(|| format!("write `{}`", path.display()))
}

fn write_report(report: &AnswerReport, mut file: File) -> std::io::Result<()> {
    let json = serde_json::to_vec(report)?;
    // Only a regular file has a length; a pipe has none.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(&json)
}

/// Whether the question is a file, and the document none.
fn is_swapped(doc: &Path, question: &str) -> bool {
    let names_nothing = doc != Path::new("-") && !doc.exists() && !document::is_address(doc);
    names_nothing && Path::new(question).exists()
}

pub(super) async fn run(args: AskArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    if args.question.trim().is_empty() {
        bail!("the question is empty");
    }
    if is_swapped(&args.doc, &args.question) {
        bail!("the document comes first: baton ask {} \"{}\"", args.question, args.doc.display());
    }
    // An unwritable file is found here, before minutes are spent on an answer.
    let report_file = args.report.as_deref().map(open_report).transpose()?;
    let document = document::read(&args.doc).await?;
    let relays = !args.answer.for_a_cloud().is_empty();
    let used = Use {
        answers: 1,
        relays,
        reads_ahead: false,
        audits: 0.0,
        replaces: false,
        asked_by: Some("baton ask"),
    };
    let opened = open(&args.common, &used, interrupts).await?;
    let answered = answered(&args, &opened, document, report_file, interrupts).await;
    // The cloud is told what is over, also if the answer could not be shown.
    opened.agent.flush().await;
    answered
}

/// Asks, and shows the answer.
async fn answered(
    args: &AskArgs,
    opened: &Opened,
    document: String,
    report_file: Option<File>,
    interrupts: &Interrupts,
) -> anyhow::Result<()> {
    note_unused(&args.answer, opened.mode);
    let (scene, note) = scene_of(opened, args.answer.scene.as_deref().unwrap_or("doc-qa")).await?;
    if let Some(note) = &note {
        errln!("note: {note}");
    }
    let segments = document_segments(&scene, document, &args.question);
    let asked = question(&args.answer, opened.mode, scene, segments.clone());
    let Shown { mut report, stopped } = terminal::show(opened, asked, args.json, interrupts).await?;
    report.notes.splice(0..0, note);
    if args.answer.trace {
        terminal::print_trace(&report);
    }
    match args.json {
        true => terminal::print_json(&report)?,
        false => citations::print(&report, &segments)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::{FakeCloud, agent, ask, question, stream};
    use crate::relay::RelayMode;

    #[tokio::test]
    async fn no_prefix_of_a_scene_hides_a_private_value_of_the_question() {
        let asked = "415-555-2671 belongs to whom?";
        for (prefix, parts) in [("\n\nQuestion: ", 1), ("", 1), ("\n\nQ x", 2), ("\n\nQ:", 2), ("12", 2)] {
            let cloud = FakeCloud::start(stream(&["Yes."])).await;
            let mut question = question("", RelayMode::Relay);
            question.scene.settings.question_prefix = prefix.into();
            question.segments = document_segments(&question.scene, "A document.".into(), asked);
            let last = &question.segments[question.segments.len() - parts..];
            let last: String = last.iter().map(|segment| segment.text.as_str()).collect();
            assert_eq!(last, format!("{prefix}{asked}"));
            ask(&agent(Some(&cloud.url)), question).await;
            let request = cloud.requests().remove(0);
            assert!(
                request.contains("belongs to whom?") && !request.contains("555-2671"),
                "{prefix:?}: {request}"
            );
        }
    }
}
