//! Chooses the next token of an answer from its logits.
//!
//! Pure: the same logits, settings, seed and index in the answer give the same token, on the cloud and on the
//! device, whatever was sampled before or in parallel. Randomness is keyed by (seed, index of the answer's
//! token), never drawn from a running generator. NaN logits count as minus infinity.
//!
//! The steps follow llama.cpp's default chain: penalties, top-k, top-p, min-p, temperature, draw. If an
//! answer may continue only with some tokens, all others are removed before the first filter, so that filters
//! count only allowed tokens.

use baton_random::{mix, unit};

use crate::token_set::TokenSet;
use crate::tokenizer::TokenId;

/// The settings of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the draw, 0 to 100; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the `k` most likely tokens; at least 1.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens until their probabilities reach this sum, 0 to 1; 0 keeps only the most
    /// likely.
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 to 1.
    pub min_p: Option<f32>,
    /// Makes tokens that are in the answer less likely, 0.1 to 10; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the answer, -2 to 2; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of every token in the answer, -2 to 2; 0 changes nothing.
    pub presence_penalty: f32,
    /// Seed of the randomness, combined with the token's index.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// Greedy: temperature 0 and no filter.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
        }
    }
}

/// Why sampling parameters were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number is outside its range or not a number.
    #[error("{name} is {value}, want {min} to {max}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// The least allowed.
        min: f32,
        /// The most allowed.
        max: f32,
    },
    /// `top_k` is zero.
    #[error("top_k is 0, want at least 1")]
    ZeroTopK,
}

/// The error for logits that a model with undamaged weights never gives.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("the model gives {value} for token {id}: its file is damaged, or its numbers are too large for it")]
pub struct NotFinite {
    /// The first token with such a logit.
    pub id: TokenId,
    /// Its logit: NaN or an infinity.
    pub value: f32,
}

/// The most probable token, of equal ones the lowest; or the first token whose logit is not finite.
pub type Best = Result<TokenId, NotFinite>;

/// Checks that all logits are finite. Call it before sampling, which treats other values as very unlikely.
///
/// # Errors
/// [`NotFinite`] for the first logit that is not finite.
pub fn check_logits(logits: &[f32]) -> Result<(), NotFinite> {
    // Without an early exit the compiler can vectorize this loop.
    if logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
        return Ok(());
    }
    let found = (0..).zip(logits).find(|(_, logit)| !logit.is_finite());
    found.map_or(Ok(()), |(id, &value)| Err(NotFinite { id, value }))
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`SamplingError`] for the first parameter that is out of range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let within = |name, value: f32, min: f32, max: f32| match value >= min && value <= max {
            true => Ok(()),
            false => Err(SamplingError::OutOfRange { name, value, min, max }),
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.1, 10.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        self.top_p.map_or(Ok(()), |p| within("top_p", p, 0.0, 1.0))?;
        self.min_p.map_or(Ok(()), |p| within("min_p", p, 0.0, 1.0))?;
        if self.top_k == Some(0) { Err(SamplingError::ZeroTopK) } else { Ok(()) }
    }
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: TokenId,
    logit: f32,
}

/// Chooses tokens with checked parameters.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
}

impl Sampler {
    /// Returns a sampler with these parameters.
    ///
    /// # Errors
    /// As [`SamplingParams::check`].
    pub fn new(params: SamplingParams) -> Result<Sampler, SamplingError> {
        params.check()?;
        Ok(Sampler { params })
    }

    /// Returns the parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Whether [`Self::sample`] returns the most probable token, whatever the answer so far.
    pub fn takes_best(&self) -> bool {
        self.params.temperature == 0.0 && !self.has_penalty()
    }

