//! The figures of speed that are measured with every program, and what each must reach.

use super::{Args, Part};

/// Tokens decoded one by one for one figure.
pub(super) const DECODE_TOKENS: usize = 64;
/// Tokens added after a long context for one figure.
pub(super) const DEEP_TOKENS: usize = 512;
/// The context whose cost is checked. With [`DEEP_TOKENS`] more it fills a context of 8,192.
pub(super) const DEPTH_CHECKED: usize = 7680;
const BATCH_STEPS: usize = 32;

/// A measured figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// Prefill of a prompt of this many tokens.
    Prefill(usize),
    /// Prefill of [`DEEP_TOKENS`] tokens after this many others.
    Deep(usize),
    /// Decoding of single tokens after this many tokens.
    Decode(usize),
    /// Decoding of one token at a time for this many sequences.
    Batch(usize),
}

impl Figure {
    /// Returns its name in tables.
    pub(super) fn name(self) -> String {
        match self {
            Self::Prefill(tokens) => format!("prefill {tokens}"),
            Self::Deep(context) => format!("prefill {DEEP_TOKENS} after {context}"),
            Self::Decode(context) => format!("decode at {context}"),
            Self::Batch(seqs) => format!("decode batch {seqs}"),
        }
    }

    /// Returns the request to a worker.
    pub(super) fn request(self) -> String {
        match self {
            Self::Prefill(tokens) => format!("prefill {tokens}"),
            Self::Deep(context) => format!("extend {context} {DEEP_TOKENS}"),
            Self::Decode(context) => format!("decode {context} {DECODE_TOKENS}"),
            Self::Batch(seqs) => format!("batch {seqs} {BATCH_STEPS}"),
        }
    }

    /// Returns the length of the longest sequence of one request.
    pub(super) fn longest_tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Deep(context) => context + DEEP_TOKENS,
            Self::Decode(context) => context + DECODE_TOKENS,
            Self::Batch(_) => BATCH_STEPS,
        }
    }

    /// Returns the number of timed tokens of one request, over all sequences.
    pub(super) fn tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Deep(_) => DEEP_TOKENS,
            Self::Decode(_) => DECODE_TOKENS,
            Self::Batch(seqs) => seqs * BATCH_STEPS,
        }
    }

    /// Returns whether the limit is arithmetic, and not bandwidth.
    pub(super) fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill(_) | Self::Deep(_))
    }

    /// Returns the minimum ratio to llama.cpp for the model, or `None` if there is no check.
    pub(super) fn least_ratio(self, model: &str) -> Option<f64> {
        match (model, self) {
            ("llama-1b", Self::Prefill(_) | Self::Deep(_)) => Some(1.4),
            ("qwen-0.5b", Self::Prefill(_) | Self::Deep(_)) => Some(1.8),
            ("qwen-0.5b", Self::Decode(0)) => Some(1.3),
            ("llama-1b", Self::Decode(2048)) => Some(1.4),
            ("llama-1b", Self::Batch(_)) => Some(2.0),
            (_, Self::Prefill(_) | Self::Deep(_)) => Some(1.3),
            (_, Self::Decode(_)) => Some(1.0),
            _ => None,
        }
    }

    /// Returns the minimum ratio to ik_llama.cpp, or `None` if there is no check.
    pub(super) fn least_ratio_to_ik(self) -> Option<f64> {
        (!matches!(self, Self::Batch(_))).then_some(1.0)
    }
}

/// Returns the figures to measure that fit into the model's context. A prompt comes just before decoding
/// after it.
pub(super) fn figures(args: &Args, context_tokens: usize) -> Vec<Figure> {
    use Figure::{Batch, Decode, Deep, Prefill};
    let all = if args.quick {
        vec![Prefill(512), Decode(0), Batch(8)]
    } else {
        let near = [Prefill(512), Decode(0), Prefill(2048), Decode(2048)];
        let deep = args.depths.iter().flat_map(|depth| [Deep(*depth), Decode(*depth)]);
        near.into_iter().chain(deep).chain([Batch(8), Batch(16)]).collect()
    };
    let part = |figure: &Figure| match figure {
        Prefill(_) | Deep(_) => Part::Prefill,
        Decode(_) => Part::Decode,
        Batch(_) => Part::Batch,
    };
    let fits = |figure: &Figure| figure.longest_tokens() <= context_tokens;
    all.into_iter().filter(|figure| args.wants(part(figure)) && fits(figure)).collect()
}
