//! `baton chat`: a conversation on the terminal.

mod editor;
mod lines;

use super::conversations::file;
use super::interrupts::{Interrupts, Signal, Stopped};
use super::open::{Opened, Use, note_unused, open, question, scene_of};
use super::terminal::Shown;
use super::{AnswerArgs, CommonArgs, citations, terminal};
use crate::agent::AnswerReport;
use crate::conversations::{Conversations, Exchange};
use crate::segments::mark;
use anyhow::{Context, bail};
use baton_openai::ChatMessage;
use baton_protocol::Role;
use baton_terminal::{chain, err, errln};
use clap::Args;
use editor::Editor;
use lines::{Lines, checked};
use rustyline::error::ReadlineError;
use std::io::{ErrorKind, IsTerminal as _};

/// Text below the options.
pub(super) const HELP: &str = "\
Ctrl-C ends an answer. At the prompt, Ctrl-C drops the line, and a second Ctrl-C leaves. Ctrl-D leaves.
On a terminal, pasted text is one message, of any number of lines; arrows move in it and bring earlier questions back,
and Ctrl-R searches them. Without a terminal each line of standard input is a question.
On a terminal, /again writes the last answer again, and /edit TEXT asks TEXT in place of the last question.
`baton conversations` lists, finds and prints what was kept.
Exit status: 0; 130 after Ctrl-C at the prompt; 143 after a request to terminate; 1 if something failed; 2 for a wrong
command line; 141 if the reader of the output is gone.";

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// Instructions for the model (the system text) [default: the scene's]
    #[arg(long)]
    system: Option<String>,
    /// Go on with a conversation: the one of this number, or the one that was used last
    #[arg(long, value_name = "ID", num_args = 0..=1, conflicts_with_all = ["system", "private"])]
    resume: Option<Option<i64>>,
    /// Keep nothing of this conversation
    #[arg(long)]
    private: bool,
    /// Do not read the conversation behind an answer of the relay
    ///
    /// Otherwise this device reads it while nothing is asked, so that the next turn needs no cloud. It rests
    /// on a battery.
    #[arg(long, hide_short_help = true)]
    no_read_ahead: bool,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ChatArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let used = Use {
        answers: 1,
        relays: !args.answer.for_a_cloud().is_empty(),
        reads_ahead: !args.no_read_ahead,
        audits: 0.0,
        replaces: false,
        asked_by: (!args.private).then_some("baton chat"),
    };
    let opened = open(&args.common, &used, interrupts).await?;
    let talked = talk(&args, &opened, interrupts).await;
    // The cloud is told what is over, however the conversation ends.
    opened.agent.flush().await;
    talked
}

/// Asks line by line, until there is none.
async fn talk(args: &ChatArgs, opened: &Opened, interrupts: &Interrupts) -> anyhow::Result<()> {
    note_unused(&args.answer, opened.mode);
    let (scene, note) = scene_of(opened, args.answer.scene.as_deref().unwrap_or("chat")).await?;
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let system = args.system.clone().unwrap_or_else(|| scene.settings.system.clone());
    let mut talk = Talk::begin(args, system).await?;
    // A person can go on after an error; a program that reads the answers must be told.
    let is_terminal = std::io::stdin().is_terminal();
    let mut prompt = Prompt::start(&talk)?;
    while let Some(line) = prompt.line(is_terminal, interrupts).await? {
        let Some(line) = talk.question(line, is_terminal) else { continue };
        let messages = &mut talk.messages;
        messages.push(ChatMessage::new(Role::User, line));
        let tokenizer = opened.agent.tokenizer();
        let segments = mark(messages, |text| tokenizer.encode(text).len());
        let asked = question(&args.answer, opened.mode, scene.clone(), segments.clone());
        let Shown { report, stopped } = match terminal::show(opened, asked, false, interrupts).await {
            Ok(shown) => shown,
            // If a question cannot be asked, the conversation goes on; if an answer cannot be shown, it ends.
            Err(err) if err.is::<crate::agent::AgentError>() && is_terminal => {
                errln!("error: {}", chain(err.as_ref()));
                messages.pop();
                continue;
            }
            Err(err) => return Err(err),
        };
        citations::print(&report, &segments)?;
        if args.answer.trace {
            terminal::print_trace(&report);
        }
        match &report.error {
            Some(error) if !is_terminal => bail!("{}", error.message),
            Some(error) => errln!("error: {}", error.message),
            None => {}
        }
        talk.answered(&report).await;
        match stopped {
            Some(signal) if signal == Signal::Terminate || !is_terminal => bail!(Stopped(signal)),
            _ => {}
        }
    }
    Ok(())
}

/// The conversation, and where it is kept.
struct Talk {
    /// The system text, then questions and answers.
    messages: Vec<ChatMessage>,
    /// `None` if nothing is kept.
    kept: Option<Conversations>,
    /// Its number, once something was kept.
    id: Option<i64>,
}

impl Talk {
    async fn begin(args: &ChatArgs, system: String) -> anyhow::Result<Self> {
        let mut messages = vec![ChatMessage::new(Role::System, system)];
        if args.private {
            return Ok(Self { messages, kept: None, id: None });
        }
        let opened = match file(args.common.config_dir.as_deref()) {
            Some(path) => Conversations::open(&path).await.map_err(anyhow::Error::from),
            None => Err(anyhow::anyhow!("no folder for data: pass --config-dir")),
        };
        let Some(wanted) = args.resume else {
            let note =
                |err: &anyhow::Error| errln!("note: this conversation is not kept: {}", chain(err.as_ref()));
            return Ok(Self { messages, kept: opened.inspect_err(note).ok(), id: None });
        };
        let kept = opened?;
        let found = kept.read(wanted).await?;
        errln!("conversation {}: {}", found.id, found.title);
        messages[0].text = found.system;
        messages.extend(found.turns.into_iter().map(|turn| {
            let role = if turn.role == "user" { Role::User } else { Role::Assistant };
            ChatMessage::new(role, turn.text)
        }));
        Ok(Self { messages, kept: Some(kept), id: Some(found.id) })
    }