    /// Returns the token at `index` of an answer, given the logits `[v]` there and the answer so far.
    ///
    /// Of equal logits, the lowest id counts as more likely. If no logit is above minus infinity, returns
    /// token 0. Cost: `O(v)`, and a sort of the tokens that top-k and top-p keep.
    ///
    /// # Panics
    /// If there are no logits; a model has at least one token.
    pub fn sample(&self, logits: &[f32], index: u64, answer_so_far: &[TokenId]) -> TokenId {
        assert!(!logits.is_empty(), "a vocabulary has at least one token");
        if self.takes_best() {
            return greatest(logits).unwrap_or(0);
        }
        self.choose(self.penalized(logits, answer_so_far), index).unwrap_or(0)
    }

    /// As [`Sampler::sample`], but only among the tokens of `allowed`. Returns `None` if all of these have a
    /// logit of minus infinity.
    pub fn sample_among(
        &self,
        logits: &[f32],
        index: u64,
        answer_so_far: &[TokenId],
        allowed: &TokenSet,
    ) -> Option<TokenId> {
        let mut candidates = self.penalized(logits, answer_so_far);
        candidates.retain(|c| allowed.contains(c.id));
        self.choose(candidates, index)
    }

    /// Draws from candidates given in the order of their ids; returns `None` if there are none.
    fn choose(&self, mut candidates: Vec<Candidate>, index: u64) -> Option<TokenId> {
        if self.params.temperature == 0.0 {
            return likeliest(&candidates).map(|c| c.id);
        }
        self.keep_top_k(&mut candidates);
        self.keep_top_p(&mut candidates);
        self.keep_min_p(&mut candidates);
        candidates.sort_unstable_by_key(|c| c.id);
        let best = likeliest(&candidates)?;
        let scale = 1.0 / f64::from(self.params.temperature);
        let weight = |c: &Candidate| ((f64::from(c.logit) - f64::from(best.logit)) * scale).exp();
        let weights: Vec<f64> = candidates.iter().map(weight).collect();
        let mut left = uniform(self.params.seed, index) * weights.iter().sum::<f64>();
        for (candidate, weight) in candidates.iter().zip(weights) {
            left -= weight;
            if left < 0.0 {
                return Some(candidate.id);
            }
        }
        Some(best.id) // Reached only through rounding of the sum.
    }

    fn has_penalty(&self) -> bool {
        let SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.params;
        repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0
    }

    /// Returns the natural logarithm of a token's probability under the unchanged logits (temperature 1, no
    /// penalty, no filter). Returns minus infinity for ids outside the logits.
    pub fn logprob(&self, logits: &[f32], id: TokenId) -> f32 {
        let Some(&own) = logits.get(id as usize) else { return f32::NEG_INFINITY };
        log_softmax(logits, own)
    }

    /// Returns the `count` most likely tokens under the unchanged logits, the most likely first, each with
    /// the natural logarithm of its probability. Returns fewer if fewer have one. Cost: `O(v)` and a sort of
    /// `count`.
    pub fn top_logprobs(&self, logits: &[f32], count: usize) -> Vec<(TokenId, f32)> {
        let usable = |&(_, &logit): &(TokenId, &f32)| logit > f32::NEG_INFINITY;
        let candidate = |(id, &logit): (TokenId, &f32)| Candidate { id, logit };
        let mut top: Vec<Candidate> = (0..).zip(logits).filter(usable).map(candidate).collect();
        if count < top.len() {
            top.select_nth_unstable_by(count, likelier_first);
            top.truncate(count);
        }
        top.sort_unstable_by(likelier_first);
        top.into_iter().map(|c| (c.id, log_softmax(logits, c.logit))).collect()
    }

