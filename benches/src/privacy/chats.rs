//! Conversations of several turns over real HTTP: the agent as `baton chat` calls it, and the program
//! `baton serve`. Both use a cloud that sends back what it receives. No value that the user gave may occur in
//! the requests to the cloud.

use anyhow::{Context, ensure};
use baton_device::agent::{Agent, Question};
use baton_device::client::CloudClient;
use baton_device::relay::RelayMode;
use baton_device::scene::built_in;
use baton_device::segments::mark;
use baton_e2e::process::{AgentProcess, cpu_program, models_folder};
use baton_engine::Model;
use baton_openai::ChatMessage;
use baton_pacing::PaceMode;
use baton_protocol::{RefineOptions, Role, Sampling};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::corpus::{Line, lines};
use super::names::{self, NameLine};
use super::recorder::Recorder;
use super::score::{Scene, findings};
use super::seen::SEEN;
use super::unseen::UNSEEN;
use super::values::pick;
use crate::random::Random;

const TURNS: usize = 4;
/// Minimum number of letters and digits in a value. Shorter values can occur by chance in ids and times.
const CANARY_CHARS_MIN: usize = 7;
/// Minimum number of Chinese characters in a value; they occur in no id.
const CANARY_HAN_MIN: usize = 2;
const TOKENS_MAX: usize = 4096;
/// Maximum number of waiting text events.
const EVENTS_MAX: usize = 256;

/// The results of the conversations.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub conversations: usize,
    pub requests: usize,
    pub canaries: usize,
    /// Number of answers that showed a value to the user again. Without them the check would prove nothing.
    pub restored: usize,
    pub leaks: Vec<String>,
}

/// A running conversation.
struct Talk {
    random: Random,
    canaries: Vec<String>,
    messages: Vec<ChatMessage>,
}

/// Sentences about a value given before, without a word that names its kind.
const AGAIN: &[&str] =
    &["Is {} right?", "Once more: {}", "{}", "so {}, not another?", "Compare \"{}\" with it.", "({})"];

impl Talk {
    fn new(seed: u64, index: usize) -> Self {
        Self { random: Random::new(seed, 0xc4a7, index as u64), canaries: Vec::new(), messages: Vec::new() }
    }

    /// Adds the user's next message.
    fn say(&mut self, corpus: &[Line], turn: usize) {
        let mut text = String::new();
        for _ in 0..if turn == 0 { 3 } else { 1 } {
            let line = &corpus[self.random.count((0, corpus.len() as u32 - 1)) as usize];
            for planted in &line.planted {
                let value = &line.text[planted.must.clone()];
                if is_long(value) {
                    self.canaries.push(value.to_owned());
                }
            }
            text.push_str(&line.text);
            text.push('\n');
        }
        if turn > 0 && !self.canaries.is_empty() {
            let at = self.random.count((0, self.canaries.len() as u32 - 1)) as usize;
            text.push_str(&pick(&mut self.random, AGAIN).replace("{}", &self.canaries[at]));
        }
        self.messages.push(ChatMessage::new(Role::User, text));
    }

    fn heard(&mut self, answer: String, outcome: &mut Outcome) {
        outcome.restored += usize::from(self.canaries.iter().any(|canary| answer.contains(canary)));
        self.messages.push(ChatMessage::new(Role::Assistant, answer));
    }

    fn end(self, recorder: &Recorder, outcome: &mut Outcome) -> anyhow::Result<()> {
        let sent = recorder.take();
        ensure!(sent.len() >= TURNS, "{} requests came of {TURNS} turns", sent.len());
        outcome.conversations += 1;
        outcome.requests += sent.len();
        outcome.canaries += self.canaries.len();
        for canary in &self.canaries {
            outcome
                .leaks
                .extend(sent.iter().filter(|text| text.contains(canary.as_str())).map(|_| canary.clone()));
        }
        Ok(())
    }
}

/// Checks whether a value is long enough to occur nowhere by chance.
fn is_long(value: &str) -> bool {
    let han = value.chars().filter(|c| ('\u{4e00}'..='\u{9fff}').contains(c)).count();
    han >= CANARY_HAN_MIN || value.chars().filter(|c| c.is_alphanumeric()).count() >= CANARY_CHARS_MIN
}

/// Returns the lines whose values the detectors find if a line stands alone. Here the question is whether a
/// value that was found once appears elsewhere; recall is measured in [`super::score`].
fn corpus(seed: u64) -> anyhow::Result<Vec<Line>> {
    let mut all = lines(&SEEN, seed);
    all.extend(lines(&UNSEEN, seed));
    for part in [names::SEEN, names::UNSEEN] {
        all.extend(names::lines(&part, seed)?.into_iter().map(NameLine::into_line));
    }
    let mut known = Vec::new();
    for line in all {
        let found = findings(&line.text, Scene::Conversation)?;
        let covered = |at| found.iter().any(|f| f.range.contains(&at));
        if !line.planted.is_empty() && line.planted.iter().all(|planted| planted.must.clone().all(covered)) {
            known.push(line);
        }
    }
    Ok(known)
}

