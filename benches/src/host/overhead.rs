//! One answer through the host, beside a bare loop of engine and sampler in the same process.
//!
//! Both use the same engine, in turn, for the same prompt, and must write the same tokens. Nothing is kept in
//! the prefix cache. [`Alone`] also serves the part `cloud`, which tries prompts with it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use baton_engine::prompt::assemble;
use baton_engine::{
    BLOCK_TOKENS, Engine, EngineOptions, Model, PrefixScope, PromptSegment, Sampler, SamplingParams, StepSeq,
    TokenId, Wanted,
};
use baton_generate::answer::{Answer, AnswerOptions, TextMode};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, HostOptions};
use baton_generate::job::Job;
use baton_generate::scheduler::{BacklogBound, Goal, JobSpec, Limits, Share, StepBudget};
use baton_generate::speculation::{K_MAX, Speculation, SpeculationStats};
use baton_generate::unread::CancelFlag;
use baton_kernels_cpu::Format;
use baton_pacing::refit::median;
use baton_synthetic::SyntheticModel;
use serde_json::json;

use super::Bench;
use crate::engine::letters::Letters;
use crate::engine::machine::pin_busiest_threads;
use crate::report::Report;

/// Minimum rate through the host, as a share of that of the bare loop, with the large model.
const SHARE_MIN: f64 = 0.99;
/// Letters of a prompt.
const PROMPT: usize = 64;
const KV_TOKENS: usize = 4096;

/// A host with one slot, on this thread.
pub(super) struct Alone {
    host: Host<Engine>,
}

impl Alone {
    /// Opens a model.
    pub(super) fn open(model: &Path, threads: NonZeroUsize, speculation: &Speculation) -> Result<Self> {
        let opened = Model::open(model).with_context(|| format!("open {}", model.display()))?;
        let options = EngineOptions {
            threads: Some(threads),
            kv_tokens: KV_TOKENS,
            prefix_cache_percent: 0,
            ..EngineOptions::default()
        };
        let proposer = speculation.proposer(&opened, options.clone()).context("make proposals")?;
        let engine = Engine::new(opened, options).context("make an engine")?;
        let (proposer, speculation) = proposer.unzip();
        let limits = Limits {
            slots: 1,
            queue: 1,
            backlog: BacklogBound::NONE,
            kv_tokens: KV_TOKENS,
            kv_block: BLOCK_TOKENS,
            budget: StepBudget::default(),
            admit_tokens: 1,
            logit_rows: K_MAX + 1,
            speculation,
        };
        let host = Host::new(
            engine,
            HostOptions {
                limits,
                clock: Clock::monotonic(),
                emulation: None,
                turns: None,
                proposer,
                idle_sequences: 0,
                idle_for: None,
                watch: None,
            },
        );
        Ok(Self { host })
    }

    /// Returns the ids of a prompt of one user message.
    pub(super) fn prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        let model = self.host.engine().model();
        let parts = [PromptSegment { role: "user", text }];
        Ok(assemble(model.tokenizer(), model.template(), &parts).context("assemble a prompt")?.ids)
    }

    /// Writes `tokens` tokens through the host. Returns them with what came of proposals.
    pub(super) fn through_host(
        &mut self,
        prompt: &[TokenId],
        tokens: usize,
    ) -> Result<(Vec<TokenId>, SpeculationStats)> {
        let job = self.job(prompt.to_vec(), tokens)?;
        let done = self.host.run(job, &mut ()).context("run an answer")?;
        if let Some(fault) = done.answer.fault() {
            return Err(anyhow!("the answer failed: {fault}"));
        }
        let written = done.answer.tokens().to_vec();
        ensure!(written.len() == tokens, "{} tokens were written, must be {tokens}", written.len());
        Ok((written, done.closed.speculation.unwrap_or_default()))
    }

    fn job(&self, prompt: Vec<TokenId>, tokens: usize) -> Result<Job> {
        let model = self.host.engine().model();
        let spec = JobSpec {
            id: self.host.handle().new_id(),
            prompt_tokens: prompt.len(),
            max_tokens: tokens,
            floor_tokens: tokens,
            tail_tokens: 1,
            pass_tokens: usize::MAX,
            bytes: 0,
            deadline: None,
            share: Share::default(),
            goal: Goal::Write,
        };
        let answer = Answer::new(AnswerOptions {
            tokenizer: model.tokenizer().clone(),
            vocab_len: model.config().vocab_len,
            sampler: greedy()?,
            prompt,
            continued: Vec::new(),
            max_tokens: tokens,
            room_tokens: KV_TOKENS,
            text: TextMode::Ids,
            constraint: None,
            logprobs: None,
            window: None,
            evidence: None,
        });
        let (scope, cancel) = (PrefixScope::default(), CancelFlag::default());
        Ok(Job { spec, answer, scope, adapter: None, cancel, sink: Box::new(()) })
    }

    /// Writes `tokens` tokens by a bare loop over the same engine.
    fn bare(&mut self, prompt: &[TokenId], tokens: usize) -> Result<Vec<TokenId>> {
        let sampler = greedy()?;
        let engine = self.host.engine_mut();
        let seq = engine.create();
        let (mut written, mut ids) = (Vec::with_capacity(tokens), prompt.to_vec());
        while written.len() < tokens {
            let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
            let output = engine.step(&[step], &mut ()).context("compute a pass")?;
            let next = sampler.sample(&output[0].logits, written.len() as u64, &written);
            written.push(next);
            ids = vec![next];
        }
        engine.release(seq);
        Ok(written)
    }
}

