//! The program as shipped, with a model that plays scripts.

use baton_e2e::process::{AgentProcess, cpu_program};
use baton_synthetic::{Script, scripted_gguf};
use tempfile::TempDir;
use tokio::process::Command;

/// Tokens of prompt and answer together: prompts of agents are long, and a token is a byte.
const CONTEXT_TOKENS: u32 = 131_072;
/// Lays out a conversation; the cue follows. It knows tools, but their definitions would only cost time.
const TURNS: &str = "{% if tools %}{% endif %}{% for m in messages %}<|user|>{{ m.content }}{% for call in m.tool_calls or [] %}\
    <tool_call>{{ call.function.name }}{% endfor %}<|end|>{% endfor %}";
/// What the model says if it is greeted.
pub(crate) const HI: &str = "Hi from the script.";
/// What the model says once a tool has run.
pub(crate) const DONE: &str = "The loop is closed.";

/// A running program; its folder ends with it.
#[derive(Debug)]
pub(crate) struct Played {
    program: AgentProcess,
    _folder: TempDir,
}

impl Played {
    /// Starts the program with a model of these scripts, whose template ends with `cue`.
    pub(crate) async fn start(scripts: &[Script], cue: &str) -> Played {
        let template = format!("{TURNS}{{% if add_generation_prompt %}}{cue}{{% endif %}}");
        Played::with_template(scripts, &template).await
    }

    /// Starts the program with a model of these scripts and this template.
    pub(crate) async fn with_template(scripts: &[Script], template: &str) -> Played {
        let folder = tempfile::tempdir().expect("make a folder");
        let model = folder.path().join("scripted.gguf");
        let gguf = scripted_gguf(scripts, template, CONTEXT_TOKENS).expect("the scripts make a model");
        std::fs::write(&model, gguf).expect("write the model");
        let mut command = Command::from(cpu_program("baton").expect("the program is built"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud"]);
        command.args(["--kv-tokens", &CONTEXT_TOKENS.to_string()]);
        command.arg("--model").arg(&model).arg("--config-dir").arg(folder.path());
        let program = AgentProcess::start(&mut command).await.expect("the program starts");
        Played { program, _folder: folder }
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> &str {
        self.program.url()
    }
}

/// A program that greets whatever it is asked.
pub(crate) async fn greeting() -> Played {
    Played::start(&[Script::new("<|cue-hi|>", &["Hi", " from the", " script."])], "<|cue-hi|>").await
}

/// A program that thinks and calls a tool that is known here, and says [`DONE`] once there is a result.
pub(crate) async fn looping(tools: &[Tool]) -> Played {
    let mut scripts =
        vec![Script::new("<|cue-done|>", &["<think>\nIt ran.\n</think>\n\n", "The loop", " is closed."])];
    let mut cues = String::new();
    for Tool { name, arguments } in tools {
        let thought = format!("<think>\nI use {name}.");
        let lead = format!("\n</think>\n\nI call {name}.\n<tool_call>\n");
        let head = format!("{{\"name\": \"{name}\", \"arguments\": ");
        let tail = format!("{arguments}}}\n</tool_call>");
        scripts.push(Script::new(&format!("<|cue-{name}|>"), &[&thought, &lead, &head, &tail]));
        cues.push_str(&format!(
            "{{% if t.function.name == '{name}' %}}{{% set ns.cue = '<|cue-{name}|>' %}}{{% endif %}}"
        ));
    }
    let cue = format!(
        "{{% set ns = namespace(cue='<|cue-done|>', ran=false) %}}\
         {{% for m in messages %}}{{% if m.role == 'tool' %}}{{% set ns.ran = true %}}{{% endif %}}{{% endfor %}}\
         {{% if not ns.ran %}}{{% for t in tools or [] %}}{cues}{{% endfor %}}{{% endif %}}{{{{ ns.cue }}}}"
    );
    Played::start(&scripts, &cue).await
}

/// A tool that the script calls, if the request offers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub name: &'static str,
    /// JSON.
    pub arguments: &'static str,
}
