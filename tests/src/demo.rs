//! The demo: one question about a long document, answered by the device alone, by the cloud alone, and by the
//! relay.
//!
//! All figures come from the programs' own reports and from the proxy between them.

pub mod ask;
pub mod emulation;
pub mod odds;
mod random;
pub mod real;
mod ring;
mod table;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use baton_corpus::QuestionKind;
use baton_engine::Model;
use baton_terminal::{errln, out, outln};
use serde_json::json;

use self::{
    ask::{Ask, Report},
    emulation::{CLOUD, PHONE},
    odds::MEASURED,
};
use crate::{
    process::CloudProcess,
    proxy::{Cut, Proxy},
    question::{self, Wanted},
};

/// Least tokens of the answer, so that the device has a part to write after the cloud's.
const ANSWER_TOKENS_MIN: usize = 56;
/// Most tokens of an answer.
const ANSWER_TOKENS_MAX: usize = 200;

/// Least tokens of a generated document. The models copy from documents of this length without errors, and
/// are wrong about one in ten documents of twice the length (models/README.md).
pub const DOCUMENT_TOKENS: u32 = 1000;

/// What is asked about.
#[derive(Debug, Clone)]
pub enum About {
    /// A generated document, chosen by the seed.
    Generated,
    /// The article that comes with the demo.
    Article,
    /// The user's own document file and question.
    Own(PathBuf, String),
}

/// The right answer.
#[derive(Debug, Clone)]
enum Expected {
    /// This text.
    Text(String),
    /// Any text with all of these words, in small letters.
    Words([&'static str; 2]),
}

impl Expected {
    fn is(&self, answer: &str) -> bool {
        match self {
            Expected::Text(text) => answer.trim() == text.trim(),
            Expected::Words(words) => {
                let answer = answer.to_lowercase();
                words.iter().all(|words| answer.contains(words))
            }
        }
    }
}

/// The options of the demo.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Seed that selects document, question and sampling.
    pub seed: u64,
    /// Print one JSON object instead of the table.
    pub json: bool,
    /// Print neither the steps nor the answers as they come.
    pub quiet: bool,
    /// Do not emulate speeds.
    pub real: bool,
    /// The document and the question.
    pub about: About,
    /// GGUF file of the cloud's model.
    pub cloud_model: PathBuf,
    /// GGUF file of the device's model.
    pub device_model: PathBuf,
    /// Least length of the generated document, in tokens.
    pub document_tokens_min: usize,
}

/// The results of the four runs.
#[derive(Debug)]
pub struct Outcome {
    seed: u64,
    emulated: bool,
    expected: Option<Expected>,
    device_alone: Report,
    cloud_alone: Report,
    cloud_alone_wire: Wire,
    relay: Report,
    relay_wire: Wire,
    /// The device alone over sentences chosen at random; `None` for the user's own document.
    random_sentences: Option<Report>,
}

/// Bytes between device and cloud during one run.
#[derive(Debug, Clone, Copy)]
struct Wire {
    up: u64,
    down: u64,
}

impl Outcome {
    /// Returns whether a run gave the right answer; `None` for the user's own document.
    fn correct(&self, report: &Report) -> Option<bool> {
        is_right(self.expected.as_ref(), report)
    }

    /// Whether the odds that were measured are those of this task: a generated document.
    fn has_odds(&self) -> bool {
        matches!(self.expected, Some(Expected::Text(_)))
    }

