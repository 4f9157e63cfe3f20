//! Sequences that keep only a part of their keys and values.

use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineOptions, EvictError, Kept, KvError, SlidingWindow};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

use crate::reference::definition::masked_reference;
use crate::reference::relative_error;
use crate::{all_logits, assert_same_bits, engine, exact, family, open, prompt, tiny};

/// Tokens before the eviction.
const PROMPT: usize = 100;

/// Returns different positions for every head: of 100, those that a multiplicative hash ranks lowest.
fn scattered(heads: usize, tokens: usize) -> Vec<Vec<usize>> {
    let rank = |head: usize, position: usize| (position * 7_919 + head * 104_729 + 17) * 31 % 1_009;
    (0..heads)
        .map(|head| {
            let mut order: Vec<usize> = (0..PROMPT).collect();
            order.sort_by_key(|&position| (rank(head, position), position));
            order.truncate(tokens);
            order.sort_unstable();
            order
        })
        .collect()
}

#[track_caller]
fn check_against_a_mask(kept_tokens: usize, chunk: usize) {
    let model = tiny("llama", Format::F32);
    let ids = prompt(5, 150);
    let heads = (model.n_layers * model.n_kv_heads) as usize;
    let kept = scattered(heads, kept_tokens);
    let seen =
        |head: usize, query: usize, key: usize| query < PROMPT || key >= PROMPT || kept[head].contains(&key);
    let want = masked_reference(&model, &ids, None, &seen).logits[PROMPT..].to_vec();
    let mut engine = engine(&open(&model), 2, exact());
    let seq = engine.create();
    all_logits(&mut engine, seq, &ids[..PROMPT]);
    let thin = engine.evict(seq, &Kept::new(&kept).unwrap()).unwrap();
    let have: Vec<f32> =
        ids[PROMPT..].chunks(chunk).flat_map(|ids| all_logits(&mut engine, thin, ids)).collect();
    let error = relative_error(&have, &want);
    assert!(error <= 1e-5, "{kept_tokens} kept: relative error {error:.2e}");
    assert_eq!(engine.len(thin).unwrap(), ids.len());
    assert_eq!(engine.ids(thin).unwrap(), ids);
}

#[test]
fn what_is_left_is_what_a_mask_over_the_whole_would_leave() {
    for (kept_tokens, chunk) in [(1, 50), (31, 7), (32, 1), (33, 50), (64, 13), (99, 50)] {
        check_against_a_mask(kept_tokens, chunk);
    }
}

/// Compares a model with a sliding window, its own or the engine's, with masks over the whole.
#[track_caller]
fn check_with_a_window(model: &SyntheticModel, option: Option<SlidingWindow>, seen: SlidingWindow) {
    let (ids, opened) = (prompt(5, 190), open(model));
    let mut engine = engine(&opened, 2, EngineOptions { window: option, ..exact() });
    let seq = engine.create();
    all_logits(&mut engine, seq, &ids[..PROMPT]);
    let heads = (model.n_layers * model.n_kv_heads) as usize;
    let kept: Vec<Vec<usize>> =
        scattered(1, 30).iter().cycle().take(heads).map(|some| seen.with_seen(some, PROMPT)).collect();
    let sees =
        |head: usize, query: usize, key: usize| query < PROMPT || key >= PROMPT || kept[head].contains(&key);
    let want = masked_reference(model, &ids, option, &sees).logits[PROMPT..].to_vec();
    let thin = engine.evict(seq, &Kept::new(&kept).unwrap()).unwrap();
    let have: Vec<f32> =
        ids[PROMPT..].chunks(17).flat_map(|ids| all_logits(&mut engine, thin, ids)).collect();
    let error = relative_error(&have, &want);
    assert!(error <= 1e-5 && kept[0].len() < PROMPT, "{}: relative error {error:.2e}", model.family);
    // With one token less, the window would see another one in its place.
    let fewer: Vec<Vec<usize>> = kept.iter().map(|kept| kept[..kept.len() - 1].to_vec()).collect();
    let refused = engine.evict(seq, &Kept::new(&fewer).unwrap());
    assert!(matches!(refused, Err(EvictError::SlidingWindow { head: 0, .. })), "{refused:?}");
}

