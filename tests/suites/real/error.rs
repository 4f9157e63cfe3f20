//! The error of quantized weights: how far the logits are from those of the same weights as floats.

use baton_engine::engine::KvFormat;

use super::super::{Real, World, logits};
use super::texts;

/// Pieces of text, their tokens, and the tokens at the beginning whose logits are not compared.
const PIECES: usize = 16;
const TOKENS: usize = 512;
const FIRST: usize = 64;
/// The most mean divergence from the floats, as a multiple of llama.cpp's.
const DIVERGENCE_MAX: f64 = 1.05;
/// The largest relative difference to llama.cpp's perplexity.
const PERPLEXITY_MAX: f64 = 0.002;

/// The log-probabilities of one row.
fn log_softmax(row: &[f32]) -> Vec<f64> {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|v| f64::from(v - top).exp()).sum();
    row.iter().map(|v| f64::from(v - top) - sum.ln()).collect()
}

/// Sums over the rows of all pieces.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    rows: f64,
    divergence: f64,
    surprise: f64,
}

impl Sums {
    /// Adds rows of logits; `next` are the tokens after them.
    fn add(&mut self, have: &[f32], exact: &[f32], next: &[u32]) {
        let vocab_len = exact.len() / next.len();
        assert_eq!(have.len(), exact.len(), "as many logits as the reference has");
        for ((have, exact), &id) in have.chunks(vocab_len).zip(exact.chunks(vocab_len)).zip(next) {
            let (have, exact) = (log_softmax(have), log_softmax(exact));
            self.rows += 1.0;
            self.divergence += exact.iter().zip(&have).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            self.surprise -= have[id as usize];
        }
    }

    /// The mean divergence from the floats, in nats.
    fn divergence(&self) -> f64 {
        self.divergence / self.rows
    }

    fn perplexity(&self) -> f64 {
        (self.surprise / self.rows).exp()
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "perplexity {:.3}, divergence {:.3e}", self.perplexity(), self.divergence())
    }
}

/// Returns pieces of text of one token more than is computed.
fn pieces(world: &World) -> Vec<Vec<u32>> {
    let tokenizer = world.model.tokenizer();
    let bos: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
    let ids = tokenizer.encode(&texts::prose());
    let pieces: Vec<Vec<u32>> =
        ids.chunks_exact(TOKENS + 1 - bos.len()).take(PIECES).map(|ids| [&bos, ids].concat()).collect();
    assert_eq!(pieces.len(), PIECES, "the pages are long enough");
    pieces
}

#[test]
fn quantized_weights_cost_no_more_than_in_llama_cpp() {
    for real in Real::ALL {
        let Some(world) = World::open(real) else { return };
        let ((mut exact, _folder), mut theirs) = (world.floats(TOKENS), world.reference(TOKENS));
        let mut engines = KvFormat::ALL.map(|format| (format, world.engine(TOKENS, format), Sums::default()));
        let (mut exact_sums, mut their_sums) = (Sums::default(), Sums::default());
        for ids in pieces(&world) {
            let (ids, next) = (&ids[..TOKENS], &ids[FIRST + 1..]);
            let rows = exact.logits(ids, FIRST).expect("logits");
            exact_sums.add(&rows, &rows, next);
            their_sums.add(&theirs.logits(ids, FIRST).expect("logits"), &rows, next);
            for (_, engine, sums) in &mut engines {
                sums.add(&logits(engine, ids, FIRST), &rows, next);
            }
        }
        println!("{real:?}: floats: perplexity {:.3}; llama.cpp: {their_sums}", exact_sums.perplexity());
        for (format, _, sums) in &engines {
            println!("{real:?}: baton, keys and values {format}: {sums}");
        }
        let (_, _, ours) =
            engines.iter().find(|(format, ..)| *format == KvFormat::default()).expect("it is one");
        assert!(ours.divergence() <= DIVERGENCE_MAX * their_sums.divergence(), "{real:?}: {ours}");
        let apart = (ours.perplexity() / their_sums.perplexity() - 1.0).abs();
        assert!(apart <= PERPLEXITY_MAX, "{real:?}: {ours}");
    }
}
