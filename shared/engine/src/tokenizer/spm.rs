//! SentencePiece BPE (GGUF model `llama`): merges characters by the score of the resulting piece.
//!
//! This is own code, because the `tokenizers` library orders merges by a rank per pair. SentencePiece orders
//! them by the merged piece's score, then by position. The two differ if scores are equal or a piece has
//! several splits. Source: Kudo and Richardson 2018, `bpe::Model` of SentencePiece, and `llm_tokenizer_spm`
//! of llama.cpp. Spaces are written `▁`; a character without a piece becomes byte tokens. Cost: linear in the
//! text, which is merged block by block ([`super::blocks`]).

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::TokenId;
use super::blocks::{BLOCK_BYTES, check_token, merge_in_blocks};
use super::error::TokenizerError;
use super::vocab::{TokenKind, Vocab};

/// The character written for a space in pieces (U+2581).
pub(super) const SPACE: char = '▁';

/// Encodes text by merge scores.
#[derive(Debug)]
pub(super) struct ScoredBpe {
    pieces: HashMap<String, (TokenId, f32)>,
    bytes: [Option<TokenId>; 256],
    unknown: Option<TokenId>,
}

/// A run of characters that is one piece so far.
#[derive(Debug, Clone)]
struct Symbol {
    /// Its range in the written text.
    written: Range<usize>,
    /// The bytes of the caller's text that it stands for.
    source: Range<usize>,
    prev: Option<usize>,
    next: Option<usize>,
}

/// A possible merge.
#[derive(Debug)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both symbols; a different length means that one of them has changed since.
    len: usize,
}

