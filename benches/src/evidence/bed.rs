//! One model that answers questions and cites, by the parts that device and cloud use.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_engine::prompt::{Prompt, PromptSegment, assemble};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, HeadId, Model, SeqId, StepSeq, Wanted};
use baton_eval::case::Case;
use baton_eval::writer::{CHUNK_TOKENS, greedy, text_of};
use baton_generate::answer::{Answer, AnswerOptions, TextMode};
use baton_generate::evidence::{Evidence, KeyGroups};
use baton_generate::scheduler::{JobId, PrefillEnd, StepRow};
use baton_protocol::{Segment, SentenceMap};
use baton_random::SplitMix64;
use baton_refine::{
    Attended, AttentionShape, Cited, ContentTokens, Source, Sources, bm25_values, cited, citing,
};

/// Most tokens of an answer.
const ANSWER_TOKENS: usize = 40;
/// Times that an answer's decoding is timed in each way; the fastest counts.
const RUNS: usize = 5;
/// Citations, and best sentences by BM25, that are looked at.
const FIRST: usize = 2;

/// An opened model.
pub(super) struct Bed {
    name: String,
    engine: Engine,
    heads: Vec<HeadId>,
}

/// What came of one question.
pub(super) struct Told {
    /// The answer's text.
    pub(super) answer: String,
    /// Whether a gold sentence is among the first citations.
    pub(super) cited: bool,
    /// The same, if words do not count.
    pub(super) by_attention: bool,
    /// Whether a gold sentence is among the best by BM25 against the question.
    pub(super) bm25: bool,
    /// The same against the answer.
    pub(super) bm25_answer: bool,
    /// Whether the answer holds the right one.
    pub(super) right: bool,
    /// The citations of the first sentence, and the number of sentences.
    sources: (Vec<usize>, usize),
}

/// Seconds of decoding, with and without the record.
pub(super) struct Cost {
    pub(super) with: f64,
    pub(super) without: f64,
    /// Tokens of one run.
    pub(super) tokens: f64,
}

/// A question as the model gets it.
struct Asked {
    segments: Vec<Segment>,
    prompt: Prompt,
    sources: Sources,
    of_positions: Vec<Option<u32>>,
}

/// An answer with its record.
struct Written {
    ids: Vec<TokenId>,
    rows: Vec<Vec<f32>>,
    decode_s: f64,
}

impl Cost {
    pub(super) fn percent(&self) -> f64 {
        100.0 * (self.with / self.without - 1.0)
    }
}

impl Told {
    /// Returns the sentence that is cited first, and a random one that is not cited.
    pub(super) fn to_delete(&self, random: &mut SplitMix64) -> Option<(usize, usize)> {
        let (cited, count) = &self.sources;
        let others: Vec<usize> = (0..*count).filter(|source| !cited.contains(source)).collect();
        Some((*cited.first()?, *others.get(random.below(others.len().max(1)))?))
    }
}

