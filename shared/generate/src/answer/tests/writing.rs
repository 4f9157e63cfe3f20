//! Writing: with any proposals as without, and as a plain loop over the sampler does.

use std::sync::Mutex;

use baton_engine::MeanOver;
use baton_engine::sampling::NotFinite;
use baton_engine::stop::StopStrings;
use baton_engine::token_set::TokenSet;

use super::super::form::NO_TOKEN;
use super::*;
use crate::hooks::ConstraintFault;

/// A token, and the logits it was chosen from.
type Record = (TokenId, Vec<f32>);

/// Keeps what it is told.
#[derive(Default, Clone)]
struct Records(Arc<Mutex<Vec<Record>>>);

impl LogprobSink for Records {
    fn record(&mut self, _: &Sampler, logits: &[f32], id: TokenId) {
        self.0.lock().unwrap().push((id, logits.to_vec()));
    }
}

/// Allows other tokens after each token; is complete, or allows none, after some of them.
pub(super) struct Form {
    seed: u64,
    accepted: Vec<TokenId>,
    complete_at: usize,
    fails_at: usize,
}

impl Form {
    /// Makes a form that is complete after so many tokens.
    pub(super) fn new(seed: u64, complete_at: usize) -> Form {
        Form { seed, accepted: Vec::new(), complete_at, fails_at: usize::MAX }
    }
}

/// Returns the tokens that a form allows after `accepted`.
fn allowed(seed: u64, accepted: &[TokenId]) -> TokenSet {
    let mut random = SplitMix64::new(seed ^ accepted.iter().map(|&id| u64::from(id) + 1).sum::<u64>());
    let model = FakeModel::new(0);
    model.likely.iter().copied().filter(|_| random.percent(70)).chain([byte_id(b'a')]).collect()
}

impl Constraint for Form {
    fn allowed(&mut self) -> Result<TokenSet, ConstraintFault> {
        if self.accepted.len() == self.fails_at {
            return Ok(TokenSet::new(1));
        }
        Ok(allowed(self.seed, &self.accepted))
    }

    fn accept(&mut self, id: TokenId) -> Result<bool, ConstraintFault> {
        self.accepted.push(id);
        Ok(self.accepted.len() == self.complete_at)
    }

    fn take_back(&mut self, tokens: usize) -> Result<(), ConstraintFault> {
        self.accepted.truncate(self.accepted.len() - tokens);
        Ok(())
    }
}

/// One answer's options, by numbers that can be used twice.
#[derive(Debug)]
struct Case {
    model: FakeModel,
    sampler: Sampler,
    prompt: Vec<TokenId>,
    continued: Vec<TokenId>,
    max_tokens: usize,
    room_tokens: usize,
    stops: Vec<String>,
    /// Whether text is made, and whether it ends at the cap.
    text: Option<bool>,
    /// Seed, complete after, and fails after so many tokens.
    form: Option<(u64, usize, usize)>,
}

impl Case {
    fn draw(random: &mut SplitMix64) -> Case {
        let model = FakeModel::new(random.next_u64());
        let sampler = samplers(random.next_u64())[random.below(3)].clone();
        let mut prompt = prompt(random);
        let continued: Vec<TokenId> = (0..random.below(4)).map(|_| byte_id(b'a')).collect();
        prompt.extend(&continued);
        let stops = ["ab", "ba", "a b", "é", "aab"];
        Case {
            room_tokens: prompt.len() + 1 + random.below(30),
            max_tokens: 1 + random.below(20),
            stops: (0..random.below(3)).map(|_| stops[random.below(stops.len())].to_owned()).collect(),
            text: random.percent(70).then(|| random.percent(50)),
            form: random.percent(40).then(|| (random.next_u64(), random.below(12), random.below(30))),
            model,
            sampler,
            prompt,
            continued,
        }
    }

    fn answer(&self, records: &Records) -> Answer {
        let stop = StopStrings::new(&self.stops).unwrap();
        Answer::new(AnswerOptions {
            continued: self.continued.clone(),
            max_tokens: self.max_tokens,
            room_tokens: self.room_tokens,
            text: self.text.map_or(TextMode::Ids, |ends_at_cap| TextMode::Text {
                text: AnswerText::new(tokenizer(), (), stop),
                ends_at_cap,
            }),
            constraint: self.form.map(|(seed, complete_at, fails_at)| -> Box<dyn Constraint> {
                Box::new(Form { seed, accepted: Vec::new(), complete_at, fails_at })
            }),
            logprobs: Some(Box::new(records.clone())),
            ..plain(&self.model, &self.sampler, self.prompt.clone())
        })
    }

