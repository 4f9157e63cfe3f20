//! Transcripts of agents as clients record them: a long system prompt, tools, and turns with calls and
//! results.
//!
//! The text is made from a seed, and means nothing. Shapes are those of coding agents: a few tools, long
//! results of them, short questions. Always: the same seed and length give the same transcript.

use baton_engine::Tokenizer;
use baton_random::SplitMix64;
use serde_json::{Value, json};

/// Turns behind the long first one.
pub(super) const WARM_TURNS: usize = 2;
/// The share of the tokens that the system prompt has, in percent.
const SYSTEM_PERCENT: usize = 15;
/// Words of a tool's result, and of what people and assistants say.
const RESULT_WORDS: usize = 220;
const SAID_WORDS: usize = 18;
/// Tools that the assistant may call.
const TOOLS: [(&str, &str); 6] = [
    ("read_file", "Reads a file and returns its lines."),
    ("list_folder", "Lists the files of a folder."),
    ("search", "Searches all files for a text."),
    ("run", "Runs a command and returns what it prints."),
    ("edit_file", "Replaces a text in a file."),
    ("fetch", "Fetches a page and returns its text."),
];
const WORDS: [&str; 32] = [
    "river", "stone", "index", "table", "function", "returns", "value", "error", "server", "lists", "names",
    "while", "before", "after", "large", "small", "first", "second", "reads", "writes", "file", "folder",
    "line", "token", "model", "cache", "block", "prefix", "answer", "question", "device", "cloud",
];

struct Writer {
    random: SplitMix64,
    calls: usize,
}

impl Writer {
    fn words(&mut self, count: usize) -> String {
        let words = (0..count).map(|_| WORDS[self.random.below(WORDS.len())]);
        words.collect::<Vec<_>>().join(" ") + "."
    }

    /// A call of a tool, its result, and what the assistant says of it.
    fn step(&mut self) -> Vec<Value> {
        self.calls += 1;
        let id = format!("call_{:06}", self.calls);
        let (name, _) = TOOLS[self.random.below(TOOLS.len())];
        let input =
            json!({ "path": format!("src/{}/{}.rs", self.words(1).trim_end_matches('.'), self.calls) });
        vec![
            json!({ "role": "assistant", "text": self.words(SAID_WORDS), "calls": [{ "id": id, "name": name, "input": input }] }),
            json!({ "role": "tool", "id": id, "text": self.words(RESULT_WORDS) }),
            json!({ "role": "assistant", "text": self.words(SAID_WORDS) }),
        ]
    }

    fn question(&mut self) -> Value {
        json!({ "role": "user", "text": self.words(SAID_WORDS) })
    }
}

/// Makes a transcript whose first turn has about so many tokens, and [`WARM_TURNS`] more turns.
pub(super) fn transcript(seed: u64, tokens: usize, tokenizer: &Tokenizer) -> Value {
    let mut writer = Writer { random: SplitMix64::new(seed), calls: 0 };
    let count = |text: &str| tokenizer.encode(text).len();
    let mut system = "You are an agent that works on a project.\n".to_owned();
    while count(&system) < tokens * SYSTEM_PERCENT / 100 {
        system += &(writer.words(60) + "\n");
    }
    let parameters = json!({
        "type": "object",
        "properties": { "path": { "type": "string", "description": "What to work on." } },
        "required": ["path"],
        "additionalProperties": false,
    });
    let tool = |(name, description): &(&str, &str)| json!({ "name": name, "description": description, "parameters": parameters });
    let tools: Vec<Value> = TOOLS.iter().map(tool).collect();
    let mut first = vec![writer.question()];
    let mut length = count(&system) + count(&json!(tools).to_string());
    while length < tokens {
        let mut step = writer.step();
        step.push(writer.question());
        length +=
            step.iter().map(|message| count(message["text"].as_str().unwrap_or_default())).sum::<usize>();
        first.extend(step);
    }
    let mut turns = vec![first];
    for _ in 0..WARM_TURNS {
        let mut turn = writer.step();
        turn.push(writer.question());
        turns.push(turn);
    }
    json!({ "system": system, "tools": tools, "turns": turns })
}