    /// Returns all tokens above minus infinity, in the order of their ids, with those of the answer made less
    /// likely.
    ///
    /// Source: Keskar 2019, section 4.1, with llama.cpp's rule for negative logits; frequency and presence
    /// penalties as in OpenAI's API reference.
    fn penalized(&self, logits: &[f32], answer_so_far: &[TokenId]) -> Vec<Candidate> {
        let SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.params;
        let mut logits = std::borrow::Cow::Borrowed(logits);
        if self.has_penalty() {
            let mut seen: Vec<TokenId> = answer_so_far.to_vec();
            seen.sort_unstable();
            for same in seen.chunk_by(|a, b| a == b) {
                if let Some(logit) = logits.to_mut().get_mut(same[0] as usize) {
                    let by = repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / by } else { *logit * by };
                    *logit -= same.len() as f32 * frequency_penalty + presence_penalty;
                }
            }
        }
        let usable = |&(_, &logit): &(TokenId, &f32)| logit > f32::NEG_INFINITY;
        let candidate = |(id, &logit): (TokenId, &f32)| Candidate { id, logit: logit.min(f32::MAX) };
        (0..).zip(logits.iter()).filter(usable).map(candidate).collect()
    }

    fn keep_top_k(&self, candidates: &mut Vec<Candidate>) {
        let Some(k) = self.params.top_k.map(|k| k as usize).filter(|&k| k < candidates.len()) else { return };
        candidates.select_nth_unstable_by(k, likelier_first);
        candidates.truncate(k);
    }

    /// Keeps the most likely tokens until their probabilities reach `top_p` (Holtzman 2020, section 3.1).
    fn keep_top_p(&self, candidates: &mut Vec<Candidate>) {
        let (Some(top_p), Some(best)) = (self.params.top_p.filter(|&p| p < 1.0), likeliest(candidates))
        else {
            return;
        };
        let weight = |c: &Candidate| (f64::from(c.logit) - f64::from(best.logit)).exp();
        candidates.sort_unstable_by_key(|c| c.id);
        let total: f64 = candidates.iter().map(weight).sum();
        // All tokens rarer than this together do not reach the rest of the sum, so none of them is kept.
        // Removing them first avoids sorting the whole vocabulary.
        let rarest = (1.0 - f64::from(top_p)) * total / candidates.len() as f64;
        candidates.retain(|c| weight(c) >= rarest);
        candidates.sort_unstable_by(likelier_first);
        let mut sum = 0.0;
        let reached = |c: &Candidate| {
            sum += weight(c);
            sum >= f64::from(top_p) * total
        };
        let kept = candidates.iter().position(reached).map_or(candidates.len(), |last| last + 1);
        candidates.truncate(kept);
    }

    /// Keeps tokens at least `min_p` as likely as the most likely one (Nguyen 2024, section 3).
    fn keep_min_p(&self, candidates: &mut Vec<Candidate>) {
        let (Some(min_p), Some(best)) = (self.params.min_p, likeliest(candidates)) else { return };
        let least = f64::from(best.logit) + f64::from(min_p).ln();
        candidates.retain(|c| f64::from(c.logit) >= least);
    }
}

/// Returns the natural logarithm of the softmax at a logit; minus infinity if no token is possible.
fn log_softmax(logits: &[f32], own: f32) -> f32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if own.is_nan() || best == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(|&l| f64::from(l - best).exp()).sum();
    (f64::from(own - best) - sum.ln()) as f32
}

fn likelier_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then_with(|| a.id.cmp(&b.id))
}

fn likeliest(candidates: &[Candidate]) -> Option<Candidate> {
    candidates.iter().copied().min_by(likelier_first)
}

/// Returns the id of the greatest logit above minus infinity, of equal ones the lowest.
fn greatest(logits: &[f32]) -> Option<TokenId> {
    const LANES: usize = 32;
    // What is not a number is not greater than anything.
    let greater = |best: f32, logit: f32| if logit > best { logit } else { best };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (best, &logit) in lanes.iter_mut().zip(chunk) {
            *best = greater(*best, logit);
        }
    }
    let best = lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, greater);
    // Infinity counts as the greatest finite number.
    let best = best.min(f32::MAX);
    let found = logits.iter().position(|&logit| logit >= best && logit > f32::NEG_INFINITY)?;
    TokenId::try_from(found).ok()
}

