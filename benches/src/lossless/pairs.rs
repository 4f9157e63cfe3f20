//! The pairs of models, and the questions that they answer.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use baton_corpus::{QuestionKind, document};
use baton_e2e::pair::{PHONE, Pair, Question, demo_model};
use baton_engine::Model;
use baton_engine::gguf::Gguf;
use baton_kernels_cpu::Format;
use baton_protocol::{Role, Sampling, Segment};

use super::{Args, CLOUD, TRIPS_MS};
use crate::copied::requantized;
use crate::report::Report;

/// Most tokens of an answer.
const TOKENS_MAX: usize = 96;
/// Share of the content that the device reads.
const RATIO: f32 = 0.3;
/// The real model's own copies that draft: the format, and that of rows which have no super-blocks.
const COPIES: [(&str, Format, Format); 3] = [
    ("Q4_K", Format::Q4K, Format::Q5_0),
    ("Q3_K", Format::Q3K, Format::Q4_0),
    ("Q2_K", Format::Q2K, Format::Q4_0),
];
/// The round trip of the real pairs, in milliseconds.
const REAL_TRIPS_MS: [f64; 1] = [100.0];
/// Seed of the documents: none of them was used for training or calibration.
const SEED: u64 = 7_000_000;
/// Bytes of the article in one prompt, at most.
const PART_BYTES: usize = 1_500;
/// What is asked about each part of the article.
const QUESTIONS: [&str; 4] = [
    "What is this text about?",
    "Which numbers does the text give, and what do they count?",
    "Which places does the text name?",
    "Explain the text in two sentences.",
];

/// Two models and what they are asked.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) pair: Pair,
    pub(super) questions: Vec<Question>,
    models: [Arc<Model>; 2],
    trips_ms: &'static [f64],
}

impl Subject {
    fn new(
        name: String,
        models: [Arc<Model>; 2],
        questions: Vec<Question>,
        trips_ms: &'static [f64],
    ) -> Result<Subject> {
        let pair = pair(&models)?;
        Ok(Subject { name, pair, questions, models, trips_ms })
    }

    pub(super) fn trips_ms(&self) -> &'static [f64] {
        self.trips_ms
    }

    /// Returns the same pair with empty caches.
    pub(super) fn fresh(&self) -> Result<Subject> {
        let (name, questions) = (self.name.clone(), self.questions.clone());
        Subject::new(name, self.models.clone(), questions, self.trips_ms)
    }

    /// Returns the keys and values that the cloud has kept for the device's drafts, in byte-seconds.
    pub(super) fn open_byte_seconds(&self) -> f64 {
        let metrics = self.pair.cloud.service().render_metrics();
        let line = metrics.lines().find(|line| line.starts_with("baton_open_kv_byte_seconds_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

fn pair([cloud, device]: &[Arc<Model>; 2]) -> Result<Pair> {
    Pair::at(cloud.clone(), device.clone(), RATIO, (PHONE, CLOUD))
}

fn sampling(number: usize) -> Sampling {
    match number.is_multiple_of(2) {
        true => Sampling::default(),
        false => Sampling { temperature: 0.8, seed: number as u64, ..Sampling::default() },
    }
}

/// Returns the demo models.
pub(super) fn demo(answers: usize) -> Result<Subject> {
    let models = [demo_model("demo-cloud.gguf")?, demo_model("demo-device.gguf")?];
    let questions = (0..answers).map(|number| {
        let document = document(SEED + number as u64, 150 + 20 * (number % 10));
        let asked = document.question(QuestionKind::Long).context("a document has a long question")?;
        Ok(Question { sampling: sampling(number), ..Question::about(&document, &asked.text, TOKENS_MAX) })
    });
    Subject::new("demo".to_owned(), models, questions.collect::<Result<_>>()?, &TRIPS_MS)
}

/// Returns all pairs.
pub(super) fn subjects(args: &Args, report: &mut Report) -> Result<Vec<Subject>> {
    let mut subjects = vec![demo(args.answers)?];
    if args.no_real {
        report.note("skipped: the real model: --no-real");
        return Ok(subjects);
    }
    let path = match &args.model {
        Some(path) => path.clone(),
        None => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            runtime.block_on(baton_e2e::demo::real::model())?
        }
    };
    let file = Gguf::open(&path).with_context(|| format!("open {}", path.display()))?;
    let cloud = Model::open(&path).context("open the real model")?;
    for (name, format, narrow) in COPIES {
        let bytes = requantized(&file, format, narrow).with_context(|| format!("encode as {name}"))?;
        let device = Model::from_gguf(Gguf::from_bytes(bytes)?).context("open the copy")?;
        let models = [cloud.clone(), device];
        let name = format!("{} with its {name}", cloud.name());
        subjects.push(Subject::new(name, models, about_an_article(args.real_answers)?, &REAL_TRIPS_MS)?);
    }
    Ok(subjects)
}

/// Returns questions about parts of an article that people wrote.
fn about_an_article(answers: usize) -> Result<Vec<Question>> {
    let text = std::fs::read_to_string(baton_e2e::demo::real::article()).context("read the article")?;
    let mut parts: Vec<String> = vec![String::new()];
    for paragraph in text.split("\n\n").filter(|paragraph| paragraph.len() > 80) {
        let last = parts.last_mut().context("there is a part")?;
        if !last.is_empty() && last.len() + paragraph.len() > PART_BYTES {
            parts.push(paragraph.to_owned());
        } else {
            last.push_str(paragraph);
            last.push_str("\n\n");
        }
    }
    if parts[0].is_empty() {
        bail!("the article has no paragraphs");
    }
    let question = |number: usize| Question {
        segments: vec![
            Segment::fixed(Role::System, "You answer from the document."),
            Segment::refinable(Role::User, parts[number % parts.len()].clone()),
            Segment::fixed(Role::User, format!("\n\nQuestion: {}", QUESTIONS[number % QUESTIONS.len()])),
        ],
        sampling: sampling(number),
        tokens_max: TOKENS_MAX,
        assist_tokens: None,
        refine_mode: None,
        mode: baton_device::relay::RelayMode::Relay,
    };
    Ok((0..answers).map(question).collect())
}
