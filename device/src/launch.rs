//! Agents of others, and what each is told so that it asks `baton serve`: a program, arguments, variables,
//! and files in a folder of our own.
//!
//! Pure. Never: names a file of the user's.

use std::path::Path;

use serde_json::json;

/// The name of the only model.
const MODEL: &str = "baton";
/// The key for agents that want one, if the program has none.
const NO_KEY: &str = "none";
/// The variable that has Codex's key.
const CODEX_KEY: &str = "BATON_AGENT_KEY";

/// An agent that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Agent {
    /// Claude Code (`claude`), by Anthropic's messages
    Claude,
    /// Codex (`codex`), by OpenAI's responses
    Codex,
    /// OpenCode (`opencode`), by chat completions
    Opencode,
    /// pi (`pi`), by chat completions
    Pi,
    /// Qwen Code (`qwen`), by chat completions
    Qwen,
    /// aider (`aider`), by chat completions
    Aider,
    /// goose (`goose`), by chat completions
    Goose,
}

/// Where the program is, and what agents must know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Its address, without a slash at the end.
    pub url: String,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// Tokens of prompt and answer together.
    pub context_tokens: u64,
}

/// How an agent is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program, looked for where shells look.
    pub program: &'static str,
    /// Its first arguments.
    pub arguments: Vec<String>,
    /// Variables of its environment.
    pub variables: Vec<(&'static str, String)>,
    /// Names and texts of files in the folder.
    pub files: Vec<(&'static str, String)>,
}

impl Agent {
    /// Returns how the agent is started, with its files in `folder`.
    pub fn launch(self, served: &Served, folder: &Path) -> Launch {
        let key = served.key.clone().unwrap_or_else(|| NO_KEY.to_owned());
        let base = format!("{}/v1", served.url);
        match self {
            Agent::Claude => claude(&served.url, key),
            Agent::Codex => codex(&base, key, served.context_tokens),
            Agent::Opencode => opencode(&base, &key, served.context_tokens),
            Agent::Pi => pi(&base, &key, served.context_tokens, folder),
            Agent::Qwen => Launch::of(
                "qwen",
                &["--auth-type", "openai", "--model", MODEL],
                [("OPENAI_BASE_URL", base), ("OPENAI_API_KEY", key), ("OPENAI_MODEL", MODEL.to_owned())],
            ),
            Agent::Aider => Launch::of(
                "aider",
                &["--model", "openai/baton", "--no-show-model-warnings"],
                [("OPENAI_API_BASE", base), ("OPENAI_API_KEY", key)],
            ),
            Agent::Goose => Launch::of(
                "goose",
                &[],
                [
                    ("GOOSE_PROVIDER", "openai".to_owned()),
                    ("GOOSE_MODEL", MODEL.to_owned()),
                    ("OPENAI_HOST", served.url.clone()),
                    ("OPENAI_BASE_PATH", "v1/chat/completions".to_owned()),
                    ("OPENAI_API_KEY", key),
                ],
            ),
        }
    }
}

impl Launch {
    fn of(
        program: &'static str,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Launch {
        Launch {
            program,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            variables: variables.into_iter().collect(),
            files: Vec::new(),
        }
    }
}

/// Claude Code: all its models are the only one.
fn claude(url: &str, key: String) -> Launch {
    let models = [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
    ];
    let own = [
        ("ANTHROPIC_BASE_URL", url.to_owned()),
        ("ANTHROPIC_AUTH_TOKEN", key),
        // Else Claude Code asks which of the two keys it should use.
        ("ANTHROPIC_API_KEY", String::new()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
    ];
    let models = models.map(|name| (name, MODEL.to_owned()));
    Launch::of("claude", &[], own.into_iter().chain(models))
}

/// Codex: its settings on the command line.
fn codex(base: &str, key: String, context_tokens: u64) -> Launch {
    let of_provider = |name: &str, value: &str| format!("model_providers.baton.{name}={}", json!(value));
    let settings = [
        format!("model={}", json!(MODEL)),
        format!("model_provider={}", json!(MODEL)),
        format!("model_context_window={context_tokens}"),
        of_provider("name", MODEL),
        of_provider("base_url", base),
        of_provider("env_key", CODEX_KEY),
        of_provider("wire_api", "responses"),
    ];
    let arguments = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect();
    Launch { arguments, ..Launch::of("codex", &[], [(CODEX_KEY, key)]) }
}

/// OpenCode: its settings in a variable.
fn opencode(base: &str, key: &str, context_tokens: u64) -> Launch {
    let limit = json!({ "context": context_tokens, "output": output_tokens(context_tokens) });
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": MODEL,
        "options": { "baseURL": base, "apiKey": key },
        "models": { MODEL: { "name": MODEL, "limit": limit } },
    });
    let config = json!({
        "model": "baton/baton", "small_model": "baton/baton", "share": "disabled",
        "provider": { MODEL: provider },
    });
    Launch::of("opencode", &[], [("OPENCODE_CONFIG_CONTENT", config.to_string())])
}

/// pi: its models in a file of a folder of our own.
fn pi(base: &str, key: &str, context_tokens: u64, folder: &Path) -> Launch {
    let model = json!({
        "id": MODEL, "name": MODEL, "reasoning": false, "input": ["text"],
        "contextWindow": context_tokens, "maxTokens": output_tokens(context_tokens),
        "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0 },
    });
    let provider = json!({ "baseUrl": base, "api": "openai-completions", "apiKey": key, "models": [model] });
    let models = json!({ "providers": { MODEL: provider } });
    let folder = folder.to_string_lossy().into_owned();
    let launch =
        Launch::of("pi", &["--provider", MODEL, "--model", MODEL], [("PI_CODING_AGENT_DIR", folder)]);
    Launch { files: vec![("models.json", models.to_string())], ..launch }
}

/// The most tokens of an answer that an agent plans with: a quarter of the room.
fn output_tokens(context_tokens: u64) -> u64 {
    (context_tokens / 4).max(1)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_agent_is_told_the_address_and_the_key_and_no_file_of_the_users() {
        let served = Served {
            url: "http://127.0.0.1:8017".to_owned(),
            key: Some("a\"b".to_owned()),
            context_tokens: 4096,
        };
        for agent in Agent::value_variants() {
            let launch = agent.launch(&served, Path::new("/own"));
            let said = format!("{:?}", launch);
            assert!(said.contains("http://127.0.0.1:8017"), "{said}");
            assert!(
                launch.arguments.iter().all(|argument| !argument.contains("a\"b")),
                "others see arguments"
            );
            assert!(launch.files.iter().all(|(name, _)| !name.contains(['/', '\\'])), "{said}");
            let is_known = |text: &str| text == "a\"b" || text.contains("a\\\"b");
            let variables = launch.variables.iter().map(|(_, value)| value);
            let mut told = variables.chain(launch.files.iter().map(|(_, text)| text));
            assert!(told.any(|text| is_known(text)), "{said}");
            let without = agent.launch(&Served { key: None, ..served.clone() }, Path::new("/own"));
            assert!(format!("{without:?}").contains(NO_KEY), "{agent:?} wants some key");
        }
    }
}