    /// Writes the answer by a plain loop; returns its own tokens but the end token, the text, and the end.
    fn reference(&self) -> (Vec<TokenId>, String, AnswerEnd) {
        let mut answer = self.continued.clone();
        let mut own = Vec::new();
        let bytes = |own: &[TokenId]| -> Vec<u8> {
            own.iter().flat_map(|&id| TOKENIZER.token_bytes(id).to_vec()).collect()
        };
        let end = loop {
            let logits = self.model.logits(&[&self.prompt[..], &own].concat());
            let index = answer.len() as u64;
            let id = match self.form {
                Some((_, _, fails_at)) if own.len() == fails_at => break AnswerEnd::Failed,
                Some((seed, ..)) => {
                    self.sampler.sample_among(&logits, index, &answer, &allowed(seed, &own)).unwrap()
                }
                None => self.sampler.sample(&logits, index, &answer),
            };
            if TOKENIZER.is_end(id) {
                break AnswerEnd::Stop;
            }
            own.push(id);
            answer.push(id);
            let text = String::from_utf8_lossy(&bytes(&own)).into_owned();
            let complete = self.form.is_some_and(|(_, complete_at, _)| own.len() == complete_at);
            if complete || (self.text.is_some() && naive_stop(&text, &self.stops).1) {
                break AnswerEnd::Stop;
            }
            if own.len() >= self.max_tokens || self.prompt.len() + own.len() >= self.room_tokens {
                break AnswerEnd::Cap;
            }
        };
        let bytes = bytes(&own);
        let whole = match end {
            // Another device completes the character, or nobody needs it any more.
            AnswerEnd::Cap if self.text == Some(false) => without_incomplete(&bytes),
            _ => String::from_utf8_lossy(&bytes).into_owned(),
        };
        (own, naive_stop(&whole, &self.stops).0.to_owned(), end)
    }
}

/// Returns the lossy text of the bytes, without the beginning of a character at their end.
fn without_incomplete(bytes: &[u8]) -> String {
    let cut = (1..=3.min(bytes.len())).find(|&n| {
        let end = &bytes[bytes.len() - n..];
        std::str::from_utf8(end).is_err_and(|err| err.valid_up_to() == 0 && err.error_len().is_none())
    });
    String::from_utf8_lossy(&bytes[..bytes.len() - cut.unwrap_or(0)]).into_owned()
}

/// What a reader and its lists get.
#[derive(Debug, PartialEq)]
struct Got {
    written: Vec<Written>,
    records: Vec<Record>,
    tokens: Vec<TokenId>,
    end: AnswerEnd,
    fault: Option<Fault>,
}

/// Writes the answer; `propose` gives the proposals behind the tokens so far.
fn write(case: &Case, mut propose: impl FnMut(&Answer) -> Vec<TokenId>, random: &mut SplitMix64) -> Got {
    let records = Records::default();
    let mut answer = case.answer(&records);
    let mut out = Vec::new();
    let mut end = take_one(&mut answer, &case.model, false, &mut out).end;
    while end.is_none() {
        if random.percent(10) {
            // As after a preemption.
            end = take_one(&mut answer, &case.model, false, &mut out).end;
            continue;
        }
        let proposed = propose(&answer);
        let before = answer.tokens().len();
        let mut sequence = answer.feed(0..answer.feed_tokens());
        let start = sequence.len() - 1;
        sequence.extend(&proposed);
        let row = StepRow::Decode { id: ID, proposed: proposed.len() + random.below(2) };
        let rows = answer.rows(&row, &proposed);
        assert_eq!(rows.ids, sequence[start..]);
        assert_eq!(rows.logits == Wanted::All, !proposed.is_empty());
        let output = output_of(rows.logits, case.model.rows(&sequence, start));
        let outcome = answer.took_output(&row, &proposed, &output, &mut out);
        let new = &answer.tokens()[before..];
        assert_eq!((outcome.proposed, outcome.written), (proposed.len(), new.len()));
        let right = new.iter().zip(&proposed).take_while(|(a, b)| a == b).count();
        let last = outcome.end == Some(AnswerEnd::Stop) && outcome.accepted == right + 1;
        assert!(outcome.accepted == right || last, "{outcome:?} {new:?} {proposed:?}");
        assert!(outcome.end.is_some() || new.len() == outcome.accepted + 1);
        end = outcome.end;
    }
    let records = std::mem::take(&mut *records.0.lock().unwrap());
    let fault = answer.fault().cloned();
    Got { written: out, records, tokens: answer.tokens().to_vec(), end: end.unwrap(), fault }
}