impl Bed {
    /// Opens a model.
    pub(super) fn open(path: &Path) -> Result<Bed> {
        let model = Model::open(path).with_context(|| format!("open model `{}`", path.display()))?;
        let config = model.config();
        let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
        let heads = citing(shape, |layer| config.sees_all(layer)).into_iter();
        let heads = heads.map(|(layer, head)| HeadId { layer, head }).collect();
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let options = EngineOptions { kv_tokens: 8192, ..EngineOptions::default() };
        Ok(Bed { name, engine: Engine::new(model, options)?, heads })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn heads(&self) -> usize {
        self.heads.len()
    }

    /// Asks a question, and looks at what is cited for the first sentence of the answer.
    pub(super) fn ask(&mut self, case: &Case) -> Result<Told> {
        let asked = self.asked(case.segments())?;
        let written = self.answer(&asked, true)?;
        let tokenizer = Arc::clone(self.engine.model().tokenizer());
        let answer = text_of(&tokenizer, &written.ids);
        let starts = (0..written.ids.len()).map(|n| text_of(&tokenizer, &written.ids[..n]).len());
        let starts: Vec<usize> = starts.collect();
        let document = asked.segments.iter().position(|segment| segment.refine).unwrap_or_default();
        let gold = |source: &Source| {
            let touches = |gold: &std::ops::Range<usize>| {
                gold.start < source.bytes.end && source.bytes.start < gold.end
            };
            source.segment == document && case.gold.iter().any(touches)
        };
        let first = |segments: &[Segment]| {
            let all = cited(&answer, &asked.attended(segments, &written.rows, &starts));
            all.into_iter().next().map(sources_of).unwrap_or_default()
        };
        let is_gold = |sources: &[usize]| sources.iter().any(|source| gold(&asked.sources.all()[*source]));
        // Without a question there are no words.
        let mut wordless = asked.segments.clone();
        wordless.push(Segment::fixed(baton_protocol::Role::User, ""));
        let sources = first(&asked.segments);
        Ok(Told {
            cited: is_gold(&sources),
            by_attention: is_gold(&first(&wordless)),
            bm25: self.bm25(&asked, case, &case.question),
            bm25_answer: self.bm25(&asked, case, &answer),
            right: case.answers.iter().any(|right| holds(&answer, right)),
            sources: (sources, asked.sources.all().len()),
            answer,
        })
    }

    /// Returns whether a gold sentence is among the best by BM25.
    fn bm25(&self, asked: &Asked, case: &Case, query: &str) -> bool {
        let map = SentenceMap::new(&asked.segments);
        let values = bm25_values(&asked.segments, &map, query);
        let mut order: Vec<usize> = (0..map.len()).filter(|unit| !map.unit(*unit).title).collect();
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
        let gold = case.gold_units(&map);
        order.iter().take(FIRST).any(|unit| gold.contains(unit))
    }

    /// Returns the answer to the question without one sentence of the text.
    pub(super) fn answer_without(&mut self, case: &Case, source: usize) -> Result<String> {
        let mut segments = case.segments();
        let Source { segment, bytes } = Sources::of(&segments).all()[source].clone();
        segments[segment].text.replace_range(bytes, "");
        let asked = self.asked(segments)?;
        let written = self.answer(&asked, false)?;
        Ok(text_of(self.engine.model().tokenizer(), &written.ids))
    }

    /// Times the decoding of answers with and without the record, in turn.
    pub(super) fn cost(&mut self, cases: &[Case]) -> Result<Cost> {
        let mut cost = Cost { with: 0.0, without: 0.0, tokens: 0.0 };
        for case in cases {
            let asked = self.asked(case.segments())?;
            let mut best = [f64::INFINITY; 2];
            for run in 0..2 * RUNS {
                let written = self.answer(&asked, run % 2 == 0)?;
                best[run % 2] = best[run % 2].min(written.decode_s);
                cost.tokens += if run == 0 { written.ids.len() as f64 } else { 0.0 };
            }
            cost.with += best[0];
            cost.without += best[1];
        }
        Ok(cost)
    }

    fn asked(&self, segments: Vec<Segment>) -> Result<Asked> {
        let model = self.engine.model();
        let parts: Vec<PromptSegment<'_>> =
            segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
        let prompt = assemble(model.tokenizer(), model.template(), &parts)?;
        let sources = Sources::of(&segments);
        let parts = prompt.segments.iter().map(|part| (part.tokens.start, part.spans.as_slice()));
        let tokens = ContentTokens::of_all(parts);
        let of_positions = sources.of_positions(&segments, &tokens, &[], prompt.ids.len());
        Ok(Asked { segments, prompt, sources, of_positions })
    }

    /// Writes the answer, token by token.
    fn answer(&mut self, asked: &Asked, records: bool) -> Result<Written> {
        let seq = self.engine.create();
        let written = self.write(seq, asked, records);
        self.engine.release(seq);
        written
    }

    fn write(&mut self, seq: SeqId, asked: &Asked, records: bool) -> Result<Written> {
        let prompt = &asked.prompt.ids;
        let known = self.engine.reuse_prefix(seq, &prompt[..prompt.len() - 1]);
        for chunk in prompt[known..prompt.len() - 1].chunks(CHUNK_TOKENS) {
            self.engine.step(&[StepSeq { seq, ids: chunk, logits: Wanted::None, capture: None }], &mut ())?;
        }
        let model = Arc::clone(self.engine.model());
        let evidence = records.then(|| {
            let (heads, of_key) = (self.heads.clone(), asked.of_positions.clone());
            Evidence::new(KeyGroups { heads, of_key, count: asked.sources.all().len() })
        });
        let mut answer = Answer::new(AnswerOptions {
            tokenizer: Arc::clone(model.tokenizer()),
            vocab_len: model.config().vocab_len,
            sampler: greedy(),
            prompt: prompt.clone(),
            continued: Vec::new(),
            max_tokens: ANSWER_TOKENS,
            room_tokens: usize::MAX,
            text: TextMode::Ids,
            constraint: None,
            logprobs: None,
            window: None,
            evidence,
        });
        let id = JobId(0);
        let mut row =
            StepRow::Prefill { id, tokens: prompt.len() - 1..prompt.len(), end: PrefillEnd::Sampled };
        let (begun, mut out) = (Instant::now(), Vec::new());
        loop {
            let rows = answer.rows(&row, &[]);
            let step = StepSeq { seq, ids: &rows.ids, logits: rows.logits, capture: rows.capture.as_ref() };
            let mut output = self.engine.step(&[step], &mut ())?.remove(0);
            if let Some(scores) = output.scores.take() {
                answer.attended(&row, scores);
            }
            let outcome = answer.took_output(&row, &[], &output, &mut out);
            if outcome.end.is_some() {
                break;
            }
            row = StepRow::Decode { id, proposed: 0 };
        }
        let decode_s = begun.elapsed().as_secs_f64();
        let rows = answer.take_evidence().map(|evidence| evidence.rows().to_vec()).unwrap_or_default();
        Ok(Written { ids: answer.tokens().to_vec(), rows, decode_s })
    }
}

impl Asked {
    fn attended<'a>(
        &'a self,
        segments: &'a [Segment],
        rows: &'a [Vec<f32>],
        starts: &'a [usize],
    ) -> Attended<'a> {
        Attended { of_positions: &self.of_positions, rows, starts, segments, sources: &self.sources }
    }
}

fn sources_of(cited: Cited) -> Vec<usize> {
    cited.sources.into_iter().take(FIRST).map(|citation| citation.source).collect()
}

/// Returns whether an answer holds the right one, whatever the case of its letters.
fn holds(answer: &str, right: &str) -> bool {
    answer.to_lowercase().contains(&right.to_lowercase())
}
