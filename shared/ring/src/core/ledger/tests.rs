//! A ledger is compared with plain lists of tokens, and every row of the table of refusals is looked at.

use baton_engine::Wanted;
use baton_random::SplitMix64;

use super::*;

const A: SeqNo = SeqNo(1);
const B: SeqNo = SeqNo(2);

fn span(seq: SeqNo, start: u64, ids: &[TokenId]) -> Span {
    Span { seq, start, wanted: Wanted::Last, ids: ids.to_vec() }
}

fn open(step: u64, spans: Vec<Span>) -> Operation {
    Operation::Open { step: StepNo(step), spans }
}

/// A ledger in which A has three tokens and B none.
fn begun(mut ledger: Ledger) -> Ledger {
    for operation in [
        Operation::Create { seq: A },
        Operation::Create { seq: B },
        open(1, vec![span(A, 0, &[7, 8, 9])]),
        Operation::Commit { step: StepNo(1) },
    ] {
        ledger.apply(&operation).unwrap();
    }
    ledger
}

#[test]
fn operations_that_do_not_fit_are_refused_and_change_nothing() {
    let past = |wanted, len| LedgerError::PastEnd { wanted, len };
    let other = SeqNo(9);
    let cases = [
        (Operation::Create { seq: A }, LedgerError::Known(A)),
        (Operation::Fork { from: other, tokens: 0, seq: other }, LedgerError::Unknown(other)),
        (Operation::Fork { from: A, tokens: 4, seq: other }, past(4, 3)),
        (Operation::Fork { from: A, tokens: 1, seq: B }, LedgerError::Known(B)),
        (Operation::Truncate { seq: other, tokens: 0 }, LedgerError::Unknown(other)),
        (Operation::Truncate { seq: A, tokens: 4 }, past(4, 3)),
        (Operation::Truncate { seq: A, tokens: u64::MAX }, past(usize::MAX, 3)),
        (Operation::Release { seq: other }, LedgerError::Unknown(other)),
        (Operation::Reuse { seq: other, ids: vec![1], gained: 1 }, LedgerError::Unknown(other)),
        (Operation::Reuse { seq: B, ids: vec![1], gained: 2 }, past(2, 1)),
        (open(2, vec![span(other, 0, &[1])]), LedgerError::Unknown(other)),
        (open(2, vec![span(A, 3, &[1]), span(A, 4, &[1])]), LedgerError::Twice(A)),
        (open(2, vec![span(A, 3, &[])]), LedgerError::Empty(A)),
        (open(2, vec![span(A, 2, &[1])]), LedgerError::Begins { seq: A, at: 2, len: 3 }),
        (Operation::Commit { step: StepNo(2) }, LedgerError::NotOpen(StepNo(2))),
        (Operation::Cancel { step: StepNo(1) }, LedgerError::NotOpen(StepNo(1))),
    ];
    for ledger in [begun(Ledger::with_ids()), begun(Ledger::lengths_only())] {
        for (operation, want) in &cases {
            let mut changed = ledger.clone();
            assert_eq!(changed.apply(operation).as_ref(), Err(want), "{operation:?}");
            assert_eq!(changed, ledger);
        }
    }
}

#[test]
fn while_a_step_is_open_only_its_end_fits() {
    let mut ledger = begun(Ledger::with_ids());
    ledger.apply(&open(2, vec![span(A, 3, &[1, 2]), span(B, 0, &[5])])).unwrap();
    assert_eq!(ledger.open().map(|(step, rows)| (step, rows.len())), Some((StepNo(2), 3)));
    for operation in [
        open(3, vec![span(A, 3, &[1])]),
        Operation::Release { seq: A },
        Operation::Truncate { seq: A, tokens: 0 },
        Operation::Create { seq: SeqNo(9) },
    ] {
        assert_eq!(ledger.apply(&operation), Err(LedgerError::StepOpen(StepNo(2))));
    }
    assert_eq!(ledger.apply(&Operation::Commit { step: StepNo(3) }), Err(LedgerError::NotOpen(StepNo(3))));
    assert_eq!((ledger.len(A), ledger.len(B)), (Some(3), Some(0)), "an open step adds no tokens");
    let mut cancelled = ledger.clone();
    cancelled.apply(&Operation::Cancel { step: StepNo(2) }).unwrap();
    assert_eq!((cancelled.ids(A), cancelled.open()), (Some(&[7, 8, 9][..]), None));
    ledger.apply(&Operation::Commit { step: StepNo(2) }).unwrap();
    assert_eq!((ledger.ids(A), ledger.ids(B)), (Some(&[7, 8, 9, 1, 2][..]), Some(&[5][..])));
}

