//! Takeover by text: no letter is lost or doubled, and nothing is shown again.

use std::collections::BTreeMap;

use baton_engine::detokenize::Detokenizer;
use baton_engine::gguf::GgufWriter;
use baton_synthetic::{WORD_SPANS, WORD_TAKEOVERS, WordTakeover, scored_vocabulary};

use super::super::takeover::stable_boundary;
use super::*;

/// Makes a SentencePiece tokenizer that puts a space before the text.
fn scored_tokenizer() -> Arc<Tokenizer> {
    let mut file = GgufWriter::new();
    scored_vocabulary(&mut file);
    let file = Gguf::from_bytes(file.to_bytes().unwrap()).unwrap();
    Arc::new(Tokenizer::from_gguf(&file).unwrap())
}

/// Accepts a text, verifies it in one pass, decides, and writes on to the end.
///
/// Returns the texts of the written tokens, with the end of the text, and how the answer ended.
fn take_over(
    answer: &mut Answer,
    (text, keep, index): (&str, Keep, usize),
    logits: impl Fn(&[TokenId]) -> Vec<f32>,
) -> (Vec<String>, AnswerEnd) {
    let accepted = answer.accept(Accepted::Text(text.to_owned())).unwrap();
    let total = answer.feed_tokens() + accepted;
    let tokens = answer.feed_tokens() - 1..total;
    let rows = |answer: &Answer, tokens: Range<usize>| -> Vec<f32> {
        tokens.flat_map(|at| logits(&answer.feed(0..at + 1))).collect()
    };
    let row = StepRow::Verify { id: ID, tokens: tokens.clone(), last: true };
    let given = rows(answer, tokens);
    assert_eq!(answer.took(&row, &[], &given, &mut Vec::new()), Outcome::default());
    let verified = answer.verified().unwrap();
    assert_eq!((verified.own.len(), verified.compared), (0, accepted));
    assert_eq!(verified.agreed + verified.differs_at_bytes.len(), accepted);
    let mut out = Vec::new();
    let decided = answer.decide(keep, index, &mut out);
    let mut end = decided.end;
    while end.is_none() {
        let feed = answer.feed_tokens();
        let given = rows(answer, feed - 1..feed);
        end = answer.took(&StepRow::Decode { id: ID, proposed: 0 }, &[], &given, &mut out).end;
    }
    let indices: Vec<usize> = out.iter().map(|written| written.index).collect();
    assert_eq!(indices, (index..index + out.len()).collect::<Vec<_>>());
    let mut texts: Vec<String> = out.into_iter().map(|written| written.text.unwrap()).collect();
    texts.push(answer.tail().to_owned());
    (texts, end.unwrap())
}

/// Returns the accepted text and the text shown after it, if the model writes the second piece of each pair
/// in `writes` after the first.
fn shown(tokenizer: &Arc<Tokenizer>, accepted: &str, keep: Keep, writes: &[(&str, &str)]) -> String {
    let id = |piece: &str| -> TokenId {
        let text = piece.replace('▁', " ");
        let found = |id: &TokenId| tokenizer.token_bytes(*id) == text.as_bytes();
        (259..tokenizer.vocab_len() as TokenId).find(found).unwrap()
    };
    let mut next: BTreeMap<TokenId, TokenId> =
        writes.iter().map(|&(last, next)| (id(last), id(next))).collect();
    next.insert(id(writes.last().unwrap().1), tokenizer.eos().unwrap());
    let mut answer = Answer::new(AnswerOptions {
        tokenizer: tokenizer.clone(),
        vocab_len: tokenizer.vocab_len(),
        ..plain(&FakeModel::new(1), &Sampler::new(SamplingParams::default()).unwrap(), vec![1, 20, 21])
    });
    let noise = FakeModel { vocab_len: tokenizer.vocab_len(), likely: Vec::new(), ..FakeModel::new(1) };
    let logits = |sequence: &[TokenId]| {
        let mut logits = noise.logits(sequence);
        if let Some(&next) = next.get(&sequence[sequence.len() - 1]) {
            logits[next as usize] = 1e6;
        }
        logits
    };
    let (texts, end) = take_over(&mut answer, (accepted, keep, 3), logits);
    assert_eq!(end, AnswerEnd::Stop);
    let kept = if let Keep::Bytes(bytes) = keep { &accepted[..bytes] } else { accepted };
    kept.to_owned() + &texts.concat()
}

