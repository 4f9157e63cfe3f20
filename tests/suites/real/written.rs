//! Greedy continuations, token by token.

use baton_e2e::reference::Reference;
use baton_engine::engine::KvFormat;
use baton_engine::{Engine, StepSeq, Wanted};
use baton_random::SplitMix64;

use super::super::{Real, World};
use super::texts;

/// Tokens of each continuation.
const TOKENS: usize = 16;
/// The most by which the reference's logit of another choice may lie below that of its own. Both programs
/// round activations to 8 bits, each in its own way.
const EPSILON: f32 = 0.5;
/// The fewest continuations that are equal to their ends.
const EQUAL_MIN: usize = 16;
/// Lengths of the long prompts, in tokens.
const LONG: [usize; 8] = [500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 8_000];
const CONTEXT: usize = 8_192;

/// Returns at least 60 prompts: chats, prose, code and other scripts of 16 to 300 tokens, and longer ones.
fn prompts(world: &World) -> Vec<Vec<u32>> {
    let mut random = SplitMix64::new(5);
    let sources = [texts::prose(), texts::code(), texts::other()];
    let tokenizer = world.model.tokenizer();
    let mut prompts = Vec::new();
    for at in 0..56 {
        let text = texts::piece(&sources[at % 3], 30 + random.below(1_000), &mut random);
        let ids = if world.real == Real::SmolLm2 && at % 2 == 0 {
            tokenizer.encode_template(&format!(
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{text}\n\nWhat is this \
                 about?<|im_end|>\n<|im_start|>assistant\n"
            ))
        } else {
            tokenizer.encode(text)
        };
        prompts.push(ids);
    }
    for (at, tokens) in LONG.into_iter().enumerate() {
        let mut ids = tokenizer.encode(texts::piece(&sources[at % 2], tokens * 6, &mut random));
        ids.truncate(tokens);
        prompts.push(ids);
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    prompts.into_iter().map(|ids| bos.into_iter().chain(ids).collect()).collect()
}

/// Returns the engine's most probable continuation.
fn continued(engine: &mut Engine, ids: &[u32], tokens: usize) -> Vec<u32> {
    let seq = engine.create();
    let mut step = |ids: &[u32], logits| {
        let outputs = engine.step(&[StepSeq { seq, ids, logits, capture: None }], &mut ()).expect("a step");
        let row = &outputs[0].logits;
        (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).map(|id| id as u32)
    };
    let (last, before) = ids.split_last().expect("a prompt");
    before.chunks(512).for_each(|ids| _ = step(ids, Wanted::None));
    let mut written = Vec::new();
    let mut next = step(&[*last], Wanted::Last).expect("a token");
    loop {
        written.push(next);
        if written.len() == tokens {
            break;
        }
        next = step(&[next], Wanted::Last).expect("a token");
    }
    engine.release(seq);
    written
}

/// Returns by how much the reference's logit of the second token lies below that of the first.
fn below(reference: &mut Reference, ids: &[u32], [first, second]: [u32; 2]) -> f32 {
    let row = reference.logits(ids, ids.len() - 1).expect("logits");
    row[first as usize] - row[second as usize]
}

#[test]
fn greedy_continuations_are_llama_cpps_wherever_it_is_clear() {
    for real in Real::ALL {
        let Some(world) = World::open(real) else { return };
        let mut reference = world.reference(CONTEXT);
        let mut engine = world.engine(CONTEXT, KvFormat::default());
        let (mut equal, mut largest, mut clear) = (0, 0.0f32, Vec::new());
        let prompts = prompts(&world);
        for (number, ids) in prompts.iter().enumerate() {
            let want = reference.greedy(ids, TOKENS).expect("tokens");
            let have = continued(&mut engine, ids, want.len());
            let same = want.iter().zip(&have).take_while(|(want, have)| want == have).count();
            if same == want.len() {
                equal += 1;
                continue;
            }
            let text = [ids, &want[..same]].concat();
            let below = below(&mut reference, &text, [want[same], have[same]]);
            largest = largest.max(below);
            if below > EPSILON {
                clear.push((number, text, [want[same], have[same]], below));
            }
        }
        println!(
            "{real:?}: {equal} of {} continuations of {TOKENS} tokens equal; the first other token of the others is at \
             most {largest:.3} below the reference's",
            prompts.len()
        );
        if !clear.is_empty() {
            // Tells how far apart the choices are if no activation is rounded.
            let (mut floats, _folder) = world.floats(CONTEXT);
            for (number, text, choices, by) in &clear {
                let exact = below(&mut floats, text, *choices);
                let at = text.len();
                println!("{real:?}: prompt {number}, token {at}: {by:.3} below, {exact:.3} with floats");
            }
        }
        assert!(prompts.len() >= 60 && clear.is_empty(), "{real:?}: {} are further below", clear.len());
        assert!(equal >= EQUAL_MIN, "{real:?}: {equal} of {} are equal", prompts.len());
    }
}
