//! Agents of others, and how each is told to use the program: all from its own folder, with a key that opens
//! nothing, without telemetry and without updates.

use std::path::Path;
use std::process::Command;

use serde_json::json;

/// The key that agents are given; the program needs none.
const KEY: &str = "key-of-nothing";

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

    /// Returns the command that asks the program at `url`. `installed` is the folder of the packages or
    /// programs, and `home` a new folder.
    pub(crate) fn command(self, installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
        let mut command = match self {
            Agent::ClaudeCode => claude_code(installed, home, url, prompt),
            Agent::Codex => codex(installed, home, url, prompt),
            Agent::OpenCode => open_code(installed, home, url, prompt),
            Agent::Pi { api, thinking } => pi(installed, home, url, prompt, api, thinking),
            Agent::Aider => aider(installed, url, prompt),
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
        command.env("OPENAI_API_KEY", KEY).env("ANTHROPIC_API_KEY", KEY);
        command
    }
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
    let mut command = node(installed, "@anthropic-ai/claude-code/cli-wrapper.cjs");
    command.args(["-p", prompt, "--allowedTools", "Bash"]);
    command.env("ANTHROPIC_BASE_URL", url).env("CLAUDE_CONFIG_DIR", home.join(".claude"));
    for model in ["ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"] {
        command.env(model, "baton");
    }
    for off in ["DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING"] {
        command.env(off, "1");
    }
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    command
}

fn codex(installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let folder = home.join(".codex");
    let config = format!(
        "model = \"baton\"\nmodel_provider = \"baton\"\ncheck_for_update_on_startup = false\n\
         [analytics]\nenabled = false\n[model_providers.baton]\nname = \"baton\"\nbase_url = \"{url}/v1\"\n\
         env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n"
    );
    write(&folder.join("config.toml"), &config);
    let mut command = node(installed, "@openai/codex/bin/codex.js");
    // The test is the sandbox.
    command.args(["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", prompt]);
    command.env("CODEX_HOME", folder);
    command
}

fn open_code(installed: &Path, home: &Path, url: &str, prompt: &str) -> Command {
    let provider = json!({ "npm": "@ai-sdk/openai-compatible", "name": "baton",
        "options": { "baseURL": format!("{url}/v1"), "apiKey": KEY }, "models": { "baton": { "name": "baton" } } });
    let config = json!({ "autoupdate": false, "share": "disabled", "model": "baton/baton",
        "small_model": "baton/baton", "provider": { "baton": provider } });
    write(&home.join(".config/opencode/opencode.json"), &config.to_string());
    let mut command = Command::new(installed.join(OPEN_CODE));
    command.args(["run", prompt]);
    for off in ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        command.env(format!("OPENCODE_DISABLE_{off}"), "1");
    }
    command
}

fn pi(installed: &Path, home: &Path, url: &str, prompt: &str, api: &str, thinking: &str) -> Command {
    let base = if api == "anthropic-messages" { url.to_owned() } else { format!("{url}/v1") };
    let model = json!({ "id": "baton", "name": "baton", "reasoning": true, "input": ["text"],
        "contextWindow": 65536, "maxTokens": 4096,
        "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0 } });
    let config = json!({ "providers": { "baton": { "baseUrl": base, "api": api, "apiKey": KEY, "models": [model] } } });
    write(&home.join(".pi/agent/models.json"), &config.to_string());
    let mut command = node(installed, "@mariozechner/pi-coding-agent/dist/cli.js");
    command.args(["--provider", "baton", "--model", "baton", "--thinking", thinking, "-p", prompt]);
    command.env("PI_OFFLINE", "1").env("PI_SKIP_VERSION_CHECK", "1").env("PI_TELEMETRY", "0");
    command
}

fn aider(programs: &Path, url: &str, prompt: &str) -> Command {
    let mut command = Command::new(programs.join("aider"));
    command.args(["--model", "openai/baton", "--message", prompt, "--yes-always", "--no-git"]);
    command.args(["--no-check-update", "--analytics-disable", "--no-show-model-warnings"]);
    command.args(["--no-show-release-notes", "--no-pretty", "--no-detect-urls"]);
    command.env("OPENAI_API_BASE", format!("{url}/v1")).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
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