impl Ord for Candidate {
    /// Orders the best last: the highest score, then the leftmost.
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl ScoredBpe {
    /// Builds the encoder from the vocabulary's texts and their scores.
    ///
    /// # Errors
    /// If a score is not a number, a token is too long, or there are neither byte tokens nor an unknown
    /// token, so that text would be lost.
    pub(super) fn new(texts: &[&str], vocab: &Vocab, scores: &[f32]) -> Result<ScoredBpe, TokenizerError> {
        let mut pieces = HashMap::with_capacity(texts.len());
        let (mut bytes, mut unknown) = ([None; 256], None);
        for ((id, &text), &score) in texts.iter().enumerate().zip(scores) {
            let id = id as TokenId;
            if score.is_nan() {
                return Err(TokenizerError::BadScore { id });
            }
            match vocab.kind(id) {
                Some(TokenKind::Normal) => {
                    check_token(id, text)?;
                    pieces.insert(text.to_owned(), (id, score));
                }
                Some(TokenKind::Byte) => {
                    if let Some(byte) = byte_of(text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                Some(TokenKind::Unknown) => unknown = Some(id),
                _ => {}
            }
        }
        if let (Some(byte), None) = (bytes.iter().position(Option::is_none), unknown) {
            return Err(TokenizerError::MissingByte { byte: byte as u8 });
        }
        Ok(ScoredBpe { pieces, bytes, unknown })
    }

    /// Calls `token` with each token and the number of the text's bytes that it stands for; they add up to
    /// the text. With `space_prefix`, a space is added before the text.
    pub(super) fn encode(&self, text: &str, space_prefix: bool, token: &mut impl FnMut(TokenId, usize)) {
        self.encode_in(BLOCK_BYTES, text, space_prefix, token);
    }

    /// As [`Self::encode`], with longer texts in blocks of `block` bytes.
    pub(super) fn encode_in(
        &self,
        block: usize,
        text: &str,
        space_prefix: bool,
        token: &mut impl FnMut(TokenId, usize),
    ) {
        let mut merge = |part: &str| {
            let mut tokens = Vec::new();
            // Only the beginning of the text gets a space before it.
            let space_prefix = space_prefix && std::ptr::eq(part.as_ptr(), text.as_ptr());
            self.merge(part, space_prefix, &mut |id, len| tokens.push((id, len)));
            tokens
        };
        merge_in_blocks(text, block, &mut merge, &mut |(id, len)| token(id, len));
    }

    /// Merges a text of any length at once.
    fn merge(&self, text: &str, space_prefix: bool, token: &mut impl FnMut(TokenId, usize)) {
        let (written, mut symbols) = write(text, space_prefix && !text.is_empty());
        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len().saturating_sub(1) {
            self.consider(&written, &symbols, left, &mut queue);
        }
        while let Some(best) = queue.pop() {
            let (left, right) = (symbols[best.left].clone(), symbols[best.right].clone());
            let stale = left.written.is_empty() || right.written.is_empty();
            if stale || left.written.len() + right.written.len() != best.len {
                continue;
            }
            symbols[best.left].written.end = right.written.end;
            symbols[best.left].source.end = right.source.end;
            symbols[best.left].next = right.next;
            symbols[best.right].written = 0..0;
            if let Some(next) = right.next {
                symbols[next].prev = Some(best.left);
            }
            if let Some(prev) = left.prev {
                self.consider(&written, &symbols, prev, &mut queue);
            }
            self.consider(&written, &symbols, best.left, &mut queue);
        }
        let mut at = symbols.first().map(|_| 0);
        while let Some(i) = at {
            self.emit(text, &written, &symbols[i], token);
            at = symbols[i].next;
        }
    }

    /// Queues the merge of a symbol with the next one, if it makes a piece.
    fn consider(&self, written: &str, symbols: &[Symbol], left: usize, queue: &mut BinaryHeap<Candidate>) {
        let Some(right) = symbols[left].next else { return };
        let both = symbols[left].written.start..symbols[right].written.end;
        if let Some(&(_, score)) = self.pieces.get(&written[both.clone()]) {
            queue.push(Candidate { score, left, right, len: both.len() });
        }
    }

    fn emit(&self, text: &str, written: &str, symbol: &Symbol, token: &mut impl FnMut(TokenId, usize)) {
        if let Some(&(id, _)) = self.pieces.get(&written[symbol.written.clone()]) {
            return token(id, symbol.source.len());
        }
        // One character without a piece: its byte tokens, or the unknown token if a byte has none.
        let source = &text.as_bytes()[symbol.source.clone()];
        let ids: Option<Vec<TokenId>> = source.iter().map(|&b| self.bytes[usize::from(b)]).collect();
        match (ids, self.unknown) {
            (Some(ids), _) => ids.into_iter().for_each(|id| token(id, 1)),
            (None, Some(unknown)) => token(unknown, source.len()),
            (None, None) => unreachable!("a vocabulary without an unknown token has all bytes"),
        }
    }
}

/// Writes text in the form of pieces and splits it into characters.
fn write(text: &str, space_prefix: bool) -> (String, Vec<Symbol>) {
    let mut written = String::with_capacity(text.len() + 8);
    let mut symbols = Vec::with_capacity(text.len() + 1);
    let mut add = |c: char, source: Range<usize>| {
        let start = written.len();
        written.push(if c == ' ' { SPACE } else { c });
        let i = symbols.len();
        let (written, prev) = (start..written.len(), i.checked_sub(1));
        symbols.push(Symbol { written, source, prev, next: Some(i + 1) });
    };
    if space_prefix {
        add(' ', 0..0);
    }
    for (at, c) in text.char_indices() {
        add(c, at..at + c.len_utf8());
    }
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    (written, symbols)
}

/// Returns the byte that a byte token, written `<0x0A>`, stands for.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Returns the bytes that a piece stands for.
pub(super) fn piece_bytes(text: &str, kind: TokenKind) -> Vec<u8> {
    match (kind, byte_of(text)) {
        (TokenKind::Byte, Some(byte)) => vec![byte],
        (TokenKind::Control | TokenKind::Unknown, _) => text.as_bytes().to_vec(),
        _ => text.replace(SPACE, " ").into_bytes(),
    }
}