    fn json(&self) -> serde_json::Value {
        let relay = &self.relay;
        json!({
            "seed": self.seed,
            "emulated": self.emulated,
            "answer": relay.answer,
            "answer_correct": self.correct(relay),
            "device_alone_correct": self.correct(&self.device_alone),
            "cloud_alone_correct": self.correct(&self.cloud_alone),
            "random_sentences_correct": self.random_sentences.as_ref().and_then(|report| self.correct(report)),
            "tokens_from_device": relay.tokens_from_device,
            "tokens_from_cloud": relay.tokens_from_cloud,
            "assist_tokens": relay.assist_tokens,
            "ttft_user_ms": relay.ttft_user_ms,
            "ttft_device_ms": relay.ttft_device_ms,
            "ttft_device_alone_ms": self.device_alone.ttft_device_ms,
            "gap_max_ms": relay.gap_max_ms,
            "gap_p99_ms": relay.gap_p99_ms,
            "tau_ms": relay.tau_ms,
            "total_ms": relay.total_ms,
            "prompt_tokens": relay.prompt_tokens,
            "prompt_tokens_refined": relay.prompt_tokens_refined,
            "refined_ratio": relay.refined_ratio,
            "mask_bytes": relay.mask_bytes,
            "wire_bytes_up": self.relay_wire.up,
            "wire_bytes_down": self.relay_wire.down,
            "cloud_slot_ms": relay.cloud_slot_ms(),
            "cloud_alone_slot_ms": self.cloud_alone.cloud_slot_ms(),
            "notes": relay.notes,
            "device_alone": self.device_alone,
            "cloud_alone": self.cloud_alone,
            "relay": relay,
            "odds": self.has_odds().then(|| MEASURED.json()),
        })
    }
}

fn is_right(expected: Option<&Expected>, report: &Report) -> Option<bool> {
    expected.map(|expected| expected.is(&report.answer))
}

/// A demo that has not run yet.
#[derive(Debug)]
pub struct Demo {
    options: DemoOptions,
}

/// The document on disk, the question, and the right answer if it is known.
struct Task {
    document: PathBuf,
    question: String,
    expected: Option<Expected>,
}

impl Task {
    fn is_right(&self, report: &Report) -> Option<bool> {
        is_right(self.expected.as_ref(), report)
    }
}

impl Demo {
    /// Makes a demo with these options.
    #[must_use]
    pub fn new(options: DemoOptions) -> Self {
        Self { options }
    }

    fn say(&self, line: &str) {
        if !self.options.quiet {
            errln!("{line}");
        }
    }

    /// Runs the programs and prints the table or the JSON object.
    ///
    /// # Errors
    /// Fails if a program or model is missing, or a run failed; the message says which.
    pub async fn run(&self) -> anyhow::Result<()> {
        let scratch = tempfile::tempdir().context("make a folder for the demo")?;
        let task = self.task(scratch.path()).await?;
        if self.options.real {
            self.say("no emulation: this machine plays both the phone and the cloud at its own speed");
        } else {
            self.say(&format!("EMULATED phone: {}", PHONE.describe()));
            self.say(&format!("EMULATED cloud: {}", CLOUD.describe()));
        }
        let outcome = self.ask_every_way(&task, scratch.path()).await?;
        if self.options.json {
            outln!("{}", outcome.json())?;
        } else {
            out!("{}", table::render(&outcome))?;
            if self.options.real {
                outln!("{}", table::verdict(&outcome))?;
            }
            if outcome.has_odds() {
                outln!("{}", MEASURED.describe())?;
            }
        }
        Ok(())
    }

    /// Checks that the files exist, before anything runs.
    fn check_files(&self) -> anyhow::Result<()> {
        let DemoOptions { about, cloud_model, device_model, .. } = &self.options;
        let document = match about {
            About::Own(document, _) => Some(document),
            About::Generated | About::Article => None,
        };
        for path in document.into_iter().chain([cloud_model, device_model]) {
            let opened = std::fs::File::open(path).and_then(|file| file.metadata());
            if !opened.with_context(|| format!("open `{}`", path.display()))?.is_file() {
                bail!("`{}` is no file", path.display());
            }
        }
        Ok(())
    }

    fn speed(&self, speed: emulation::Speed) -> Vec<OsString> {
        if self.options.real { Vec::new() } else { speed.options() }
    }

