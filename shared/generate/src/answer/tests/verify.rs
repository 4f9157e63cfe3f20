//! Verification with equal tokenizers: choices, passes, and what stays.

use super::writing::Form;
use super::*;

/// Returns the sampler's choice behind every beginning of the accepted part.
fn choices(model: &FakeModel, sampler: &Sampler, prompt: &[TokenId], accepted: &[TokenId]) -> Vec<TokenId> {
    let choice = |n: usize| {
        sampler.sample(&model.logits(&[prompt, &accepted[..n]].concat()), n as u64, &accepted[..n])
    };
    (0..=accepted.len()).map(choice).collect()
}

/// Takes the rows of the accepted part in random pieces; the first ones may begin in the prompt.
fn verify(answer: &mut Answer, model: &FakeModel, accepted: usize, random: &mut SplitMix64) {
    let total = answer.feed_tokens() + accepted;
    let sequence = answer.feed(0..total);
    assert_eq!(sequence.len(), total);
    let mut start = random.below(answer.feed_tokens());
    while start < total {
        let end = start + 1 + random.below(total - start);
        let row = StepRow::Verify { id: ID, tokens: start..end, last: end == total };
        let rows = answer.rows(&row, &[]);
        assert_eq!(rows.ids, sequence[start..end]);
        assert_eq!(rows.logits, if end - start == 1 { Wanted::Last } else { Wanted::All });
        assert_eq!(answer.verified(), None);
        let outcome = answer.took(&row, &[], &model.rows(&sequence[..end], start), &mut Vec::new());
        assert_eq!(outcome, Outcome::default());
        start = end;
    }
}

/// Returns the tokens behind `kept`, written by a plain loop to the end token or the cap of 16.
fn continuation(model: &FakeModel, sampler: &Sampler, prompt: &[TokenId], kept: &[TokenId]) -> Vec<TokenId> {
    let mut answer = kept.to_vec();
    loop {
        let logits = model.logits(&[prompt, &answer].concat());
        let id = sampler.sample(&logits, answer.len() as u64, &answer);
        if TOKENIZER.is_end(id) {
            break;
        }
        answer.push(id);
        if answer.len() >= 16 {
            break;
        }
    }
    answer
}

#[test]
fn the_answer_goes_on_behind_what_stays_as_if_it_had_written_it() {
    let mut random = SplitMix64::new(21);
    let (mut agreed_all, mut ended_at_once) = (0, 0);
    for case in 0..500 {
        let model = FakeModel::new(random.next_u64());
        let sampler = samplers(random.next_u64())[random.below(3)].clone();
        let prompt = prompt(&mut random);
        let mut accepted = continuation(&model, &sampler, &prompt, &[]);
        accepted.truncate(random.below(12));
        for id in &mut accepted {
            if random.percent(10) {
                *id = byte_id(b'x');
            }
        }
        let mut answer = Answer::new(plain(&model, &sampler, prompt.clone()));
        assert_eq!(answer.accept(Accepted::Ids(accepted.clone())), Ok(accepted.len()));
        assert!(answer.writing().is_none());
        verify(&mut answer, &model, accepted.len(), &mut random);
        let own = choices(&model, &sampler, &prompt, &accepted);
        let agreed = accepted.iter().zip(&own).filter(|(a, b)| a == b).count();
        let verified = answer.verified().unwrap();
        assert_eq!(
            verified,
            Verified { own, compared: accepted.len(), agreed, differs_at_bytes: Vec::new() },
            "case {case}"
        );
        agreed_all += usize::from(agreed == accepted.len());
        if random.percent(30) {
            // As after a preemption: rows that are computed anew change nothing.
            let tokens = 0..answer.feed_tokens() + accepted.len();
            let row = StepRow::Verify { id: ID, tokens: tokens.clone(), last: true };
            let logits = model.rows(&answer.feed(tokens), 0);
            assert_eq!(answer.took(&row, &[], &logits, &mut Vec::new()), Outcome::default());
            assert_eq!(answer.verified(), Some(verified));
        }
        let keep = [Keep::All, Keep::Tokens(random.below(15)), Keep::Bytes(1)][random.below(3)];
        let kept = if let Keep::Tokens(n) = keep { n.min(accepted.len()) } else { accepted.len() };
        let want = continuation(&model, &sampler, &prompt, &accepted[..kept]);
        let mut out = Vec::new();
        let decided = answer.decide(keep, kept, &mut out);
        assert_eq!((decided.kept, decided.tokens), (kept, answer.tokens().len()));
        assert_eq!(decided.end.is_none() || decided.end == Some(AnswerEnd::Cap), decided.tokens == kept + 1);
        ended_at_once += usize::from(decided.end == Some(AnswerEnd::Stop));
        if decided.end.is_none() {
            assert_eq!(answer.feed_tokens(), prompt.len() + kept + 1);
            assert_eq!(answer.writing().unwrap().own, answer.tokens());
            write_on(&mut answer, &model, &mut out);
        }
        assert_eq!(answer.tokens(), want, "case {case}");
        let got: Vec<(usize, TokenId)> = out.iter().map(|w| (w.index, w.id)).collect();
        assert_eq!(got, (kept..).zip(want[kept..].iter().copied()).collect::<Vec<_>>());
        assert!(out.iter().all(|w| w.text.is_none()) && answer.tail().is_empty());
    }
    assert!(agreed_all > 50 && ended_at_once > 10, "{agreed_all} {ended_at_once}");
}