/// Returns a number in `[0, 1)` that depends only on seed and index: the seed is mixed once to choose the
/// stream, and the index is the position in it.
fn uniform(seed: u64, index: u64) -> f64 {
    let stream = mix(seed, 0);
    unit(mix(stream, index))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(params).unwrap()
    }

    proptest! {
        #[test]
        fn the_greatest_logit_is_the_likeliest_candidate(
            logits in prop::collection::vec(
                prop_oneof![
                    8 => -3.0f32..3.0,
                    2 => (-2i8..3).prop_map(f32::from),
                    1 => Just(f32::NAN),
                    1 => Just(f32::NEG_INFINITY),
                    1 => Just(f32::INFINITY),
                    1 => Just(f32::MAX),
                ],
                1..200,
            )
        ) {
            let greedy = sampler(SamplingParams::default());
            let slowly = likeliest(&greedy.penalized(&logits, &[])).map(|c| c.id);
            prop_assert_eq!(greatest(&logits), slowly);
        }
    }

    fn warm(seed: u64) -> SamplingParams {
        SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() }
    }

    /// Draws at many indices or seeds and compares the counts with exact probabilities by chi-square.
    #[track_caller]
    fn check_distribution(params: SamplingParams, logits: &[f32], answer: &[TokenId], exact: &[f64]) {
        const DRAWS: u64 = 40_000;
        for by_seed in [false, true] {
            let mut counts = vec![0u64; logits.len()];
            for i in 0..DRAWS {
                let (seed, index) = if by_seed { (i, 3) } else { (params.seed, i) };
                counts[sampler(SamplingParams { seed, ..params }).sample(logits, index, answer) as usize] +=
                    1;
            }
            let (mut chi_square, mut cells) = (0.0, 0);
            for (&count, &p) in counts.iter().zip(exact) {
                if p == 0.0 {
                    assert_eq!(count, 0, "{counts:?}");
                    continue;
                }
                let expected = p * DRAWS as f64;
                chi_square += (count as f64 - expected).powi(2) / expected;
                cells += 1;
            }
            // With up to 4 degrees of freedom, chi-square above 25 has a probability below 1e-4.
            assert!(cells <= 5 && chi_square < 25.0, "chi-square {chi_square}, counts {counts:?}");
        }
    }

    fn softmax(logits: &[f32]) -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|&l| f64::from(l).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| e / sum).collect()
    }

    const LOGITS: [f32; 5] = [0.3, 2.0, -1.0, 1.5, 1.0];

    #[test]
    fn draws_follow_the_exact_distribution() {
        check_distribution(warm(7), &LOGITS, &[], &softmax(&LOGITS));
        let cold = SamplingParams { temperature: 0.5, ..warm(1) };
        check_distribution(cold, &LOGITS, &[], &softmax(&LOGITS.map(|l| l * 2.0)));
        let top_k = SamplingParams { top_k: Some(2), ..warm(2) };
        let two = softmax(&[2.0, 1.5]);
        check_distribution(top_k, &LOGITS, &[], &[0.0, two[0], 0.0, two[1], 0.0]);
        // Probabilities are about .083, .453, .023, .275, .167; tokens 1, 3 and 4 add up to .895.
        let top_p = SamplingParams { top_p: Some(0.85), ..warm(3) };
        let three = softmax(&[2.0, 1.5, 1.0]);
        check_distribution(top_p, &LOGITS, &[], &[0.0, three[0], 0.0, three[1], three[2]]);
        let none = SamplingParams { top_p: Some(0.0), ..warm(3) };
        check_distribution(none, &LOGITS, &[], &[0.0, 1.0, 0.0, 0.0, 0.0]);
        // exp(1.5 - 2) = .61 and exp(1 - 2) = .37 of the most likely one.
        let min_p = SamplingParams { min_p: Some(0.5), ..warm(4) };
        check_distribution(min_p, &LOGITS, &[], &[0.0, two[0], 0.0, two[1], 0.0]);
        let penalty = SamplingParams { repetition_penalty: 2.0, ..warm(5) };
        check_distribution(penalty, &LOGITS, &[1, 2, 2], &softmax(&[0.3, 1.0, -2.0, 1.5, 1.0]));
        let frequency = SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.25, ..warm(5) };
        check_distribution(frequency, &LOGITS, &[1, 2, 2], &softmax(&[0.3, 1.25, -2.25, 1.5, 1.0]));
        let equal = SamplingParams { temperature: 100.0, ..warm(6) };
        check_distribution(equal, &[1.0; 4], &[], &[0.25; 4]);
    }

    #[test]
    fn filters_come_in_the_order_of_llama_cpp() {
        // Top-k comes first: top-p then counts only the two kept, of which token 1 alone has .62.
        let both = SamplingParams { top_k: Some(2), top_p: Some(0.6), ..warm(8) };
        check_distribution(both, &LOGITS, &[], &[0.0, 1.0, 0.0, 0.0, 0.0]);
        // Temperature comes last: a high temperature does not widen the nucleus.
        let hot = SamplingParams { temperature: 50.0, top_p: Some(0.4), ..warm(9) };
        check_distribution(hot, &LOGITS, &[], &[0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        let greedy = sampler(SamplingParams::default());
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0], 0, &[]), 1);
        assert_eq!(check_logits(&[1.0, f32::MIN]), Ok(()));
        assert_eq!(check_logits(&[1.0, f32::NEG_INFINITY]).unwrap_err().id, 1);
        assert!(
            check_logits(&[f32::NAN]).unwrap_err().to_string().starts_with("the model gives NaN for token 0")
        );
        assert_eq!(greedy.sample(&[f32::NAN, f32::NEG_INFINITY, -9.0], 0, &[]), 2);
        assert_eq!(greedy.sample(&[f32::NAN, f32::NEG_INFINITY], 0, &[]), 0);
        assert_eq!(greedy.sample(&[0.0, f32::INFINITY], 0, &[]), 1);
        let penalty = sampler(SamplingParams { repetition_penalty: 4.0, ..SamplingParams::default() });
        assert_eq!(penalty.sample(&[1.0, 3.0], 5, &[1, 99]), 0);
        assert_eq!(penalty.sample(&[-1.0, -2.0], 5, &[0]), 1);
        let one = sampler(SamplingParams { top_k: Some(1), ..warm(1) });
        assert_eq!(one.sample(&[2.0, 2.0, 1.0], 0, &[]), 0);
    }

    #[test]
    fn only_allowed_tokens_are_drawn() {
        let allowed: TokenSet = [0, 2, 4].into_iter().collect();
        let greedy = sampler(SamplingParams::default());
        assert_eq!(greedy.sample_among(&LOGITS, 0, &[], &allowed), Some(4));
        assert_eq!(greedy.sample_among(&LOGITS, 0, &[], &TokenSet::new(5)), None);
        assert_eq!(greedy.sample_among(&[f32::NEG_INFINITY, 1.0], 0, &[], &allowed), None);
        // Filters count only allowed tokens: the overall most likely one does not fill the nucleus.
        let top = sampler(SamplingParams { top_k: Some(1), top_p: Some(0.1), ..warm(3) });
        assert!((0..50).all(|index| top.sample_among(&LOGITS, index, &[], &allowed) == Some(4)));
        let all: TokenSet = (0..5).collect();
        for index in 0..200 {
            let s = sampler(warm(9));
            assert_eq!(s.sample_among(&LOGITS, index, &[1], &all), Some(s.sample(&LOGITS, index, &[1])));
            let drawn = s.sample_among(&LOGITS, index, &[], &allowed);
            assert!(drawn.is_some_and(|id| allowed.contains(id)), "{drawn:?}");
        }
    }

    #[test]
    fn odd_logits_give_a_token() {
        for logits in
            [&[f32::NAN; 3][..], &[f32::NEG_INFINITY; 3], &[f32::INFINITY; 3], &[f32::MAX, f32::MIN, 0.0]]
        {
            for params in
                [warm(1), SamplingParams { top_p: Some(0.5), min_p: Some(0.1), top_k: Some(2), ..warm(1) }]
            {
                assert!(sampler(params).sample(logits, 0, &[0, 1]) < 3, "{logits:?}");
            }
        }
    }

    #[test]
    fn randomness_is_keyed_by_seed_and_index() {
        let draw = |seed, index| sampler(warm(seed)).sample(&[0.0; 1000], index, &[]);
        assert_eq!(draw(1, 5), draw(1, 5));
        let by_index: std::collections::HashSet<TokenId> = (0..50).map(|i| draw(1, i)).collect();
        let by_seed: std::collections::HashSet<TokenId> = (0..50).map(|s| draw(s, 1)).collect();
        assert!(by_index.len() > 40 && by_seed.len() > 40);
        // Frozen: the cloud and the device must draw the same tokens, also across versions.
        assert_eq!([draw(0, 0), draw(7, 3), draw(u64::MAX, 1 << 40)], FROZEN_DRAWS);
    }

    const FROZEN_DRAWS: [TokenId; 3] = [652, 604, 544];

    #[test]
    fn logprobs_are_log_softmax() {
        let s = sampler(SamplingParams::default());
        let exact = softmax(&LOGITS);
        for id in 0..5 {
            assert!((f64::from(s.logprob(&LOGITS, id)) - exact[id as usize].ln()).abs() < 1e-6);
        }
        assert_eq!(s.logprob(&LOGITS, 5), f32::NEG_INFINITY);
        assert_eq!(s.logprob(&[f32::NAN, 0.0], 0), f32::NEG_INFINITY);
        assert_eq!(s.logprob(&[f32::NAN, 0.0], 1), 0.0);
        assert_eq!(s.logprob(&[f32::NEG_INFINITY], 0), f32::NEG_INFINITY);
        let top = s.top_logprobs(&LOGITS, 3);
        assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(top.iter().all(|&(id, logprob)| logprob == s.logprob(&LOGITS, id)));
        assert_eq!(s.top_logprobs(&[f32::NAN, 0.0, f32::NEG_INFINITY], 5), [(1, 0.0)]);
        assert!(s.top_logprobs(&LOGITS, 0).is_empty());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let base = SamplingParams::default();
        let refused = |p: SamplingParams| p.check().unwrap_err().to_string();
        assert_eq!(
            refused(SamplingParams { temperature: -0.1, ..base }),
            "temperature is -0.1, want 0 to 100"
        );
        assert_eq!(
            refused(SamplingParams { temperature: f32::NAN, ..base }),
            "temperature is NaN, want 0 to 100"
        );
        assert_eq!(
            refused(SamplingParams { temperature: f32::INFINITY, ..base }),
            "temperature is inf, want 0 to 100"
        );
        assert_eq!(refused(SamplingParams { top_k: Some(0), ..base }), "top_k is 0, want at least 1");
        assert!(SamplingParams { top_p: Some(-0.1), ..base }.check().is_err());
        assert!(SamplingParams { top_p: Some(1.1), ..base }.check().is_err());
        assert!(SamplingParams { min_p: Some(-1.0), ..base }.check().is_err());
        assert!(SamplingParams { repetition_penalty: 0.0, ..base }.check().is_err());
        assert!(SamplingParams { frequency_penalty: 2.1, ..base }.check().is_err());
        assert!(SamplingParams { presence_penalty: f32::NAN, ..base }.check().is_err());
        let full = SamplingParams { top_k: Some(1), top_p: Some(1.0), min_p: Some(1.0), ..warm(0) };
        assert_eq!(full.check(), Ok(()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn leaving_rare_tokens_out_first_changes_nothing(
            logits in prop::collection::vec(-8.0f32..8.0, 1..60),
            top_p in 0.01f32..0.999,
        ) {
            let s = sampler(SamplingParams { top_p: Some(top_p), ..warm(0) });
            let mut kept = s.penalized(&logits, &[]);
            s.keep_top_p(&mut kept);
            let p = softmax(&logits);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let (mut sum, mut n) = (0.0, 0);
            while n < order.len() && sum < f64::from(top_p) - 1e-12 {
                sum += p[order[n]];
                n += 1;
            }
            prop_assert_eq!(kept.iter().map(|c| c.id as usize).collect::<Vec<_>>(), &order[..n]);
        }
    }
}
