//! Proposed tokens in the cloud service: `baton-cloud serve` with `--speculate auto` and `off`, in turn.
//!
//! Text with repeats comes from a copy of the model whose layers add nothing, so that it writes one letter
//! again and again. This is the best case for proposals; a pass costs what it costs with the model itself.
//! Warm answers of the model itself hardly repeat. Both services must write the same texts.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use baton_engine::gguf::Gguf;
use baton_engine::prompt::assemble;
use baton_engine::{Model, PromptSegment};
use baton_generate::speculation::Speculation;
use serde_json::{Value, json};

use super::clients::{Ask, Heard, Program, Until, program, tokens_per_s};
use super::overhead::Alone;
use super::{Bench, text};
use crate::engine::letters::Letters;
use crate::engine::samples::Samples;
use crate::engine::target_folder;
use crate::report::Report;

/// Answers at once.
const STREAMS: [usize; 3] = [1, 2, 8];
const STREAMS_MAX: usize = 8;
/// Letters of a prompt.
const PROMPT: usize = 64;
/// Prompts that are tried until enough of them repeat.
const TRIED: u64 = 32;
/// An answer repeats if at least this share of the proposals is right, and this share of its tokens comes
/// from them.
const REPEATS_MIN: f64 = 0.5;
/// Temperature of answers without repeats.
const WARM: f64 = 1.2;
/// Minimum gain of one stream whose text repeats.
const ONE_GAIN_MIN: f64 = 1.5;
/// Minimum rate of all others, as a share of the rate without proposals.
const OTHERS_MIN: f64 = 0.97;

const OFF: &str = "off";
const AUTO: &str = "auto";

/// Kinds of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Repeats,
    Differs,
}

/// A prompt whose answer repeats.
struct Repeating {
    prompt: String,
    /// Share of the proposals that were right.
    acceptance: f64,
    /// Share of the tokens that came from proposals.
    share: f64,
}

/// Measures and adds the tables and the checks.
pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in(target_folder()?).context("make a folder for a copy of the model")?;
    let copy = folder.path().join("repeats.gguf");
    copy_that_repeats(bench.model, &copy)?;
    let repeats = Bench { model: &copy, name: bench.name.clone(), ..*bench };
    let repeating = repeating(&repeats)?;
    let figure = |of: fn(&Repeating) -> f64| repeating.iter().map(of).fold(f64::INFINITY, f64::min);
    let (acceptance, share) = (figure(|one| one.acceptance), figure(|one| one.share));
    report.note(format!(
        "{STREAMS_MAX} prompts whose answers repeat: at least {acceptance:.2} of their proposed tokens are right, \
         and at least {share:.2} of their tokens come from proposals"
    ));
    let (mut samples, mut differ) = (Samples::default(), 0);
    for (kind, bench) in [(Text::Repeats, &repeats), (Text::Differs, bench)] {
        let services = Services::start(bench)?;
        for at in 0..bench.alternations {
            for streams in STREAMS {
                let asks = asks(kind, streams, &repeating, bench.tokens);
                differ += services.turn(&asks, &figure_name(kind, streams), at, &mut samples)?;
            }
        }
    }
    table(bench, &samples, report);
    report.data("repeats", json!({ "acceptance_min": acceptance, "share_min": share }));
    report.check_equal("cloud: texts that differ with proposals", differ as f64, 0.0);
    if !bench.quick {
        checks(&samples, report);
    }
    Ok(())
}

/// Copies a model. The copy has zeros in place of the weights that norms before a layer's parts multiply
/// with, and the last token of a prompt is embedded as a letter.
fn copy_that_repeats(model: &Path, copy: &Path) -> Result<()> {
    fs::copy(model, copy).with_context(|| format!("copy {}", model.display()))?;
    let opened = Model::open(model).context("open the model")?;
    let parts = [PromptSegment { role: "user", text: "a" }];
    let prompt = assemble(opened.tokenizer(), opened.template(), &parts).context("assemble a prompt")?;
    let last = *prompt.ids.last().context("the prompt is empty")? as usize;
    let letter = *opened.tokenizer().encode_answer("a").0.first().context("no token for a letter")? as usize;
    let gguf = Gguf::open(model).context("read the directory of the model file")?;
    let file = OpenOptions::new().write(true).open(copy).context("open the copy")?;
    for tensor in gguf.tensors() {
        let (name, place) = (tensor.name(), tensor.place());
        let range = place.range();
        if name.ends_with(".attn_norm.weight") || name.ends_with(".ffn_norm.weight") {
            file.write_all_at(&vec![0; range.len()], range.start as u64).context("write the copy")?;
        } else if name == "token_embd.weight" {
            let row = range.len() / opened.config().vocab_len;
            let bytes = &gguf.bytes_at(place)[letter * row..(letter + 1) * row];
            file.write_all_at(bytes, (range.start + last * row) as u64).context("write the copy")?;
        }
    }
    Ok(())
}