#[test]
fn a_part_that_does_not_fit_is_refused() {
    let model = FakeModel::new(1);
    let answer = |prompt: Vec<TokenId>| {
        Answer::new(AnswerOptions { room_tokens: 6, ..plain(&model, &samplers(1)[0], prompt) })
    };
    let refused = |answer: &mut Answer, accepted| answer.accept(accepted).unwrap_err().to_string();
    let mut some = answer(vec![1, 2]);
    assert_eq!(
        refused(&mut some, Accepted::Ids(vec![1; 5])),
        "the accepted part has 5 tokens, but there is room for 4"
    );
    assert_eq!(
        refused(&mut some, Accepted::Text("abcde".to_owned())),
        "the accepted part has 5 tokens, but there is room for 4"
    );
    let beyond = model.vocab_len as TokenId;
    assert_eq!(
        refused(&mut some, Accepted::Ids(vec![1, beyond])),
        format!("the accepted part has token {beyond}, but the model has {beyond} tokens")
    );
    assert_eq!(
        refused(&mut answer(vec![]), Accepted::Ids(vec![])),
        "there is no prompt before the accepted part"
    );
    assert_eq!(some.accept(Accepted::Ids(vec![1; 4])), Ok(4));
    // Nothing of it was computed.
    assert_eq!(some.verified(), None);
    let decided = some.decide(Keep::All, 4, &mut Vec::new());
    assert_eq!(decided, Decided { kept: 0, tokens: 0, end: Some(AnswerEnd::Failed) });
    assert_eq!(some.fault().unwrap().to_string(), "the accepted part is not verified yet");
}

#[test]
fn the_cap_counts_accepted_tokens_and_the_room_all_of_them() {
    let model = FakeModel { likely: vec![byte_id(b'a'), byte_id(b'b')], ..FakeModel::new(3) };
    for (max_tokens, room_tokens, tokens) in [(6, 100, 6), (50, 9, 7), (3, 100, 4), (50, 5, 4)] {
        let options = plain(&model, &samplers(2)[1], vec![1, 2]);
        let mut answer = Answer::new(AnswerOptions { max_tokens, room_tokens, ..options });
        let accepted = answer.accept(Accepted::Ids(vec![byte_id(b'a'); 3])).unwrap();
        verify(&mut answer, &model, accepted, &mut SplitMix64::new(1));
        let mut out = Vec::new();
        let end = answer.decide(Keep::All, 3, &mut out).end;
        let end = end.unwrap_or_else(|| write_on(&mut answer, &model, &mut out));
        assert_eq!((end, answer.tokens().len(), out.len()), (AnswerEnd::Cap, tokens, tokens - 3));
    }
}