#[test]
fn a_takeover_within_a_word_neither_doubles_nor_loses_a_letter() {
    let tokenizer = scored_tokenizer();
    for (text, spans) in WORD_SPANS {
        assert_eq!(tokenizer.encode_answer(text).1, spans, "{text}");
    }
    for WordTakeover { accepted, kept_bytes, writes, text } in WORD_TAKEOVERS {
        let keep = kept_bytes.map_or(Keep::All, Keep::Bytes);
        assert_eq!(shown(&tokenizer, accepted, keep, writes), text, "{accepted} {keep:?}");
    }
}

/// Takes over a random text with this tokenizer; returns whether its end was written with other tokens.
fn take_over_some(tokenizer: &Arc<Tokenizer>, likely: &[TokenId], words: &[&str], seed: u64) -> bool {
    let mut random = SplitMix64::new(seed);
    let model =
        FakeModel { vocab_len: tokenizer.vocab_len(), likely: likely.to_vec(), seed: random.next_u64() };
    let sampler = samplers(random.next_u64())[random.below(3)].clone();
    let text: String = (0..1 + random.below(12)).map(|_| words[random.below(words.len())]).collect();
    let mut answer = Answer::new(AnswerOptions {
        tokenizer: tokenizer.clone(),
        max_tokens: 20,
        ..plain(&model, &sampler, prompt(&mut random))
    });
    let (ids, spans) = tokenizer.encode_answer(&text);
    let mut starts: Vec<usize> = spans.iter().map(|span| span.start).collect();
    starts.retain(|&at| text.is_char_boundary(at));
    let some = Keep::Bytes(starts[random.below(starts.len())]);
    let keep = if random.percent(70) { Keep::All } else { some };
    let take = (text.as_str(), keep, random.below(6));
    let (texts, end) = take_over(&mut answer, take, |sequence| model.logits(sequence));
    let mut whole = Detokenizer::new(tokenizer.clone());
    let mut decoded: String = answer.tokens().iter().map(|&id| whole.push(id)).collect();
    if end == AnswerEnd::Stop {
        decoded.push_str(&whole.finish());
    }
    let kept = if let Keep::Bytes(bytes) = keep { &text[..bytes] } else { &text[..] };
    let want = kept.to_owned() + &texts.concat();
    // The space that SentencePiece puts before the text is not part of it.
    assert!(
        decoded == want || decoded.strip_prefix(' ') == Some(&want),
        "{seed}: {decoded:?} {want:?} {text:?} {keep:?}"
    );
    keep == Keep::All && !answer.tokens().starts_with(&ids)
}

#[test]
fn the_text_of_all_tokens_is_what_was_accepted_and_what_was_shown() {
    let bytes = FakeModel::new(0).likely;
    let letters = ["a", "b", " ", "é", "日", "\n"];
    let scored = scored_tokenizer();
    let pieces: Vec<TokenId> = (258..scored.vocab_len() as TokenId).chain(scored.eos()).collect();
    let words = ["The", " ship", " is", " island", " née", "x", "yz", " ", "é", "日"];
    let mut healed = 0;
    for seed in 0..400 {
        take_over_some(&tokenizer(), &bytes, &letters, seed);
        healed += usize::from(take_over_some(&scored, &pieces, &words, seed));
    }
    assert!(healed > 50, "{healed} answers write the end of the accepted text with other tokens");
}

