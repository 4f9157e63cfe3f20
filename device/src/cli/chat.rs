//! `baton chat`: a conversation on the terminal.

use super::open::{open, question, scene_of};
use super::{AnswerArgs, CommonArgs, terminal};
use crate::segments::{ChatMessage, mark};
use anyhow::Context;
use baton_protocol::Role;
use clap::Args;
use std::io::{BufRead, IsTerminal, Write};

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// System text [default: the scene's]
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let opened = open(&args.common).await?;
    let (scene, note) = scene_of(&opened, args.answer.scene.as_deref().unwrap_or("chat")).await?;
    if let Some(note) = note {
        eprintln!("note: {note}");
    }
    let system = args.system.clone().unwrap_or_else(|| scene.system.clone());
    let mut messages = vec![ChatMessage { role: Role::System, text: system }];
    let prompt = std::io::stdin().is_terminal();
    loop {
        let Some(line) = tokio::task::spawn_blocking(move || read_line(prompt)).await?? else {
            return Ok(());
        };
        if line.trim().is_empty() {
            continue;
        }
        messages.push(ChatMessage { role: Role::User, text: line });
        let tokenizer = opened.agent.tokenizer();
        let segments = mark(&messages, |text| tokenizer.encode(text).len());
        let asked = question(&args.answer, opened.mode, scene.clone(), segments);
        let report = terminal::show(&opened, asked, false).await?;
        if args.answer.trace {
            terminal::print_trace(&report);
        }
        if let Some(error) = &report.error {
            eprintln!("error: {}", error.message);
        }
        messages.push(ChatMessage { role: Role::Assistant, text: report.answer });
    }
}

/// The next line of standard input without its end; `None` at the end of input.
fn read_line(prompt: bool) -> anyhow::Result<Option<String>> {
    if prompt {
        eprint!("> ");
        std::io::stderr().flush().context("write to the terminal")?;
    }
    let mut line = String::new();
    let n = std::io::stdin().lock().read_line(&mut line).context("read standard input")?;
    Ok((n > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
}