#[test]
fn what_a_window_sees_stays_and_the_rest_may_go() {
    let window = |tokens, sinks| SlidingWindow { tokens, sinks };
    check_with_a_window(&family("gemma2", Format::F32), None, window(40, 0));
    check_with_a_window(&family("gpt-oss", Format::F32), None, window(40, 0));
    check_with_a_window(&tiny("llama", Format::F32), Some(window(33, 4)), window(33, 4));
}

#[test]
fn keeping_everything_changes_no_bit_in_any_format() {
    for kv_format in KvFormat::ALL {
        let model = tiny("llama", Format::Q8_0);
        let ids = prompt(9, 150);
        let mut engine = engine(&open(&model), 1, EngineOptions { kv_format, ..EngineOptions::default() });
        let seq = engine.create();
        all_logits(&mut engine, seq, &ids[..PROMPT]);
        let all = vec![(0..PROMPT).collect::<Vec<_>>(); (model.n_layers * model.n_kv_heads) as usize];
        let copy = engine.evict(seq, &Kept::new(&all).unwrap()).unwrap();
        let have = all_logits(&mut engine, copy, &ids[PROMPT..]);
        let want = all_logits(&mut engine, seq, &ids[PROMPT..]);
        assert_same_bits(&have, &want, "everything kept");
    }
}

fn thinned(engine: &mut Engine, heads: usize) -> baton_engine::SeqId {
    let seq = engine.create();
    all_logits(engine, seq, &prompt(5, PROMPT));
    let thin = engine.evict(seq, &Kept::new(&scattered(heads, 40)).unwrap()).unwrap();
    engine.release(seq);
    thin
}

#[test]
fn a_thinned_sequence_forks_and_is_cut_where_it_grew() {
    let model = tiny("llama", Format::F32);
    let heads = (model.n_layers * model.n_kv_heads) as usize;
    let mut engine = engine(&open(&model), 1, EngineOptions::default());
    let thin = thinned(&mut engine, heads);
    let more = prompt(6, 40);
    let want = all_logits(&mut engine, thin, &more);
    let fork = engine.fork(thin, PROMPT + 10).unwrap();
    let vocab_len = engine.model().config().vocab_len;
    let have = all_logits(&mut engine, fork, &more[10..]);
    assert_same_bits(&have, &want[10 * vocab_len..], "a fork");
    engine.truncate(thin, PROMPT).unwrap();
    assert_same_bits(&all_logits(&mut engine, thin, &more), &want, "cut and run again");
    let refused = KvError::Evicted { wanted: PROMPT - 1, least: PROMPT };
    assert_eq!(engine.truncate(thin, PROMPT - 1), Err(refused.clone()));
    assert_eq!(engine.fork(thin, PROMPT - 1), Err(refused));
    // Other sequences never find its blocks: a new sequence of the same tokens computes them all.
    engine.release(fork);
    engine.release(thin);
    let again = engine.create();
    let mut whole = prompt(5, PROMPT);
    whole.extend(&more);
    assert!(engine.reuse_prefix(again, &whole) <= PROMPT);
}

#[test]
fn what_cannot_be_evicted_is_refused() {
    let model = tiny("llama", Format::F32);
    let heads = (model.n_layers * model.n_kv_heads) as usize;
    let opened = open(&model);
    let options = EngineOptions { kv_tokens: 128, ..EngineOptions::default() };
    let mut small = engine(&opened, 1, options.clone());
    let seq = small.create();
    all_logits(&mut small, seq, &prompt(5, PROMPT));
    let kept = |tokens| Kept::new(&scattered(heads, tokens)).unwrap();
    assert_eq!(
        small.evict(seq, &kept(40)),
        Err(EvictError::Kv(KvError::KvFull { needed: 64, free: 0 })),
        "four blocks hold 100 tokens"
    );
    let few = Kept::new(&scattered(heads - 1, 4)).unwrap();
    assert_eq!(small.evict(seq, &few), Err(EvictError::Heads { heads: heads - 1, wanted: heads }));
    small.truncate(seq, 30).unwrap();
    assert!(matches!(small.evict(seq, &kept(40)), Err(EvictError::Position { cached: 30, .. })));
    let window = Some(SlidingWindow { tokens: 64, sinks: 4 });
    let mut windowed = engine(&opened, 1, EngineOptions { window, ..options });
    let seq = windowed.create();
    all_logits(&mut windowed, seq, &prompt(5, PROMPT));
    let refused = Err(EvictError::SlidingWindow { head: 0, first: 4, last: 37 });
    assert_eq!(windowed.evict(seq, &kept(40)), refused);
}