fn greedy() -> Result<Sampler> {
    Sampler::new(SamplingParams::default()).context("make a sampler")
}

/// Measures both models and adds the table and the check.
pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let tiny = folder.path().join("tiny.gguf");
    let model = SyntheticModel { endless: true, ..SyntheticModel::small("llama", Format::Q8_0, 1) };
    std::fs::write(&tiny, model.to_gguf().context("make a tiny model")?).context("write a tiny model")?;
    let mut rows = Vec::new();
    for (name, path, tokens) in [("tiny", tiny.as_path(), 512), (&*bench.name, bench.model, bench.tokens)] {
        let mut alone = Alone::open(path, bench.threads, &Speculation::Off)?;
        let measured = one(&mut alone, bench, tokens)?;
        rows.push(measured.row(name));
        report.data(
            &format!("overhead {name}"),
            json!({ "share": measured.share, "us_a_pass": measured.pass_us,
            "host_tokens_per_s": measured.host, "bare_tokens_per_s": measured.bare }),
        );
        if !bench.quick && path == bench.model {
            report.check_at_least(
                format!("{name}: rate through the host, of a bare loop"),
                measured.share,
                SHARE_MIN,
            );
        }
    }
    let header = ["model", "host tokens/s", "bare loop", "ratio", "us a pass"];
    report.table("one answer through the host and by a bare loop", &header, &rows);
    Ok(())
}

/// The figures of one model: medians over turns.
struct Measured {
    host: f64,
    bare: f64,
    share: f64,
    /// Microseconds that the host adds to a pass.
    pass_us: f64,
}

impl Measured {
    fn row(&self, name: &str) -> Vec<String> {
        let rate = |rate: f64| format!("{rate:.1}");
        let (share, us) = (format!("{:.4}", self.share), format!("{:.1}", self.pass_us));
        vec![name.to_owned(), rate(self.host), rate(self.bare), share, us]
    }
}

fn one(alone: &mut Alone, bench: &Bench<'_>, tokens: usize) -> Result<Measured> {
    let mut letters = Letters::new(11);
    let warm = alone.prompt(&letters.prompt(PROMPT))?;
    pin_busiest_threads(bench.threads.get(), || alone.bare(&warm, 16).map(drop))?;
    let (mut host_s, mut bare_s) = (Vec::new(), Vec::new());
    for at in 0..2 * bench.alternations {
        let prompt = alone.prompt(&letters.prompt(PROMPT))?;
        let mut written = Vec::new();
        for turn in 0..2 {
            let begun = Instant::now();
            if (at + turn) % 2 == 0 {
                written.push(alone.through_host(&prompt, tokens)?.0);
                host_s.push(begun.elapsed().as_secs_f64());
            } else {
                written.push(alone.bare(&prompt, tokens)?);
                bare_s.push(begun.elapsed().as_secs_f64());
            }
        }
        ensure!(written[0] == written[1], "host and bare loop wrote different tokens");
        eprintln!("overhead: host {:.4} s, bare loop {:.4} s", host_s[at], bare_s[at]);
    }
    let of = |values: Vec<f64>| median(values).context("a turn was measured");
    let pairs = || host_s.iter().zip(&bare_s);
    let rate = |seconds: &[f64]| of(seconds.iter().map(|seconds| tokens as f64 / seconds).collect());
    Ok(Measured {
        host: rate(&host_s)?,
        bare: rate(&bare_s)?,
        share: of(pairs().map(|(host, bare)| bare / host).collect())?,
        pass_us: of(pairs().map(|(host, bare)| (host - bare) * 1e6 / tokens as f64).collect())?,
    })
}
