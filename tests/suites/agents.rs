//! Coding agents against `baton serve`: they greet, call a tool, read its result and end, without one
//! refusal.
//!
//! What they sent is replayed in every run. If the suite is called by its name, the agents themselves run, at
//! locked versions, installed under the target folder. If Node, Python or their registries are missing, the
//! suite says so and skips them. The model plays scripts; the program is the shipped one. No test checks a
//! time.

#[path = "agents/forms.rs"]
mod forms;
#[path = "agents/played.rs"]
mod played;
#[path = "agents/real.rs"]
mod real;
#[path = "agents/recorder.rs"]
mod recorder;
#[path = "agents/requests.rs"]
mod requests;

use std::path::Path;

use baton_e2e::clients::{CASES_LIMIT, node_for, python_for, run};
use baton_synthetic::Script;

use played::{DONE, HI, Played, Tool, greeting, looping};
use real::{Agent, OF_NODE, OF_PYTHON, OPEN_CODE};
use recorder::{Exchange, Recorder};

/// The folder of the lock files.
const AGENTS: &str = "agents";
/// The tools of the agents that the script calls. No script has the result, so it must come from the tool.
const TOOLS: [Tool; 4] = [
    Tool { name: "Bash", arguments: "{\"command\": \"echo loop-$((40+2))\", \"description\": \"counts\"}" },
    Tool { name: "bash", arguments: "{\"command\": \"echo loop-$((41+1))\", \"description\": \"adds\"}" },
    Tool { name: "exec_command", arguments: "{\"cmd\": \"echo loop-$((39+3))\"}" },
    Tool { name: "run_it", arguments: "{}" },
];
/// The result of every tool.
const RESULT: &str = "loop-42";

/// Runs an agent in a new folder, which `check` sees; returns what it printed, and what it exchanged with the
/// program.
fn agent(
    agent: Agent,
    installed: &Path,
    recorder: &Recorder,
    prompt: &str,
    check: impl FnOnce(&Path),
) -> (String, Vec<Exchange>) {
    let home = tempfile::tempdir().expect("make a folder");
    let mut command = agent.command(installed, home.path(), &recorder.url(), prompt);
    let name = format!("agents-{}", agent.name());
    let ended = run(&mut command, &name, CASES_LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let exchanged = recorder.take();
    let refused: Vec<&Exchange> = exchanged.iter().filter(|exchange| exchange.status >= 400).collect();
    let brief: Vec<String> = refused
        .iter()
        .map(|exchange| {
            let Exchange { method, path, status, refusal, .. } = exchange;
            format!("{method} {path}: {status} {refusal}")
        })
        .collect();
    assert!(brief.is_empty(), "{name} was refused:\n{}\n{}", brief.join("\n"), ended.stderr);
    assert!(ended.status.success(), "{name}: {}\n{}", ended.stdout, ended.stderr);
    assert!(!exchanged.is_empty(), "{name} asked nothing: {}\n{}", ended.stdout, ended.stderr);
    check(home.path());
    requests::record(agent, &exchanged);
    (ended.stdout, exchanged)
}

/// Lets an agent greet, and close a loop of one tool.
fn greets_and_loops(one: Agent, installed: &Path, hi: &Recorder, looped: &Recorder) {
    let (said, _) = agent(one, installed, hi, "say hi", |_| ());
    assert!(said.contains(HI), "{one:?}: {said}");
    let (said, exchanged) = agent(one, installed, looped, "run echo", |_| ());
    assert!(said.contains(DONE), "{one:?}: {said}");
    let has_result = exchanged.iter().any(|exchange| exchange.body.contains(RESULT));
    assert!(has_result, "{one:?} sent no result of its tool");
    let ignored = exchanged.last().map(|exchange| exchange.ignored.as_str()).unwrap_or_default();
    println!("ok {}: {} requests, none refused; ignored: {ignored}", one.name(), exchanged.len());
}

/// Returns whether an agent is to run: all do, unless one is named.
fn is_wanted(agent: Agent) -> bool {
    let Some(only) = std::env::var("BATON_AGENTS_ONLY").ok().filter(|only| !only.is_empty()) else {
        return true;
    };
    let mut all = OF_NODE.iter().chain(&OF_PYTHON).map(|agent| agent.name());
    assert!(all.any(|name| name.starts_with(&only)), "no agent is called `{only}`");
    agent.name().starts_with(&only)
}

fn is_named() -> bool {
    std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty())
}

fn skipped(why: &str) {
    println!("skipped: agents: {why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_node_close_the_loop() {
    if !is_named() {
        return skipped("agents of Node run if the suite is called by its name");
    }
    let installed = match node_for(AGENTS) {
        Ok(folder) => folder,
        Err(why) => return skipped(&why),
    };
    let hi = greeting().await;
    let looped = looping(&TOOLS).await;
    let hi = Recorder::start(hi.url()).await;
    let looped = Recorder::start(looped.url()).await;
    for one in OF_NODE.into_iter().filter(|&one| is_wanted(one)) {
        if one == Agent::OpenCode && !installed.join(OPEN_CODE).is_file() {
            skipped("OpenCode is not there for this system");
            continue;
        }
        tokio::task::block_in_place(|| greets_and_loops(one, &installed, &hi, &looped));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_python_close_the_loop() {
    if !is_named() {
        return skipped("agents of Python run if the suite is called by its name");
    }
    let programs = match python_for(AGENTS) {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let hi_program = greeting().await;
    let looped_program = looping(&TOOLS).await;
    let edit = Script::new("<|cue-edit|>", &["I write it.\n\n", "hello.txt\n```\nloop", "-42\n```\n"]);
    let editing = Played::start(&[edit], "<|cue-edit|>").await;
    let hi = Recorder::start(hi_program.url()).await;
    let looped = Recorder::start(looped_program.url()).await;
    let edits = Recorder::start(editing.url()).await;
    tokio::task::block_in_place(|| {
        for one in OF_PYTHON.into_iter().filter(|&one| is_wanted(one)) {
            match one {
                // It has no tools: it writes files as the model says.
                Agent::Aider => {
                    let (said, _) = agent(one, &programs, &hi, "say hi", |_| ());
                    assert!(said.contains(HI), "{said}");
                    let wrote = |home: &Path| {
                        let text = std::fs::read_to_string(home.join("work/hello.txt")).unwrap_or_default();
                        assert_eq!(text.trim(), RESULT);
                    };
                    let (_, exchanged) = agent(one, &programs, &edits, "write hello.txt", wrote);
                    println!("ok aider: {} requests, none refused", exchanged.len());
                }
                other => greets_and_loops(other, &programs, &hi, &looped),
            }
        }
    });
}
