//! Agents of others, and how each is told to use the program: as `baton launch` tells them.
//!
//! All is in a folder of the test. The key opens nothing; there is no telemetry, and there are no updates.

use std::path::Path;
use std::process::Command;

use baton_device::launch::{Agent as Launched, Served};
use baton_e2e::clients::scripts;

/// The key that agents are given; the program needs none.
const KEY: &str = "key-of-nothing";
/// Tokens of prompt and answer together, as the agents are told.
const CONTEXT_TOKENS: u64 = 65_536;

/// OpenCode's program; the registry has it for this system alone.
pub(crate) const OPEN_CODE: &str = "node_modules/opencode-linux-x64/bin/opencode";

/// An agent, and the dialect in which it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    ClaudeCode,
    Codex,
    OpenCode,
    /// The API that it speaks, and how much it thinks.
    Pi {
        api: &'static str,
        thinking: &'static str,
    },
    Aider,
    Llm,
}

/// Agents that Node runs.
pub(crate) const OF_NODE: [Agent; 9] = [
    Agent::ClaudeCode,
    Agent::Codex,
    Agent::OpenCode,
    Agent::Pi { api: "openai-completions", thinking: "off" },
    Agent::Pi { api: "openai-completions", thinking: "high" },
    Agent::Pi { api: "anthropic-messages", thinking: "off" },
    Agent::Pi { api: "anthropic-messages", thinking: "high" },
    Agent::Pi { api: "openai-responses", thinking: "off" },
    Agent::Pi { api: "openai-responses", thinking: "high" },
];

/// Agents that Python runs.
pub(crate) const OF_PYTHON: [Agent; 2] = [Agent::Aider, Agent::Llm];

impl Agent {
    /// Returns its name for messages and files.
    pub(crate) fn name(self) -> String {
        match self {
            Agent::Pi { api, thinking } => format!("pi-{api}-{thinking}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// Returns its version, as the lock files of the suite have it.
    pub(crate) fn version(self) -> String {
        let (file, package) = match self {
            Agent::ClaudeCode => ("package.json", "\"@anthropic-ai/claude-code\": \""),
            Agent::Codex => ("package.json", "\"@openai/codex\": \""),
            Agent::OpenCode => ("package.json", "\"opencode-linux-x64\": \""),
            Agent::Pi { .. } => ("package.json", "\"@mariozechner/pi-coding-agent\": \""),
            Agent::Aider => ("requirements.txt", "aider-chat=="),
            Agent::Llm => ("requirements.txt", "\nllm=="),
        };
        let path = scripts().join("agents").join(file);
        let text = std::fs::read_to_string(&path).expect("read a lock file");
        let (_, rest) = text.split_once(package).unwrap_or_else(|| panic!("{}: {package}", path.display()));
        rest.chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '.').collect()
    }

    /// Returns the command that asks the program at `url`. `installed` is the folder of the packages or
    /// programs, and `home` a new folder.
    pub(crate) fn command(self, installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
        let mut command = match self {
            Agent::ClaudeCode => claude_code(installed, home, url, prompt),
            Agent::Codex => codex(installed, home, url, prompt),
            Agent::OpenCode => open_code(installed, home, url, prompt),
            Agent::Pi { api, thinking } => pi(installed, home, url, prompt, api, thinking),
            Agent::Aider => aider(installed, home, url, prompt),
            Agent::Llm => llm(installed, home, url, prompt),
        };
        let work = home.join("work");
        std::fs::create_dir_all(&work).expect("make a folder");
        command.current_dir(work).env("HOME", home).env("CI", "1").env("NO_COLOR", "1");
        for (name, folder) in [
            ("XDG_CONFIG_HOME", ".config"),
            ("XDG_DATA_HOME", ".local/share"),
            ("XDG_CACHE_HOME", ".cache"),
            ("XDG_STATE_HOME", ".local/state"),
        ] {
            command.env(name, home.join(folder));
        }
        command
    }
}

/// Tells an agent what `baton launch` tells it.
fn launched(agent: Launched, mut command: Command, home: &Path, url: &str) -> Command {
    let served = Served { url: url.to_owned(), key: Some(KEY.to_owned()), context_tokens: CONTEXT_TOKENS };
    let folder = home.join("launch");
    let launch = agent.launch(&served, &folder);
    for (name, text) in &launch.files {
        write(&folder.join(name), text);
    }
    command.args(launch.arguments).envs(launch.variables);
    command
}

fn node(installed: &Path, script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(installed.join("node_modules").join(script));
    command
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("make a folder");
    std::fs::write(path, text).expect("write a configuration");
}

fn claude_code(installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let program = node(installed, "@anthropic-ai/claude-code/cli-wrapper.cjs");
    let mut command = launched(Launched::Claude, program, home, url);
    command.args(["-p", prompt, "--allowedTools", "Bash"]).env("CLAUDE_CONFIG_DIR", home.join(".claude"));
    for off in ["DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING"] {
        command.env(off, "1");
    }
    command
}

fn codex(installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let folder = home.join(".codex");
    let config = "check_for_update_on_startup = false\n[analytics]\nenabled = false\n";
    write(&folder.join("config.toml"), config);
    let mut command = launched(Launched::Codex, node(installed, "@openai/codex/bin/codex.js"), home, url);
    for retries in ["request_max_retries", "stream_max_retries"] {
        command.args(["-c", &format!("model_providers.baton.{retries}=0")]);
    }
    // The test is the sandbox.
    command.args(["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", prompt]);
    command.env("CODEX_HOME", folder);
    command
}

fn open_code(installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let mut command = launched(Launched::Opencode, Command::new(installed.join(OPEN_CODE)), home, url);
    command.args(["run", prompt]);
    for off in ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        command.env(format!("OPENCODE_DISABLE_{off}"), "1");
    }
    command
}

/// pi, whose API and thinking are set in the file that `baton launch` gives it.
fn pi(installed: &Path, home: &Path, url: &str, prompt: &str, api: &str, thinking: &str) -> Command {
    let program = node(installed, "@mariozechner/pi-coding-agent/dist/cli.js");
    let mut command = launched(Launched::Pi, program, home, url);
    let models = home.join("launch/models.json");
    let text = std::fs::read_to_string(&models).expect("read pi's models");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
    let provider = &mut config["providers"]["baton"];
    provider["api"] = api.into();
    provider["models"][0]["reasoning"] = true.into();
    if api == "anthropic-messages" {
        provider["baseUrl"] = url.into();
    }
    write(&models, &config.to_string());
    command.args(["--thinking", thinking, "-p", prompt]);
    command.env("PI_OFFLINE", "1").env("PI_SKIP_VERSION_CHECK", "1").env("PI_TELEMETRY", "0");
    command
}

fn aider(programs: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let mut command = launched(Launched::Aider, Command::new(programs.join("aider")), home, url);
    command.args(["--message", prompt, "--yes-always", "--no-git", "--no-check-update"]);
    command.args(["--analytics-disable", "--no-show-release-notes", "--no-pretty", "--no-detect-urls"]);
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    command
}

fn llm(programs: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let folder = home.join("llm");
    let model =
        format!("- model_id: baton\n  model_name: baton\n  api_base: {url}/v1\n  supports_tools: true\n");
    write(&folder.join("extra-openai-models.yaml"), &model);
    let mut command = Command::new(programs.join("llm"));
    let function = "def run_it() -> str:\n    \"Runs it\"\n    return 'loop-' + str(40 + 2)\n";
    command.args(["-m", "baton", "--key", KEY, "--functions", function, prompt]);
    command.env("LLM_USER_PATH", folder);
    command
}