/// Runs conversations as in `baton chat`: every turn sends the whole history.
pub(super) async fn chat(conversations: usize, seed: u64) -> anyhow::Result<Outcome> {
    let recorder = Recorder::start().await?;
    let model = Model::open(&models_folder().join("demo-device.gguf")).context("open the demo model")?;
    let (corpus, mut outcome) = (corpus(seed)?, Outcome::default());
    for index in 0..conversations {
        // A new agent for each conversation, which knows nothing of the earlier ones.
        let cloud = CloudClient::new(recorder.url(), None).context("make a client")?;
        let agent = Agent::new(None, model.tokenizer().clone(), Some(cloud), "bench");
        let mut talk = Talk::new(seed, index);
        for turn in 0..TURNS {
            talk.say(&corpus, turn);
            let answer = ask(&agent, &talk.messages).await?;
            talk.heard(answer, &mut outcome);
        }
        talk.end(&recorder, &mut outcome)?;
    }
    Ok(outcome)
}

async fn ask(agent: &Agent, messages: &[ChatMessage]) -> anyhow::Result<String> {
    let tokenizer = agent.tokenizer();
    let question = Question {
        segments: mark(messages, |text| tokenizer.encode(text).len()),
        scene: built_in("chat"),
        mode: RelayMode::CloudOnly,
        pace: PaceMode::Instant,
        sampling: Sampling::default(),
        tokens_max: TOKENS_MAX,
        shorten: true,
        refine: RefineOptions::default(),
        assist_tokens: None,
        corrector: None,
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        own: None,
        cites: false,
    };
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let drain = async { while events.recv().await.is_some() {} };
    let (report, ()) = tokio::join!(agent.answer(question, sender), drain);
    let report = report.context("ask")?;
    ensure!(report.error.is_none(), "the answer failed: {:?}", report.error);
    Ok(report.answer)
}

/// Runs conversations with one `baton serve`. Its clients send the whole history, its end, or a quotation of
/// it.
pub(super) async fn api(conversations: usize, seed: u64) -> anyhow::Result<Outcome> {
    let recorder = Recorder::start().await?;
    let folder = std::env::temp_dir().join(format!("baton-bench-privacy-{}", std::process::id()));
    let model = models_folder().join("demo-device.gguf");
    let mut command = Command::from(cpu_program("baton")?);
    command.env_remove("BATON_NO_NAMES");
    command.args(["serve", "--listen", "127.0.0.1:0", "--mode", "cloud", "--yes", "--cloud", recorder.url()]);
    command.arg("--model").arg(model).arg("--config-dir").arg(&folder);
    let agent = AgentProcess::start(&mut command).await?;
    let client = baton_e2e::http::client();
    let (corpus, mut outcome) = (corpus(seed)?, Outcome::default());
    recorder.take();
    for index in 0..conversations {
        let mut talk = Talk::new(seed, conversations + index);
        for turn in 0..TURNS {
            talk.say(&corpus, turn);
            let body = body(&mut talk, index);
            let response =
                client.post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
            let answer: Value = response.context("ask")?.json().await.context("read the answer")?;
            let text = answer["choices"][0]["message"]["content"].as_str();
            let text = text.with_context(|| format!("no answer: {answer}"))?;
            talk.heard(text.to_owned(), &mut outcome);
        }
        talk.end(&recorder, &mut outcome)?;
    }
    drop(agent);
    // An error is ignored: a folder of settings that stays does no harm.
    let _left = std::fs::remove_dir_all(&folder);
    Ok(outcome)
}

/// Makes a request as one of three applications would send it.
fn body(talk: &mut Talk, index: usize) -> Value {
    let message = |m: &ChatMessage| json!({ "role": m.role.as_str(), "content": m.text });
    let last = talk.messages.len() - 1;
    let messages: Vec<Value> = match index % 3 {
        0 => talk.messages.iter().map(message).collect(),
        // Sends only the last answer and the new message.
        1 => talk.messages[last.saturating_sub(1)..].iter().map(message).collect(),
        _ => {
            let so_far: String = talk.messages[..last]
                .iter()
                .map(|m| format!("> {}\n", m.text.replace('\n', "\n> ")))
                .collect();
            vec![
                json!({ "role": "system", "content": format!("The talk so far:\n{so_far}") }),
                json!({ "role": "user", "content": [{ "type": "text", "text": talk.messages[last].text }] }),
            ]
        }
    };
    let mut body = json!({ "model": "baton", "messages": messages, "max_tokens": TOKENS_MAX });
    // A stop string that contains a value and never occurs in an answer.
    if let Some(canary) = talk.canaries.first().filter(|canary| canary.len() < 60) {
        body["stop"] = json!([format!("STOP {canary} HERE")]);
    }
    body
}