/// Finds prompts whose greedy answers repeat, by proposals that are always made.
fn repeating(bench: &Bench<'_>) -> Result<Vec<Repeating>> {
    let mut alone = Alone::open(bench.model, bench.threads, &Speculation::Lookup)?;
    let mut found = Vec::new();
    for seed in 1..=TRIED {
        let prompt = Letters::new(seed).prompt(PROMPT);
        let ids = alone.prompt(&prompt)?;
        let (_, stats) = alone.through_host(&ids, bench.tokens)?;
        let share = stats.accepted as f64 / bench.tokens as f64;
        let acceptance = stats.acceptance().unwrap_or(0.0);
        eprintln!(
            "prompt {seed}: {acceptance:.2} of the proposals right, {share:.2} of the tokens from them"
        );
        if acceptance >= REPEATS_MIN && share >= REPEATS_MIN {
            found.push(Repeating { prompt, acceptance, share });
        }
        if found.len() == STREAMS_MAX {
            return Ok(found);
        }
    }
    bail!("of {TRIED} prompts only {} have answers that repeat, must be {STREAMS_MAX}", found.len())
}

fn asks(kind: Text, streams: usize, repeating: &[Repeating], tokens: usize) -> Vec<Ask> {
    (0..streams)
        .map(|at| match kind {
            Text::Repeats => Ask { prompt: repeating[at].prompt.clone(), tokens, temperature: 0.0, seed: 1 },
            Text::Differs => {
                let prompt = Letters::new(100 + at as u64).prompt(PROMPT);
                Ask { prompt, tokens, temperature: WARM, seed: 1 + at as u64 }
            }
        })
        .collect()
}

fn figure_name(kind: Text, streams: usize) -> String {
    let kind = match kind {
        Text::Repeats => "text with repeats",
        Text::Differs => "text without repeats",
    };
    format!("{kind}, {streams} at once")
}

/// Two services of the same model, with and without proposals.
struct Services {
    off: Program,
    auto: Program,
}

impl Services {
    fn start(bench: &Bench<'_>) -> Result<Self> {
        let services = Self { off: service(bench, OFF)?, auto: service(bench, AUTO)? };
        let warm = asks(Text::Differs, 2, &[], 16);
        services.off.answers(&warm)?;
        services.auto.answers(&warm)?;
        Ok(services)
    }

    /// Measures both, the first one alternating. Returns the number of texts that differ.
    fn turn(&self, asks: &[Ask], figure: &str, at: usize, samples: &mut Samples) -> Result<usize> {
        let mut both = [(OFF, &self.off), (AUTO, &self.auto)];
        both.rotate_left(at % 2);
        let mut texts: Vec<Vec<String>> = Vec::new();
        for (name, service) in both {
            let heard = service.answers(asks)?;
            let rate = tokens_per_s(&heard, Until::LastEnd).context("the answers have no length")?;
            eprintln!("cloud {}: {figure}: {name} {rate:.1} tokens/s", at + 1);
            samples.add(figure, name, at, rate);
            texts.push(heard.into_iter().map(|Heard { text, .. }| text).collect());
        }
        Ok(texts[0].iter().zip(&texts[1]).filter(|(one, other)| one != other).count())
    }
}

fn service(bench: &Bench<'_>, speculate: &str) -> Result<Program> {
    let options = [
        ("--threads", bench.threads.to_string()),
        ("--slots", STREAMS_MAX.to_string()),
        ("--kv-tokens", (STREAMS_MAX * 1024).to_string()),
        // Prompts are sent again in every turn.
        ("--prefix-cache", "0".to_owned()),
        ("--queue-seconds", "3600".to_owned()),
        ("--speculate", speculate.to_owned()),
    ];
    let options: Vec<String> =
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    Program::cloud(&program("baton-cloud", None)?, bench.model, &options)
}

fn row(samples: &Samples, figure: &str) -> (Vec<String>, Value) {
    let (auto, off) = (samples.median(figure, AUTO), samples.median(figure, OFF));
    let ratio = samples.ratio(figure, AUTO, &[OFF]);
    let data =
        json!({ "figure": figure, "auto_tokens_per_s": auto, "off_tokens_per_s": off, "ratio": ratio });
    (vec![figure.to_owned(), text(auto, 1), text(off, 1), text(ratio, 3)], data)
}

fn table(bench: &Bench<'_>, samples: &Samples, report: &mut Report) {
    let figures =
        [Text::Repeats, Text::Differs].into_iter().flat_map(|kind| STREAMS.map(|streams| (kind, streams)));
    let (rows, data): (Vec<_>, Vec<_>) =
        figures.map(|(kind, streams)| row(samples, &figure_name(kind, streams))).unzip();
    let title = format!("{}: proposed tokens in the cloud, tokens/s", bench.name);
    report.table(&title, &["", "--speculate auto", "off", "ratio"], &rows);
    report.data("speculation", data);
}

fn checks(samples: &Samples, report: &mut Report) {
    for kind in [Text::Repeats, Text::Differs] {
        for streams in STREAMS {
            let least = if (kind, streams) == (Text::Repeats, 1) { ONE_GAIN_MIN } else { OTHERS_MIN };
            let figure = figure_name(kind, streams);
            let ratio = samples.ratio(&figure, AUTO, &[OFF]).unwrap_or(f64::NAN);
            report.check_at_least(format!("cloud: {figure}, of --speculate off"), ratio, least);
        }
    }
}
