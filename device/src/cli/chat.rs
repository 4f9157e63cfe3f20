//! `baton chat`: a conversation on the terminal.

mod lines;

use super::interrupts::{Interrupts, Signal, Stopped};
use super::open::{note_unused, open, question, scene_of};
use super::terminal::Shown;
use super::{AnswerArgs, CommonArgs, terminal};
use crate::segments::{ChatMessage, mark};
use anyhow::{Context, bail};
use baton_protocol::Role;
use baton_terminal::{chain, err, errln};
use clap::Args;
use lines::Lines;
use std::io::IsTerminal;

/// What stands below the options.
pub(super) const HELP: &str = "\
Ctrl-C ends an answer; at the prompt it drops the line, and a second one leaves. Ctrl-D leaves.
Exit status: 0; 130 after Ctrl-C at the prompt; 143 after a request to terminate; 1 if something failed; 2 for a wrong
command line; 141 if the reader of the output has gone.";

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// System text [default: the scene's]
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ChatArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let opened = open(&args.common).await?;
    note_unused(&args.answer, opened.mode);
    let (scene, note) = scene_of(&opened, args.answer.scene.as_deref().unwrap_or("chat")).await?;
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let system = args.system.clone().unwrap_or_else(|| scene.system.clone());
    let mut messages = vec![ChatMessage { role: Role::System, text: system }];
    let mut prompt = Prompt::start().context("read standard input")?;
    while let Some(line) = prompt.line(interrupts).await? {
        if line.trim().is_empty() {
            continue;
        }
        messages.push(ChatMessage { role: Role::User, text: line });
        let tokenizer = opened.agent.tokenizer();
        let segments = mark(&messages, |text| tokenizer.encode(text).len());
        let asked = question(&args.answer, opened.mode, scene.clone(), segments);
        let Shown { report, stopped } = match terminal::show(&opened, asked, false, interrupts).await {
            Ok(shown) => shown,
            // A question that cannot be asked is no reason to lose the conversation; what cannot be shown is.
            Err(err) if err.is::<crate::agent::AgentError>() && prompt.is_terminal => {
                errln!("error: {}", chain(err.as_ref()));
                messages.pop();
                continue;
            }
            Err(err) => return Err(err),
        };
        if args.answer.trace {
            terminal::print_trace(&report);
        }
        match &report.error {
            // A person goes on; a program that reads the answers must know.
            Some(error) if !prompt.is_terminal => bail!("{}", error.message),
            Some(error) => errln!("error: {}", error.message),
            None => {}
        }
        messages.push(ChatMessage { role: Role::Assistant, text: report.answer });
        match stopped {
            Some(signal) if signal == Signal::Terminate || !prompt.is_terminal => bail!(Stopped(signal)),
            _ => {}
        }
    }
    Ok(())
}

/// Where questions come from.
struct Prompt {
    lines: Lines,
    /// A person types: there is a prompt, and a line that cannot be used is no end.
    is_terminal: bool,
}

impl Prompt {
    fn start() -> std::io::Result<Self> {
        Ok(Self { lines: Lines::start()?, is_terminal: std::io::stdin().is_terminal() })
    }

    /// The next line; `None` at the end of input. Ctrl-C drops the line of a terminal, a second one leaves.
    async fn line(&mut self, interrupts: &Interrupts) -> anyhow::Result<Option<String>> {
        let mut interrupted = false;
        loop {
            if self.is_terminal {
                err!("> ");
            }
            let mut watch = interrupts.watch();
            tokio::select! {
                line = self.lines.next() => match line {
                    Some(Err(wrong)) if self.is_terminal => errln!("error: {}", chain(&wrong)),
                    Some(line) => return Ok(Some(line?)),
                    None => {
                        if self.is_terminal {
                            errln!();
                        }
                        return Ok(None);
                    }
                },
                signal = watch.signal() => {
                    if signal == Signal::Terminate || interrupted || !self.is_terminal {
                        baton_terminal::leave();
                        bail!(Stopped(signal));
                    }
                    interrupted = true;
                    // The terminal has dropped what was typed.
                    self.lines.drop_line();
                    errln!("\n(Ctrl-C again, or Ctrl-D, leaves)");
                }
            }
        }
    }
}
