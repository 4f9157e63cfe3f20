//! `baton ring`: runs one model on several devices of a home.

mod bench;
mod doctor;
mod head;
mod init;
mod join;
mod leave;
mod plan;
mod status;
mod work;

pub(super) use head::{Formed, HeadArgs, form};

use baton_terminal::outln;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::interrupts::{Interrupts, Stopped};
use crate::settings::ring_folder;
use baton_ring::home::discovery::{Interfaces, interface_addresses};
use baton_ring::home::state::{STATE_DIR_ENV, StateError, StateFolder};

#[derive(Debug, Args)]
pub(super) struct RingArgs {
    #[command(subcommand)]
    command: RingCommand,
}

#[derive(Debug, Subcommand)]
enum RingCommand {
    /// Begin a ring on this device, or admit more devices to it: show a code and wait for them
    #[command(after_help = init::HELP)]
    Init(init::InitArgs),
    /// Join the ring of another device with the code on its screen, then compute for it
    #[command(after_help = join::HELP)]
    Join(join::JoinArgs),
    /// Leave the ring, or remove another device from it
    Leave(leave::LeaveArgs),
    /// Explain why devices of the ring do not see each other, and what to do
    Doctor(doctor::DoctorArgs),
    /// Show the ring: its devices, and what each one does if the agent runs here
    Status(status::StatusArgs),
    /// Measure a prompt and tokens on this ring, and compare them with the prediction
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
    /// Plan which device computes which layers and predict the time of a token, from a description of devices
    #[command(after_help = plan::HELP)]
    Plan(plan::PlanArgs),
}

impl RingArgs {
    /// Returns why a line is refused although each of its options is valid.
    pub(super) fn wrong(&self) -> Option<String> {
        match &self.command {
            RingCommand::Plan(args) => args.wrong(),
            _ => None,
        }
    }
}

/// The folder of a ring's state.
#[derive(Debug, Args)]
struct StateArgs {
    /// Folder for this device's key, its ring and the keys of paired devices [default: `ring` in the
    /// settings' folder]
    #[arg(long, env = STATE_DIR_ENV, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl StateArgs {
    fn open(&self) -> Result<StateFolder, StateError> {
        StateFolder::open(ring_folder(self.state.clone()))
    }
}

/// How devices find each other.
#[derive(Debug, Args)]
struct NetworkArgs {
    /// Network interface to use, of any kind (may be given several times) [default: all but loopback,
    /// containers, virtual machines and tunnels]
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
}

impl NetworkArgs {
    fn interfaces(&self) -> Interfaces {
        Interfaces::of(&self.interface)
    }

    /// Refuses a name that no interface of this device has.
    fn check(&self) -> anyhow::Result<()> {
        if self.interface.is_empty() {
            return Ok(());
        }
        let links = interface_addresses(&self.interfaces()).context("list this device's interfaces")?;
        let known: BTreeSet<&str> = links.iter().map(|link| link.interface.as_str()).collect();
        match self.interface.iter().find(|name| !known.contains(name.as_str())) {
            Some(name) => {
                let known: Vec<&str> = known.into_iter().collect();
                bail!("no interface is called `{name}`; there are: {}", known.join(", "))
            }
            None => Ok(()),
        }
    }
}

/// The port on which rings listen by default.
const PORT: u16 = 8018;

pub(super) async fn run(args: RingArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    match args.command {
        RingCommand::Init(args) => until_stopped(interrupts, move |stop| init::run(&args, stop)).await,
        RingCommand::Join(args) => until_stopped(interrupts, move |stop| join::run(&args, stop)).await,
        RingCommand::Leave(args) => leave::run(&args),
        RingCommand::Doctor(args) => blocking(move || doctor::run(&args)).await,
        RingCommand::Status(args) => status::run(&args).await,
        RingCommand::Bench(args) => blocking(move || bench::run(&args)).await,
        RingCommand::Plan(args) => plan::run(&args),
    }
}

/// Runs blocking work on a thread of its own.
async fn blocking(work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(work).await.context("run the ring's command")?
}

/// Runs blocking work on a thread of its own. A signal asks it to stop, so that it can say goodbye to other
/// devices. This is the normal end of such a command, unless it returns [`Stopped`].
async fn until_stopped(
    interrupts: &Interrupts,
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let (stop, mut watch) = (Arc::new(AtomicBool::new(false)), interrupts.watch());
    let asked = Arc::clone(&stop);
    let work = blocking(move || work(&asked));
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => done,
        signal = watch.signal() => {
            stop.store(true, Ordering::Relaxed);
            match work.await {
                Err(err) if err.is::<Stopped>() => bail!(Stopped(signal)),
                done => done,
            }
        }
    }
}

/// Reads a time such as `90`, `90s`, `10m` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time: want a number followed by s, m or h, such as 10m");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * unit))
}

/// Prints one JSON object on one line.
fn print_line(value: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string(value).context("write JSON")?).context("write JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("90", 90), ("0", 0), ("90s", 90), ("10m", 600), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "m", "-1s", "1d", "1.5h", "99999999999", "10 m", "1mm"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
        let named = |name: &str| NetworkArgs { interface: vec![name.to_owned()] };
        let said = named("nope").check().unwrap_err().to_string();
        assert!(said.starts_with("no interface is called `nope`; there are: "), "{said}");
        let (_, there) = said.split_once("there are: ").unwrap();
        for name in there.split(", ").filter(|name| !name.is_empty()) {
            assert!(named(name).check().is_ok(), "{name}");
        }
        assert!(NetworkArgs { interface: Vec::new() }.check().is_ok());
    }

    #[test]
    fn the_ring_commands_are_read() {
        for good in [
            &["init"][..],
            &["init", "--for", "10m", "--devices", "2", "--listen", "127.0.0.1:0", "--no-mdns", "--json"],
            &["join", "482 913", "--head", "192.168.1.2"],
            &["join", "482913", "--state", "x", "--interface", "lo", "--name", "my phone"],
            &["init", "--listen", "localhost:0"],
            &["leave"],
            &["leave", "--device", "phone"],
            &["doctor", "--json", "--for", "0s"],
        ] {
            let line = ["baton", "ring"].iter().chain(good);
            assert!(Cli::try_parse_from(line).is_ok(), "{good:?}");
        }
        for bad in [
            &["join", "48291"][..],
            &["join", "482913", "--name", "a/b"],
            &["init", "--for", "soon"],
            &["init", "--devices", "0"],
            &["init", "--listen", "8018"],
            &["leave", "--device", "phone", "--forget-key"],
        ] {
            let line = ["baton", "ring"].iter().chain(bad);
            assert!(Cli::try_parse_from(line).is_err(), "{bad:?}");
        }
    }
}
