//! The commands of `./x`: sets up a machine, runs suites, lints, starts the demo and the benches.
//!
//! Never adds an architecture to the system's packages, and never asks for a password. Always: what it starts
//! ends with it, however it ends ([`process`]). Its only dependency reads JSON, and it has no `unsafe`.

use std::{
    env,
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use outcome::{Outcome, Stop, out, say};
use run::Run;

mod arm64;
mod cargo;
mod dist;
mod fuzz;
mod gpu;
mod help;
mod json;
mod lint;
mod load;
mod lockfile;
mod outcome;
mod packages;
mod process;
mod run;
mod rust_std;
mod setup;
mod suites;
mod targets;
mod tools;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let entered = env::set_current_dir(process::top())
        .map_err(|err| Stop::failed(format!("enter {}: {err}", process::top().display())));
    match entered.and_then(|()| command(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.exit_code(),
    }
}

/// Does what the command line asks for.
fn command(arguments: &[OsString]) -> Outcome {
    let help = OsString::from("help");
    let (name, rest) = arguments.split_first().unwrap_or((&help, &[]));
    let name = name.to_string_lossy();
    let own_help = !matches!(&*name, "demo" | "bench");
    if own_help && asks_for_help(rest) {
        return show_help(Some(&name));
    }
    match &*name {
        "setup" => {
            no_more(&name, rest)?;
            setup::everything()?;
            say("everything is here");
            Ok(())
        }
        "demo" => demo(rest),
        "test" => test(&words(rest)),
        "k8s" => suites::named("k8s", &words(rest)),
        "lint" => {
            no_more(&name, rest)?;
            lint::lint()
        }
        "bench" => bench(rest),
        "dist" => dist::dist(&words(rest)),
        "help" | "-h" | "--help" => show_help(rest.first().map(|word| word.to_string_lossy()).as_deref()),
        _ => Err(Stop::usage(format!("unknown command `{name}`\n{}", help::COMMANDS))),
    }
}

/// The words of a command line; none of ours holds what is not UTF-8.
fn words(arguments: &[OsString]) -> Vec<String> {
    arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn asks_for_help(arguments: &[OsString]) -> bool {
    arguments.iter().any(|word| word == "--help" || word == "-h")
}

fn show_help(command: Option<&str>) -> Outcome {
    let text = match command {
        None | Some("help" | "-h" | "--help") => help::COMMANDS,
        Some(name) => help::of(name)
            .ok_or_else(|| Stop::usage(format!("unknown command `{name}`\n{}", help::COMMANDS)))?,
    };
    out(text.trim_end());
    Ok(())
}

/// Refuses arguments of a command that takes no more of them.
fn no_more(command: &str, rest: &[impl AsRef<OsStr>]) -> Outcome {
    match rest.first() {
        None => Ok(()),
        Some(word) => {
            let word = word.as_ref().display();
            let help = command.split(' ').next().unwrap_or(command);
            Err(Stop::usage(format!("./x {command} does not take `{word}` (./x {help} --help)")))
        }
    }
}

/// Runs suites, as the words after `./x test` say.
fn test(words: &[String]) -> Outcome {
    let Some((name, rest)) = words.split_first() else { return suites::every() };
    match name.as_str() {
        "--list" => {
            no_more("test --list", rest)?;
            suites::list()
        }
        "loaded" => load::loaded(rest),
        "agents" if rest.first().is_some_and(|word| word == "record") => match rest {
            [_, agent] => suites::record_agent(agent),
            _ => Err(Stop::usage("./x test agents record NAME: the name of one agent")),
        },
        "slow" => {
            no_more("test slow", rest)?;
            suites::slow()
        }
        "fuzz" => {
            no_more("test fuzz", rest)?;
            let mut run = Run::new();
            fuzz::fuzz(&mut run)?;
            run.finish()
        }
        "arm64" => {
            no_more("test arm64", rest)?;
            setup::compiler()?;
            let mut run = Run::new();
            arm64::arm64(&mut run)?;
            run.finish()
        }
        "targets" => {
            let extent = if rest.first().is_some_and(|word| word == "run") {
                no_more("test targets run", &rest[1..])?;
                targets::Extent::Run
            } else {
                no_more("test targets", rest)?;
                targets::Extent::Check
            };
            setup::compiler()?;
            let mut run = Run::new();
            targets::targets(&mut run, extent)?;
            run.finish()
        }
        name => suites::named(name, rest),
    }
}

/// Builds the demo with the features that it needs, and becomes it.
fn demo(arguments: &[OsString]) -> Outcome {
    setup::compiler()?;
    process::succeed(cargo::cargo("build").args(cargo::DEMO))?;
    Err(process::become_program(cargo::program("baton-demo"), arguments))
}

/// Builds the benches and the programs that they start, and becomes `baton-bench`.
fn bench(arguments: &[OsString]) -> Outcome {
    setup::everything()?;
    if asks_for_help(arguments) {
        cargo::build(&["-p", "baton-bench", "--bin", "baton-bench"])?;
    } else {
        // Fetches llama.cpp.
        let fetches = arguments.first().is_some_and(|name| name == "engine");
        if fetches && !setup::need("python3", "python3", "python") {
            return Err(Stop::silent(1));
        }
        cargo::build(cargo::PROGRAMS)?;
    }
    Err(process::become_program(cargo::program("baton-bench"), arguments))
}