#[test]
fn proposals_change_no_token_text_log_probability_or_end() {
    let mut random = SplitMix64::new(11);
    let (mut ends, mut cases_with_text) = ([0; 3], 0);
    for case_number in 0..600 {
        let case = Case::draw(&mut random);
        let (own, text, end) = case.reference();
        let got = write(&case, |_| Vec::new(), &mut random);
        // The end token is written only if it completes text.
        let ids: Vec<TokenId> = got.written.iter().map(|w| w.id).collect();
        let ends_here = ids.last().is_some_and(|&id| TOKENIZER.is_end(id));
        assert_eq!(ids[..ids.len() - usize::from(ends_here)], own, "case {case_number}: {case:?}");
        assert_eq!(got.end, end, "case {case_number}: {case:?}");
        assert_eq!(got.tokens, [&case.continued[..], &ids].concat());
        let indices: Vec<usize> = got.written.iter().map(|w| w.index).collect();
        let first = case.continued.len();
        assert_eq!(indices, (first..first + ids.len()).collect::<Vec<_>>());
        let shown: Option<String> = got.written.iter().map(|w| w.text.clone()).collect();
        if case.text.is_some() && end != AnswerEnd::Failed {
            assert_eq!(shown, Some(text), "case {case_number}: {case:?}");
            cases_with_text += 1;
        }
        assert!(case.text.is_some() || got.written.iter().all(|w| w.text.is_none()));
        assert_eq!(got.records.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
        ends[end as usize] += 1;

        let mut adversary = SplitMix64::new(random.next_u64());
        let whole = [&case.continued[..], &own, &[TOKENIZER.eos().unwrap()]].concat();
        let almost_right = |answer: &Answer| -> Vec<TokenId> {
            let rest = whole.get(answer.tokens().len()..).unwrap_or_default();
            let known = rest.iter().take(adversary.below(9)).copied();
            let mut proposed: Vec<TokenId> =
                known.map(|id| if adversary.percent(15) { byte_id(b'b') } else { id }).collect();
            proposed.extend((0..adversary.below(3)).map(|_| byte_id(b'a')));
            proposed
        };
        assert_eq!(write(&case, almost_right, &mut random), got, "case {case_number}: {case:?}");
    }
    assert!(cases_with_text > 200 && ends.iter().all(|&n| n > 30), "{ends:?} {cases_with_text}");
}

#[test]
fn rows_behind_a_wrong_proposal_are_not_looked_at() {
    let model = FakeModel::new(3);
    let sampler = &samplers(5)[0];
    let mut answer = Answer::new(plain(&model, sampler, vec![byte_id(b'x'), byte_id(b'y')]));
    let (mut out, row) = (Vec::new(), StepRow::Decode { id: ID, proposed: 2 });
    let good = model.logits(answer.prompt());
    let right = sampler.sample(&good, 0, &[]);
    let damaged = vec![f32::NAN; model.vocab_len];
    let wrong = if right == byte_id(b'a') { byte_id(b'b') } else { byte_id(b'a') };
    let logits = [&good[..], &damaged, &damaged].concat();
    let outcome = answer.took(&row, &[wrong, right], &logits, &mut out);
    assert_eq!(outcome, Outcome { proposed: 2, accepted: 0, written: 1, end: None });
    assert_eq!(out, [Written { index: 0, id: right, text: None }]);

    // The same row behind a right proposal ends the answer; the token before it stays.
    let good = model.logits(&answer.feed(0..3));
    let next = sampler.sample(&good, 1, &[right]);
    let outcome = answer.took(&row, &[next, right], &[&good[..], &damaged, &damaged].concat(), &mut out);
    assert_eq!(outcome, Outcome { proposed: 2, accepted: 1, written: 1, end: Some(AnswerEnd::Failed) });
    assert!(matches!(answer.fault(), Some(Fault::Logits(NotFinite { id: 0, .. }))));
    assert_eq!((answer.tokens(), out.len()), (&[right, next][..], 2));
}

#[test]
fn an_engine_that_gives_too_few_rows_ends_the_answer() {
    let model = FakeModel::new(3);
    let mut answer = Answer::new(plain(&model, &samplers(5)[0], vec![1, 2]));
    let row = StepRow::Prefill { id: ID, tokens: 0..2, end: PrefillEnd::Sampled };
    let outcome = answer.took(&row, &[], &[], &mut Vec::new());
    assert_eq!(outcome.end, Some(AnswerEnd::Failed));
    assert_eq!(answer.fault().unwrap().to_string(), "the engine gave 0 logits in place of 1 rows");
    let row = StepRow::Prefill { id: ID, tokens: 0..2, end: PrefillEnd::More };
    assert_eq!(answer.took(&row, &[], &[], &mut Vec::new()), Outcome::default());
}

#[test]
fn a_form_without_a_possible_token_ends_the_answer() {
    let model = FakeModel::new(3);
    let form = Form { seed: 1, accepted: Vec::new(), complete_at: 9, fails_at: 0 };
    let options = plain(&model, &samplers(5)[0], vec![1, 2]);
    let mut answer = Answer::new(AnswerOptions { constraint: Some(Box::new(form)), ..options });
    let outcome = take_one(&mut answer, &model, false, &mut Vec::new());
    assert_eq!(outcome, Outcome { end: Some(AnswerEnd::Failed), ..Outcome::default() });
    assert_eq!(answer.fault(), Some(&Fault::Constraint(ConstraintFault(NO_TOKEN.to_owned()))));
}

#[test]
fn a_lowered_cap_ends_the_answer_and_a_higher_one_changes_nothing() {
    let model = FakeModel { likely: vec![byte_id(b'a'), byte_id(b'b')], ..FakeModel::new(3) };
    for (lower, tokens) in [(2, 2), (40, 5)] {
        let options = plain(&model, &samplers(5)[1], vec![1, 2]);
        let mut answer = Answer::new(AnswerOptions { max_tokens: 5, ..options });
        answer.lower(lower);
        let mut out = Vec::new();
        assert_eq!(write_on(&mut answer, &model, &mut out), AnswerEnd::Cap);
        assert_eq!((answer.tokens().len(), out.len()), (tokens, tokens));
    }
}

#[test]
fn a_window_is_captured_with_the_end_of_the_prompt_and_never_reused() {
    let model = FakeModel::new(3);
    let heads = vec![HeadId { layer: 0, head: 1 }];
    let window = Window { tokens: 5..8, heads: heads.clone() };
    let options = plain(&model, &samplers(5)[0], (0..10).collect());
    let wanted = if options.sampler.takes_best() { Wanted::Best } else { Wanted::Last };
    let mut answer = Answer::new(AnswerOptions { window: Some(window), ..options });
    let row = |tokens: Range<usize>, end| StepRow::Prefill { id: ID, tokens, end };
    assert_eq!(answer.rows(&row(0..10, PrefillEnd::More), &[]).capture, None);
    let captured = Capture { window: 1..4, heads, over: MeanOver::Queries };
    for (end, logits) in [(PrefillEnd::Held, Wanted::None), (PrefillEnd::Sampled, wanted)] {
        let rows = answer.rows(&row(4..10, end), &[]);
        assert_eq!((rows.capture, rows.logits), (Some(captured.clone()), logits));
    }
    assert_eq!(answer.reusable_tokens(Goal::Write), 5);
    assert_eq!(answer.reusable_tokens(Goal::Hold { upto: 3 }), 3);
    assert_eq!(answer.reusable_tokens(Goal::Hold { upto: 9 }), 5);
    assert_eq!(answer.reusable_tokens(Goal::Verify { accepted: 2 }), 5);
    take_one(&mut answer, &model, false, &mut Vec::new());
    // Computed again, it captures nothing.
    assert_eq!((answer.feed_tokens(), answer.reusable_tokens(Goal::Write)), (11, 10));
    assert_eq!(answer.rows(&row(4..11, PrefillEnd::Sampled), &[]).capture, None);
}
