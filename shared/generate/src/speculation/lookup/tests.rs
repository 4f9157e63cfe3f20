//! Proposals against a search of every earlier place.

use baton_engine::{Sampler, SamplingParams};
use proptest::prelude::*;

use super::*;
use crate::speculation::Writing;

/// Asks for proposals once for each of these sequences.
fn propose(lookups: &mut Lookups, writings: &[(&[TokenId], &[TokenId])], k: usize) -> Vec<Vec<TokenId>> {
    let sampler = Sampler::new(SamplingParams::default()).unwrap();
    let wants: Vec<Want<'_>> = writings
        .iter()
        .enumerate()
        .map(|(id, &(prompt, own))| {
            let writing = Writing { prompt, own, answer: own, sampler: &sampler };
            Want { id: JobId(id as u64), writing, k }
        })
        .collect();
    lookups.propose(&wants, &mut ()).unwrap()
}

fn one(lookups: &mut Lookups, prompt: &[TokenId], own: &[TokenId], k: usize) -> Vec<TokenId> {
    propose(lookups, &[(prompt, own)], k).remove(0)
}

#[track_caller]
fn check(prompt: &[TokenId], own: &[TokenId], k: usize, want: &[TokenId]) {
    assert_eq!(one(&mut Lookups::default(), prompt, own, k), want, "{prompt:?} {own:?}");
}

#[test]
fn the_longest_match_wins_and_the_last_of_equal_ones() {
    check(&[1, 2, 3, 4, 5], &[2, 3], 2, &[4, 5]);
    check(&[1, 2, 3, 4, 9, 2, 3, 7], &[2, 3], 1, &[7]);
    check(&[1, 2, 3, 4, 9, 2, 3, 7], &[1, 2, 3], 1, &[4]);
    check(&[1, 2, 3], &[9], 4, &[]);
    check(&[1, 2, 3, 4], &[], 4, &[]);
    check(&[], &[5], 4, &[]);
    check(&[5, 6, 7], &[5, 6], 9, &[7, 5, 6, 7, 5, 6, 7, 5, 6]);
    check(&[8, 8, 8], &[], 3, &[8, 8, 8]);
}

#[test]
fn another_sequence_is_read_anew() {
    let mut lookups = Lookups::default();
    assert_eq!(one(&mut lookups, &[1, 2, 3, 4], &[1, 2], 1), [3]);
    assert_eq!(one(&mut lookups, &[1, 2, 3, 4], &[1, 2, 9, 1, 2], 1), [9]);
    assert_eq!(one(&mut lookups, &[1, 2, 7, 4], &[1, 2], 1), [7]);
    assert!(one(&mut lookups, &[1, 2], &[], 1).is_empty());
}

#[test]
fn each_answer_has_its_own_index_until_it_ends() {
    let mut lookups = Lookups::default();
    let both: [(&[TokenId], &[TokenId]); 2] = [(&[1, 2, 3], &[1, 2]), (&[1, 2, 4], &[1, 2])];
    assert_eq!(propose(&mut lookups, &both, 1), [[3], [4]]);
    lookups.forget(JobId(0));
    assert_eq!(lookups.of.keys().collect::<Vec<_>>(), [&JobId(1)]);
    assert_eq!(propose(&mut lookups, &both, 1), [[3], [4]]);
}

#[test]
fn a_long_prompt_is_read_over_several_passes() {
    let long: Vec<TokenId> = (0..FOLLOWED_MAX as TokenId + 100).collect();
    let (short, mut lookups) = ([1, 2, 3], Lookups::default());
    let both: [(&[TokenId], &[TokenId]); 2] = [(&long, &[50, 51]), (&short, &[1, 2])];
    let none: [Vec<TokenId>; 2] = Default::default();
    assert_eq!(propose(&mut lookups, &both, 1), none, "the first one takes all of the pass");
    assert_eq!(propose(&mut lookups, &both, 1), [[52], [3]]);
    let read: usize = lookups.of.values().map(|lookup| lookup.ids.len()).sum();
    assert_eq!(read, long.len() + 2 + short.len() + 2);
}

/// Compares every earlier position, by definition.
fn naive(ids: &[TokenId], k: usize) -> Vec<TokenId> {
    let length =
        |at: usize| (1..=at.min(MATCH_MAX)).take_while(|n| ids[at - n] == ids[ids.len() - n]).count();
    let best = (2..ids.len()).filter(|at| length(*at) >= 2).max_by_key(|at| (length(*at), *at));
    let Some(at) = best else { return Vec::new() };
    let period = ids.len() - at;
    (0..k).map(|i| ids[at + i % period]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn proposals_are_those_of_a_naive_search(
        ids in prop::collection::vec(0..4u32, 0..60),
        cut in 0..60usize,
        k in 1..12usize,
    ) {
        let (prompt, own) = ids.split_at(cut.min(ids.len()));
        let mut lookups = Lookups::default();
        // An earlier sequence must not matter.
        one(&mut lookups, prompt, &[], k);
        prop_assert_eq!(one(&mut lookups, prompt, own, k), naive(&ids, k));
    }
}