#[test]
fn the_next_tokens_agree_with_the_rest_of_the_text_and_nothing_is_proposed_meanwhile() {
    let tokenizer = scored_tokenizer();
    let (vocab_len, sampler) = (tokenizer.vocab_len(), Sampler::new(SamplingParams::default()).unwrap());
    let options = plain(&FakeModel::new(1), &sampler, vec![1, 20]);
    let mut answer =
        Answer::new(AnswerOptions { tokenizer: tokenizer.clone(), vocab_len, max_tokens: 9, ..options });
    let accepted = answer.accept(Accepted::Text("The ship is".to_owned())).unwrap();
    assert_eq!(accepted, 3);
    // The model likes `yz` everywhere, and, of what agrees with " is", a single space.
    let liked = |text: &str| -> TokenId {
        (259..vocab_len as TokenId).find(|&id| tokenizer.token_bytes(id) == text.as_bytes()).unwrap()
    };
    let mut row = vec![0.0; vocab_len];
    (row[liked("yz") as usize], row[liked(" ") as usize]) = (9.0, 5.0);
    let rows = row.repeat(accepted + 1);
    let verify = StepRow::Verify { id: ID, tokens: 1..2 + accepted, last: true };
    answer.took(&verify, &[], &rows, &mut Vec::new());
    let mut out = Vec::new();
    let decided = answer.decide(Keep::All, 5, &mut out);
    assert_eq!(decided, Decided { kept: 2, tokens: 3, end: None });
    assert_eq!((answer.tokens()[2], out.len()), (liked(" "), 0), "it lies within the accepted text");
    assert!(answer.writing().is_none());
    let decode = StepRow::Decode { id: ID, proposed: 0 };
    // Of the rest, "is", only the bytes agree; the first of them is `i`.
    let outcome = answer.took(&decode, &[], &row, &mut out);
    assert_eq!((outcome.written, out.len()), (1, 0));
    assert_eq!(tokenizer.token_bytes(answer.tokens()[3]), b"i");
    answer.took(&decode, &[], &row, &mut out);
    assert!(answer.writing().is_some() && out.is_empty());
    answer.took(&decode, &[], &row, &mut out);
    assert_eq!(out, [Written { index: 5, id: liked("yz"), text: Some("yz".to_owned()) }]);
}

#[test]
fn the_last_word_begins_at_a_space_not_far_back() {
    let boundary = |text: &str| {
        let (_, spans) = TOKENIZER.encode_answer(text);
        spans[stable_boundary(text, &spans)].start
    };
    assert_eq!(boundary("one two"), 3);
    assert_eq!(boundary("one two "), 7);
    assert_eq!(boundary("one"), 0);
    assert_eq!(boundary("a\nbc"), 1);
    // No space within 48 bytes: the last token.
    assert_eq!(boundary(&("a ".to_owned() + &"x".repeat(60))), 61);
    assert_eq!(boundary(&("a ".to_owned() + &"x".repeat(46))), 1);
    assert_eq!(boundary(&("a ".to_owned() + &"x".repeat(47))), 1);
    assert_eq!(boundary(&("a ".to_owned() + &"x".repeat(48))), 49);
    assert_eq!(stable_boundary("", &[]), 0);
}

#[test]
fn a_choice_agrees_if_it_writes_the_same_text() {
    let tokenizer = scored_tokenizer();
    let vocab_len = tokenizer.vocab_len();
    let sampler = Sampler::new(SamplingParams::default()).unwrap();
    let options = plain(&FakeModel::new(1), &sampler, vec![1, 20]);
    let mut answer = Answer::new(AnswerOptions { tokenizer: tokenizer.clone(), vocab_len, ..options });
    answer.accept(Accepted::Text("The ship is".to_owned())).unwrap();
    let id = |text: &str| -> TokenId {
        (0..vocab_len as TokenId).find(|&id| tokenizer.token_bytes(id) == text.as_bytes()).unwrap()
    };
    // `The` is written byte by byte, `▁ship` in a beginning, and in place of `▁is` an end token comes.
    let choices = [id("T"), id(" shi"), tokenizer.eos().unwrap(), id("yz")];
    let mut logits = vec![0.0; 4 * vocab_len];
    for (i, &choice) in choices.iter().enumerate() {
        logits[i * vocab_len + choice as usize] = 9.0;
    }
    answer.took(&StepRow::Verify { id: ID, tokens: 1..5, last: true }, &[], &logits, &mut Vec::new());
    let verified = answer.verified().unwrap();
    assert_eq!(verified, Verified { own: Vec::new(), compared: 3, agreed: 2, differs_at_bytes: vec![8] });
}