    /// Returns the question that a line asks; `None` if it asks nothing. On a terminal it may be a command
    /// about the last exchange, which then goes.
    fn question(&mut self, line: String, is_terminal: bool) -> Option<String> {
        let asked = line.trim();
        let (command, rest) = asked.split_once(char::is_whitespace).unwrap_or((asked, ""));
        if asked.is_empty() {
            return None;
        }
        if !is_terminal || !matches!(command, "/again" | "/edit") {
            return Some(line);
        }
        if command == "/edit" && rest.trim().is_empty() {
            errln!("/edit TEXT asks TEXT in place of the last question");
            return None;
        }
        let last = self.messages.iter().rposition(|message| message.role == Role::User);
        let Some(last) = last else {
            errln!("nothing was asked yet");
            return None;
        };
        let before = self.messages.drain(last..).next().map(|message| message.text);
        if command == "/edit" { Some(rest.trim().to_owned()) } else { before }
    }

    /// Adds the answer, and keeps it with its question.
    async fn answered(&mut self, report: &AnswerReport) {
        self.messages.push(ChatMessage::new(Role::Assistant, report.answer.clone()));
        let (Some(kept), [system, .., question, answer]) = (&self.kept, &self.messages[..]) else { return };
        let exchange = Exchange {
            question: &question.text,
            answer: &answer.text,
            cloud_tokens: report.tokens_from_cloud,
            device_tokens: report.tokens_from_device,
        };
        match kept.keep(self.id, &system.text, self.messages.len() - 3, exchange).await {
            Ok(id) => self.id = Some(id),
            Err(err) => {
                errln!("note: this conversation is not kept any more: {}", chain(&err));
                self.kept = None;
            }
        }
    }
}

/// The source of questions.
enum Prompt {
    /// A person at a terminal.
    Editor(Editor),
    /// A pipe, a file, or a terminal that cannot move its cursor.
    Lines(Lines),
}

impl Prompt {
    fn start(talk: &Talk) -> anyhow::Result<Self> {
        if !Editor::is_possible() {
            return Ok(Self::Lines(Lines::start().context("read standard input")?));
        }
        let questions = talk.messages.iter().filter(|message| message.role == Role::User);
        Ok(Self::Editor(Editor::start(questions.map(|message| message.text.as_str()))?))
    }

    /// Returns the next line; `None` at the end of input. On a terminal, a bad line is told and does not end
    /// the conversation, Ctrl-C drops the line, and a second one leaves.
    async fn line(&mut self, is_terminal: bool, interrupts: &Interrupts) -> anyhow::Result<Option<String>> {
        let mut interrupted = false;
        loop {
            // From the prompt on, a signal is for this loop.
            let mut watch = interrupts.watch();
            let read = tokio::select! {
                read = self.read(is_terminal) => read,
                signal = watch.signal() => match self {
                    Self::Lines(lines) if signal == Signal::Interrupt && is_terminal && !interrupted => {
                        // The terminal has dropped the typed text, so drop what was read of it.
                        lines.drop_line();
                        errln!();
                        Read::Interrupted
                    }
                    _ => {
                        baton_terminal::leave();
                        bail!(Stopped(signal));
                    }
                },
            };
            match read {
                Read::Line(line) => return Ok(Some(line)),
                Read::Bad(wrong) if is_terminal => errln!("error: {}", chain(&*wrong)),
                Read::Bad(wrong) | Read::Failed(wrong) => return Err(wrong),
                Read::End => return Ok(None),
                Read::Interrupted if interrupted => bail!(Stopped(Signal::Interrupt)),
                Read::Interrupted => {
                    interrupted = true;
                    errln!("(Ctrl-C again, or Ctrl-D, leaves)");
                }
            }
        }
    }

    async fn read(&mut self, is_terminal: bool) -> Read {
        match self {
            Self::Lines(lines) => {
                if is_terminal {
                    err!("> ");
                }
                match lines.next().await {
                    Some(Ok(line)) => Read::Line(line),
                    Some(Err(wrong)) => Read::Bad(wrong.into()),
                    None => {
                        if is_terminal {
                            errln!();
                        }
                        Read::End
                    }
                }
            }
            Self::Editor(editor) => match editor.next().await {
                Some(Ok(line)) => checked(line).map_or_else(|wrong| Read::Bad(wrong.into()), Read::Line),
                Some(Err(ReadlineError::Interrupted)) => Read::Interrupted,
                Some(Err(ReadlineError::Eof)) | None => Read::End,
                // The bytes of a key, or of a paste, are not UTF-8.
                Some(Err(ReadlineError::Io(err))) if err.kind() == ErrorKind::InvalidData => {
                    Read::Bad(anyhow::anyhow!("what was typed is not UTF-8 text"))
                }
                Some(Err(err)) => Read::Failed(anyhow::Error::from(err).context("read the terminal")),
            },
        }
    }
}

/// What came of a wait for a line.
enum Read {
    Line(String),
    /// A line that is no text.
    Bad(anyhow::Error),
    /// No more lines can be read.
    Failed(anyhow::Error),
    /// Ctrl-C.
    Interrupted,
    /// The end of input.
    End,
}