    async fn task(&self, scratch: &Path) -> anyhow::Result<Task> {
        self.check_files()?;
        match &self.options.about {
            About::Own(document, question) => {
                return Ok(Task { document: document.clone(), question: question.clone(), expected: None });
            }
            About::Article => {
                let (document, question) = (real::article(), real::QUESTION.to_owned());
                self.say(&format!("document: `{}`; question: {question}", document.display()));
                return Ok(Task { document, question, expected: Some(Expected::Words(real::WORDS)) });
            }
            About::Generated => (),
        }
        let model = Model::open(&self.options.cloud_model).context("open the cloud's model")?;
        let wanted = Wanted {
            seed: self.options.seed,
            document_tokens_min: self.options.document_tokens_min,
            answer_tokens_min: ANSWER_TOKENS_MIN,
            kind: QuestionKind::Long,
        };
        let asked = question::ask(model.tokenizer(), wanted)?;
        let document = scratch.join("document.md");
        tokio::fs::write(&document, &asked.document.text).await.context("write the document")?;
        self.say(&format!(
            "document: {} tokens, seed {}; question: {}",
            asked.document_tokens, self.options.seed, asked.question.text
        ));
        Ok(Task {
            document,
            question: asked.question.text,
            expected: Some(Expected::Text(asked.question.answer)),
        })
    }

    async fn ask_every_way(&self, task: &Task, scratch: &Path) -> anyhow::Result<Outcome> {
        self.say("\n1. the device alone");
        let device_alone = self.ask(task, scratch, None, &["--mode", "device"]).await?;
        self.say("\n2. the cloud alone");
        let (cloud_alone, cloud_alone_wire) = self.ask_cloud(task, scratch, &["--mode", "cloud"]).await?;
        self.say("\n3. the relay");
        let (relay, relay_wire) = self.ask_cloud(task, scratch, &["--mode", "relay"]).await?;
        let random_sentences = self.ask_about_random_sentences(task, scratch, &relay).await?;
        Ok(Outcome {
            seed: self.options.seed,
            emulated: !self.options.real,
            expected: task.expected.clone(),
            device_alone,
            cloud_alone,
            cloud_alone_wire,
            relay,
            relay_wire,
            random_sentences,
        })
    }

    /// Asks with a new cloud behind a proxy; a cloud that was asked before would have the document in its KV
    /// cache.
    async fn ask_cloud(&self, task: &Task, scratch: &Path, more: &[&str]) -> anyhow::Result<(Report, Wire)> {
        let cloud = CloudProcess::start(&self.options.cloud_model, &self.speed(CLOUD)).await?;
        let proxy = Proxy::start(cloud.address(), Cut::Never).await?;
        let report = self.ask(task, scratch, Some(&proxy), more).await?;
        Ok((report, Wire { up: proxy.count().up(), down: proxy.count().down() }))
    }

    /// Asks the device alone about sentences chosen at random, as many tokens of them as the relay kept.
    /// Without a known answer that would show nothing, so it is left out.
    async fn ask_about_random_sentences(
        &self,
        task: &Task,
        scratch: &Path,
        relay: &Report,
    ) -> anyhow::Result<Option<Report>> {
        if task.expected.is_none() {
            return Ok(None);
        }
        self.say(
            "\n4. the device alone over as many sentences chosen at random, to see that the sentences matter",
        );
        let model = Model::open(&self.options.cloud_model).context("open the cloud's model")?;
        let text = tokio::fs::read_to_string(&task.document).await.context("read the document")?;
        let ratio = relay.refined_ratio.unwrap_or(1.0) as f32;
        let text = random::random_sentences(&model, &text, ratio, self.options.seed)?;
        let document = scratch.join("random.md");
        tokio::fs::write(&document, text).await.context("write the sentences chosen at random")?;
        let task = Task { document, question: task.question.clone(), expected: task.expected.clone() };
        self.ask(&task, scratch, None, &["--mode", "device"]).await.map(Some)
    }

    async fn ask(
        &self,
        task: &Task,
        scratch: &Path,
        cloud: Option<&Proxy>,
        more: &[&str],
    ) -> anyhow::Result<Report> {
        let mut options = self.speed(PHONE);
        options.extend(["--max-tokens".into(), ANSWER_TOKENS_MAX.to_string().into()]);
        options.extend(["--seed".into(), self.options.seed.to_string().into()]);
        if let Some(proxy) = cloud {
            options.extend(["--cloud".into(), proxy.url().into()]);
        }
        options.extend(more.iter().map(OsString::from));
        let ask = Ask {
            document: &task.document,
            question: &task.question,
            model: &self.options.device_model,
            scratch,
            options,
            live: !self.options.json && !self.options.quiet,
        };
        ask.run().await
    }
}
