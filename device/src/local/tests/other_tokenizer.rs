//! Tests that a SentencePiece device takes over from a cloud with another tokenizer: no letter is lost or
//! doubled.

use super::watched::watched;
use super::*;
use baton_synthetic::{WORD_SPANS, WORD_TAKEOVERS, WordTakeover, scored_gguf};
use std::collections::HashMap;

/// Returns the token of this text; `▁` stands for a space.
fn id(model: &Model, piece: &str) -> TokenId {
    let text = piece.replace('▁', " ");
    let found = |id: &TokenId| model.tokenizer().token_bytes(*id) == text.as_bytes();
    (259..model.tokenizer().vocab_len() as TokenId).find(found).unwrap()
}

/// Returns the accepted text and the text shown after it, if the model writes the second piece of each pair
/// in `writes` after the first.
fn shown(model: &Arc<Model>, accepted: &str, keep: Keep, writes: &[(&str, &str)]) -> String {
    let mut next: HashMap<TokenId, TokenId> =
        writes.iter().map(|&(last, next)| (id(model, last), id(model, next))).collect();
    let last = writes.last().expect("it writes something").1;
    next.insert(id(model, last), model.tokenizer().eos().unwrap());
    let vocab_len = model.tokenizer().vocab_len();
    let engine = watched(model.clone(), move |step, output| {
        let rows = output.logits.len() / vocab_len;
        let ids = &step.ids[step.ids.len() - rows..];
        for (id, row) in ids.iter().zip(output.logits.chunks_exact_mut(vocab_len)) {
            if let Some(&next) = next.get(id) {
                row[next as usize] = 1e6;
            }
        }
    });
    let mut engine = Driven::new(engine, LocalOptions::new(1024));
    engine.command(EngineCommand::Open { prompt: P, spec: spec("Item 3.", 8, false), scope: Scope::Whole });
    run(&mut engine);
    let accepted = accepted.to_owned();
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Text(accepted.clone()) });
    run(&mut engine);
    let mut reports = engine.command(EngineCommand::Decode { prompt: P, keep, index: 3 });
    reports.extend(run(&mut engine));
    let kept = if let Keep::Bytes(bytes) = keep { &accepted[..bytes] } else { &accepted[..] };
    let mut text = kept.to_owned();
    for report in reports {
        match report {
            EngineReport::Token { text: Some(more), .. } | EngineReport::Ended { text: more, .. } => {
                text.push_str(&more);
            }
            other => panic!("{other:?}"),
        }
    }
    text
}

#[test]
fn a_takeover_within_a_word_neither_doubles_nor_loses_a_letter() {
    let model = Model::from_gguf(Gguf::from_bytes(scored_gguf(1).unwrap()).unwrap()).unwrap();
    for (text, spans) in WORD_SPANS {
        assert_eq!(model.tokenizer().encode_answer(text).1, spans, "{text}");
    }
    for WordTakeover { accepted, kept_bytes, writes, text } in WORD_TAKEOVERS {
        let keep = kept_bytes.map_or(Keep::All, Keep::Bytes);
        assert_eq!(shown(&model, accepted, keep, writes), text, "{accepted} {keep:?}");
    }
}
