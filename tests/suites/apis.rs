//! Clients of the other dialects, at locked versions, against the real agent: Anthropic's and Ollama's for
//! Python, Ollama's for JavaScript, and openai-python's responses. Responses also against the real cloud.
//! Then what programs are built with: LangChain, LiteLLM, Vercel's AI SDK, and a plain client of event
//! streams. Requests as Open WebUI's server sends them need none of these, nor does the table of what becomes
//! of each field.
//!
//! Each is asked whole, streamed, wrongly, and cut off. The scripts are in `tests/clients/apis`; they are
//! installed and run as those of the suite `clients`. If Python, Node or their registries are missing, the
//! suite says so and skips what needs them.

#[path = "apis/fields.rs"]
mod fields;
#[path = "apis/open_webui.rs"]
mod open_webui;

use std::process::Command;

use baton_e2e::child::Ended;
use baton_e2e::clients::{CASES_LIMIT, cases, node_for, python_for, run, scripts};
use baton_e2e::process::{AgentProcess, CloudProcess, models_folder, program};

const KEY: &str = "key-of-the-apis-suite";
/// The folder of the scripts.
const APIS: &str = "apis";

/// Starts an agent whose tokens come slowly enough to be cut off, without a cloud.
async fn agent(folder: &tempfile::TempDir) -> AgentProcess {
    let mut command = tokio::process::Command::new(program("baton").expect("the program is built"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--key", KEY]);
    command.args(["--emulate-decode-ms", "3"]);
    command.arg("--model").arg(models_folder().join("demo-device.gguf"));
    command.arg("--config-dir").arg(folder.path()).arg("--models-dir").arg(folder.path().join("models"));
    // Nothing is pulled from anywhere: nobody listens there.
    command.env("HF_ENDPOINT", "http://127.0.0.1:9");
    AgentProcess::start(&mut command).await.expect("the agent starts")
}

/// Checks that every case has its line, and every line says ok.
#[track_caller]
fn check_cases(ended: &Ended, cases_min: usize) {
    let lines = cases(ended, cases_min).unwrap_or_else(|why| panic!("{why}"));
    lines.iter().for_each(|line| println!("{line}"));
}

fn skipped(why: &str) {
    println!("skipped: apis: {why}");
}

#[tokio::test]
async fn python_clients() {
    let programs = match python_for(APIS) {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let folder = tempfile::tempdir().expect("make a folder");
    let agent = agent(&folder).await;
    let model = models_folder().join("demo-cloud.gguf");
    let cloud = CloudProcess::start(&model, &["--api-key".into(), KEY.into()]).await;
    let cloud = cloud.expect("the service starts");
    let mut command = Command::new(programs.join("python"));
    command.arg(scripts().join(APIS).join("cases.py")).arg(agent.url());
    command.arg(format!("http://{}", cloud.address())).arg(KEY);
    let ended = run(&mut command, "apis-python", CASES_LIMIT).unwrap_or_else(|why| panic!("{why}"));
    check_cases(&ended, 20);
    let mut command = Command::new(programs.join("python"));
    command.arg(scripts().join(APIS).join("frameworks.py")).args([agent.url(), KEY]);
    let ended =
        run(&mut command, "apis-frameworks-python", CASES_LIMIT).unwrap_or_else(|why| panic!("{why}"));
    check_cases(&ended, 9);
}

#[tokio::test]
async fn javascript_clients() {
    let scripts = match node_for(APIS) {
        Ok(folder) => folder,
        Err(why) => return skipped(&why),
    };
    let folder = tempfile::tempdir().expect("make a folder");
    let agent = agent(&folder).await;
    for (script, cases) in [("cases.mjs", 5), ("frameworks.mjs", 6)] {
        let mut command = Command::new("node");
        command.arg(scripts.join(script)).args([agent.url(), KEY]);
        let ended =
            run(&mut command, &format!("apis-{script}"), CASES_LIMIT).unwrap_or_else(|why| panic!("{why}"));
        check_cases(&ended, cases);
    }
}