#[test]
fn a_damaged_row_of_the_accepted_part_ends_the_answer() {
    let model = FakeModel::new(3);
    let mut answer = Answer::new(plain(&model, &samplers(2)[0], vec![1, 2, 3]));
    answer.accept(Accepted::Ids(vec![4, 5])).unwrap();
    let mut logits = model.rows(&answer.feed(0..5), 0);
    // Rows before the first choice are not looked at.
    logits[model.vocab_len] = f32::NAN;
    let row = StepRow::Verify { id: ID, tokens: 0..5, last: true };
    assert_eq!(answer.took(&row, &[], &logits, &mut Vec::new()).end, None);
    answer.accept(Accepted::Ids(vec![4, 5])).unwrap();
    logits[3 * model.vocab_len + 7] = f32::INFINITY;
    assert_eq!(answer.took(&row, &[], &logits, &mut Vec::new()).end, Some(AnswerEnd::Failed));
    assert!(matches!(answer.fault(), Some(Fault::Logits(err)) if err.id == 7));
}

#[test]
fn another_prompt_forgets_what_was_accepted() {
    let model = FakeModel::new(4);
    let sampler = &samplers(4)[1];
    let mut answer = Answer::new(plain(&model, sampler, vec![1, 2, 3]));
    answer.accept(Accepted::Ids(vec![9, 9])).unwrap();
    verify(&mut answer, &model, 2, &mut SplitMix64::new(2));
    answer.set_prompt(vec![1, 7], None);
    assert_eq!((answer.prompt(), answer.feed_tokens(), answer.verified()), (&[1, 7][..], 2, None));
    assert_eq!(answer.feed(0..9), [1, 7]);
    let mut out = Vec::new();
    if take_one(&mut answer, &model, false, &mut out).end.is_none() {
        write_on(&mut answer, &model, &mut out);
    }
    assert_eq!(answer.tokens(), continuation(&model, sampler, &[1, 7], &[]));
}

#[test]
fn an_answer_with_a_form_goes_on_in_it_behind_what_another_wrote_in_it() {
    let mut random = SplitMix64::new(33);
    let (mut taken_back, mut by_text) = (0, 0);
    for case in 0..500 {
        let model = FakeModel::new(random.next_u64());
        let sampler = samplers(random.next_u64())[random.below(3)].clone();
        let prompt = prompt(&mut random);
        let (seed, complete_at) = (random.next_u64(), 1 + random.below(12));
        let new = || {
            let form: Box<dyn Constraint> = Box::new(Form::new(seed, complete_at));
            Answer::new(AnswerOptions { constraint: Some(form), ..plain(&model, &sampler, prompt.clone()) })
        };
        let mut alone = new();
        write_on(&mut alone, &model, &mut Vec::new());
        let whole = alone.tokens().to_vec();
        let given = random.below(whole.len().max(1));
        let bytes: Vec<u8> =
            whole[..given].iter().flat_map(|&id| TOKENIZER.token_bytes(id).to_vec()).collect();
        let text = String::from_utf8(bytes).ok().filter(|_| random.percent(50));
        let keep = match &text {
            Some(_) => Keep::All,
            None => Keep::Tokens(random.below(given + 1)),
        };
        by_text += usize::from(text.is_some());
        let accepted = text.map_or_else(|| Accepted::Ids(whole[..given].to_vec()), Accepted::Text);
        let mut answer = new();
        assert_eq!(answer.accept(accepted), Ok(given));
        verify(&mut answer, &model, given, &mut random);
        let index = if let Keep::Tokens(kept) = keep { kept } else { given };
        taken_back += usize::from(index < given);
        let mut out = Vec::new();
        if answer.decide(keep, index, &mut out).end.is_none() {
            write_on(&mut answer, &model, &mut out);
        }
        assert_eq!(answer.tokens(), whole, "case {case}: {keep:?} of {given}");
        assert_eq!(out.len(), whole.len() - index);
        assert_eq!(answer.fault(), None);
    }
    assert!(taken_back > 50 && by_text > 50, "{taken_back} {by_text}");
}
