//! Text to tokens and back.

use baton_random::SplitMix64;

use super::super::{Real, World};
use super::texts;

/// Random strings of each file.
const STRINGS: usize = 5_000;

#[test]
fn random_strings_have_llama_cpps_tokens_and_come_back() {
    for real in Real::ALL {
        let Some(world) = World::open(real) else { return };
        let mut random = SplitMix64::new(17);
        let sources = [texts::prose(), texts::code(), texts::other()];
        let texts: Vec<String> = (0..STRINGS).map(|_| texts::random(&sources, &mut random)).collect();
        let want = world.reference(64).tokenize(&texts, false).expect("tokens");
        let tokenizer = world.model.tokenizer();
        let (mut differ, mut lost) = (Vec::new(), Vec::new());
        for (text, want) in texts.iter().zip(&want) {
            let have = tokenizer.encode(text);
            if have != *want {
                differ.push((text, have.clone(), want));
            }
            let back: Vec<u8> = have.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
            if back != text.as_bytes() && !has_no_token(&world, text) {
                lost.push(text);
            }
        }
        let counts = (differ.len(), lost.len());
        assert_eq!(counts, (0, 0), "{real:?}: {:?} {:?}", differ.first(), lost.first());
        let tokens: usize = want.iter().map(Vec::len).sum();
        println!("{real:?}: {STRINGS} strings, {tokens} tokens equal and come back");
    }
}

/// Whether the text holds a byte without a token of its own that no longer token covers: its tokens lack it,
/// in llama.cpp too.
fn has_no_token(world: &World, text: &str) -> bool {
    let tokenizer = world.model.tokenizer();
    let bytes: usize = tokenizer.encode(text).iter().map(|&id| tokenizer.token_bytes(id).len()).sum();
    world.real == Real::SmolLm2 && bytes < text.len()
}
