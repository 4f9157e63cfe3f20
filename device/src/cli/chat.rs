//! `baton chat`: a conversation on the terminal.

mod lines;

use super::interrupts::{Interrupts, Signal, Stopped};
use super::open::{note_unused, open, question, scene_of};
use super::terminal::Shown;
use super::{AnswerArgs, CommonArgs, terminal};
use crate::segments::mark;
use anyhow::{Context, bail};
use baton_openai::ChatMessage;
use baton_protocol::Role;
use baton_terminal::{chain, err, errln};
use clap::Args;
use lines::Lines;
use std::io::IsTerminal;

/// Text below the options.
pub(super) const HELP: &str = "\
Ctrl-C ends an answer. At the prompt, Ctrl-C drops the line, and a second Ctrl-C leaves. Ctrl-D leaves.
Exit status: 0; 130 after Ctrl-C at the prompt; 143 after a request to terminate; 1 if something failed; 2 for a wrong
command line; 141 if the reader of the output is gone.";

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// Instructions for the model (the system text) [default: the scene's]
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ChatArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let opened = open(&args.common, 1).await?;
    note_unused(&args.answer, opened.mode);
    let (scene, note) = scene_of(&opened, args.answer.scene.as_deref().unwrap_or("chat")).await?;
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let system = args.system.clone().unwrap_or_else(|| scene.settings.system.clone());
    let mut messages = vec![ChatMessage::new(Role::System, system)];
    let mut prompt = Prompt::start().context("read standard input")?;
    while let Some(line) = prompt.line(interrupts).await? {
        if line.trim().is_empty() {
            continue;
        }
        messages.push(ChatMessage::new(Role::User, line));
        let tokenizer = opened.agent.tokenizer();
        let segments = mark(&messages, |text| tokenizer.encode(text).len());
        let asked = question(&args.answer, opened.mode, scene.clone(), segments);
        let Shown { report, stopped } = match terminal::show(&opened, asked, false, interrupts).await {
            Ok(shown) => shown,
            // If a question cannot be asked, the conversation goes on; if an answer cannot be shown, it ends.
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
            // A person can go on after an error; a program that reads the answers must be told.
            Some(error) if !prompt.is_terminal => bail!("{}", error.message),
            Some(error) => errln!("error: {}", error.message),
            None => {}
        }
        messages.push(ChatMessage::new(Role::Assistant, report.answer));
        match stopped {
            Some(signal) if signal == Signal::Terminate || !prompt.is_terminal => bail!(Stopped(signal)),
            _ => {}
        }
    }
    Ok(())
}

/// The source of questions.
struct Prompt {
    lines: Lines,
    /// A person types on a terminal: there is a prompt, and a bad line does not end the conversation.
    is_terminal: bool,
}

impl Prompt {
    fn start() -> std::io::Result<Self> {
        Ok(Self { lines: Lines::start()?, is_terminal: std::io::stdin().is_terminal() })
    }

    /// Returns the next line; `None` at the end of input. On a terminal, Ctrl-C drops the line, and a second
    /// one leaves.
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
                    // The terminal has dropped the typed text, so drop what was read of it.
                    self.lines.drop_line();
                    errln!("\n(Ctrl-C again, or Ctrl-D, leaves)");
                }
            }
        }
    }
}