#[test]
fn a_worker_takes_a_bounded_number_of_sequences() {
    let create = |ledger: &mut Ledger| {
        let made = (0..).find_map(|seq| ledger.apply(&Operation::Create { seq: SeqNo(seq) }).err());
        (made, ledger.seqs().count())
    };
    let refused = create(&mut Ledger::lengths_only());
    assert_eq!(refused, (Some(LedgerError::TooMany), SEQUENCES_MAX));
}

#[test]
fn both_kinds_agree_with_lists_of_tokens() {
    let mut random = SplitMix64::new(11);
    let (mut head, mut worker) = (Ledger::with_ids(), Ledger::lengths_only());
    let mut lists: BTreeMap<SeqNo, Vec<TokenId>> = BTreeMap::new();
    let (mut next, mut step, mut applied) = (0, 0, 0);
    for _ in 0..3000 {
        let seqs: Vec<SeqNo> = lists.keys().copied().collect();
        let any = |random: &mut SplitMix64| seqs[random.below(seqs.len())];
        let mut operations = Vec::new();
        match random.below(7) {
            0 | 1 if seqs.len() < 5 => {
                next += 1;
                lists.insert(SeqNo(next), Vec::new());
                operations.push(Operation::Create { seq: SeqNo(next) });
            }
            _ if seqs.is_empty() => {}
            2 => {
                next += 1;
                let from = any(&mut random);
                let tokens = random.below(lists[&from].len() + 1);
                lists.insert(SeqNo(next), lists[&from][..tokens].to_vec());
                operations.push(Operation::Fork { from, tokens: tokens as u64, seq: SeqNo(next) });
            }
            3 => {
                let seq = any(&mut random);
                let tokens = random.below(lists[&seq].len() + 1);
                lists.entry(seq).or_default().truncate(tokens);
                operations.push(Operation::Truncate { seq, tokens: tokens as u64 });
            }
            4 if seqs.len() > 2 => {
                let seq = any(&mut random);
                lists.remove(&seq);
                operations.push(Operation::Release { seq });
            }
            5 => {
                let seq = any(&mut random);
                let ids: Vec<TokenId> = (0..5).map(|_| random.below(100) as TokenId).collect();
                let gained = random.below(6);
                lists.entry(seq).or_default().extend_from_slice(&ids[..gained]);
                operations.push(Operation::Reuse { seq, ids, gained: gained as u64 });
            }
            _ => {
                step += 1;
                let commit = random.percent(70);
                let mut spans = Vec::new();
                for seq in seqs.iter().take(2) {
                    let ids: Vec<TokenId> =
                        (0..1 + random.below(3)).map(|_| random.below(100) as TokenId).collect();
                    spans.push(span(*seq, lists[seq].len() as u64, &ids));
                    if commit {
                        lists.entry(*seq).or_default().extend(ids);
                    }
                }
                operations.push(open(step, spans));
                let step = StepNo(step);
                operations.push(if commit { Operation::Commit { step } } else { Operation::Cancel { step } });
            }
        }
        for operation in operations {
            applied += 1;
            head.apply(&operation).unwrap();
            worker.apply(&operation).unwrap();
        }
        let lengths: BTreeMap<_, _> = lists.iter().map(|(seq, ids)| (*seq, ids.len())).collect();
        assert_eq!((&head.lengths(), &worker.lengths()), (&lengths, &lengths));
        assert!(lists.iter().all(|(seq, ids)| head.ids(*seq) == Some(ids)));
        assert_eq!((head.applied(), worker.applied()), (applied, applied));
    }
}

#[test]
fn the_planted_bug_takes_spans_that_begin_elsewhere() {
    let ledger = begun(Ledger::lengths_only()).planted(Planted::bug(Bug::SpanElsewhere));
    assert_eq!(ledger.check(&open(2, vec![span(A, 2, &[1])])), Ok(()));
}
