//! Rows are compared with the engine's own open step, and with counting one by one.

use baton_engine::{Engine, EngineOptions, Model, StepSeq};
use proptest::prelude::*;

use super::*;
use crate::core::SeqNo;

fn wanted() -> impl Strategy<Value = Wanted> {
    prop::sample::select(vec![Wanted::None, Wanted::Last, Wanted::All])
}

/// Counts row by row.
fn counted(counts: &[(usize, Wanted)], rows: &Range<usize>) -> usize {
    let mut flags = Vec::new();
    for (count, wanted) in counts {
        flags.extend((0..*count).map(|at| match wanted {
            Wanted::None => false,
            Wanted::Last | Wanted::Best => at + 1 == *count,
            Wanted::All => true,
        }));
    }
    flags.iter().enumerate().filter(|(at, flag)| rows.contains(at) && **flag).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_those_that_are_counted_one_by_one(
        counts in prop::collection::vec((0..6usize, wanted()), 0..6),
        start in 0..20usize,
        more in 0..20usize,
    ) {
        let rows = Rows::of_counts(counts.iter().copied());
        let total: usize = counts.iter().map(|(count, _)| count).sum();
        prop_assert_eq!((rows.len(), rows.is_empty()), (total, total == 0));
        prop_assert_eq!(rows.wanted(&(start..start + more)), counted(&counts, &(start..start + more)));
    }
}

#[test]
fn rows_agree_with_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let format = baton_kernels_cpu::Format::F32;
    std::fs::write(&path, baton_synthetic::SyntheticModel::small("llama", format, 1).to_gguf().unwrap())
        .unwrap();
    let model = Model::open(&path).unwrap();
    let options = EngineOptions { kv_tokens: 256, layers: Some(vec![0]), ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).unwrap();
    let kinds = [Wanted::None, Wanted::Last, Wanted::All];
    for case in 0..27usize {
        let parts: Vec<(Vec<u32>, Wanted)> = (0..3)
            .map(|at| (vec![1; 1 + (case + at) % 4], kinds[case / 3usize.pow(at as u32) % 3]))
            .collect();
        let seqs: Vec<_> = parts.iter().map(|_| engine.create()).collect();
        let batch: Vec<StepSeq<'_>> = seqs
            .iter()
            .zip(&parts)
            .map(|(seq, (ids, logits))| StepSeq { seq: *seq, ids, logits: *logits, capture: None })
            .collect();
        let open = engine.open_step(&batch).unwrap();
        let spans: Vec<Span> = parts
            .iter()
            .enumerate()
            .map(|(at, (ids, wanted))| Span {
                seq: SeqNo(at as u64),
                start: 0,
                wanted: *wanted,
                ids: ids.clone(),
            })
            .collect();
        let rows = Rows::of(&spans);
        assert_eq!(rows.len(), open.rows());
        for start in 0..=rows.len() {
            for end in start..=rows.len() {
                assert_eq!(
                    rows.wanted(&(start..end)),
                    open.wanted(&(start..end)),
                    "{spans:?} {start}..{end}"
                );
            }
        }
        engine.cancel_step(open);
        seqs.into_iter().for_each(|seq| engine.release(seq));
    }
}
