//! Keys and values of chosen sentences on their way from a cloud to a device, in frames.
//!
//! A ticket in the first event says what there is. `GET /v1/assist/{id}/kv` gives its frames, from any byte
//! on. Both sides know the frames' places from the ticket and the model: layer by layer, in blocks of
//! tokens. A frame is a head of [`HEAD_BYTES`] bytes and its rows. Never: knows what rows mean, or allocates
//! what a peer asks for. Always: a frame that is not exactly the next one, or whose hash differs, is an
//! error, and nothing of it is given out.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::range::{NumberRange, OutOfRange};

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 48;
/// The most bytes of rows in one frame, unless one token has more.
const FRAME_BYTES: usize = 512 << 10;
/// The most tokens of one frame.
const FRAME_TOKENS_MAX: usize = 256;
/// The most bytes that a ticket can have.
const BYTES: NumberRange = NumberRange::new(1.0, 68_719_476_736.0);
/// The most tokens that a ticket can have.
const TOKENS: NumberRange = NumberRange::new(1.0, 16_777_216.0);
const MAGIC: [u8; 4] = *b"BKV1";
/// Bytes of a frame's hash, the last of its head.
const HASH_BYTES: usize = 16;

/// How keys and values are written for the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvEncoding {
    /// Floats.
    F32,
    /// Half precision.
    F16,
    /// Bytes with a scale for each 32 dimensions.
    Q8,
    /// Half bytes with a scale for each 32 dimensions.
    Q4,
}

impl KvEncoding {
    /// Every encoding, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Q8, Self::Q4];
    /// The names of all encodings on the wire.
    pub const NAMES: [&'static str; 4] =
        [Self::F32.as_str(), Self::F16.as_str(), Self::Q8.as_str(), Self::Q4.as_str()];

    /// Returns the encoding's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

/// What a cloud offers in place of a prefill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTicket {
    /// Bytes of all frames.
    pub bytes: u64,
    /// How keys and values are written.
    pub format: KvEncoding,
    /// Prompt tokens whose keys and values there are; the last token of the prompt is never one of them.
    pub tokens: u32,
    /// Name of the whole prompt's ids, 64 lower-case hex digits.
    pub prompt_sha256: String,
    /// Name of the model that computed them, 64 lower-case hex digits.
    pub model: String,
}

impl KvTicket {
    /// Checks the ranges of the numbers. Names are compared, so they need no form.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first number that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        BYTES.check("kv.bytes", self.bytes as f64)?;
        TOKENS.check("kv.tokens", self.tokens)
    }
}

/// The heads of a layer, and the bytes of one token in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// Key heads.
    pub heads: usize,
    /// Bytes of the keys and values of one token.
    pub token_bytes: usize,
}

/// The place of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPlace {
    /// Its number.
    pub index: usize,
    /// Its layer, among those with keys and values of their own.
    pub layer: usize,
    /// Its heads: all of the layer.
    pub heads: usize,
    /// Its first token, among those that are moved.
    pub first: usize,
    /// Its tokens.
    pub tokens: usize,
    /// Bytes of its rows.
    pub bytes: usize,
}

/// The frames of one handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    format: KvEncoding,
    tokens: usize,
    layers: Vec<KvLayer>,
    /// What all hashes begin with.
    name: [u8; 32],
}

/// Why frames were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvFrameError {
    /// The ticket's bytes are not those of the model's rows.
    #[error("the keys and values have {said} bytes, must have {want}")]
    Size {
        /// What the ticket says.
        said: u64,
        /// What the rows have.
        want: u64,
    },
    /// The head of a frame is not the one that comes next.
    #[error("frame {index} has another head")]
    Head {
        /// Its number.
        index: usize,
    },
    /// The hash of a frame is not that of its bytes.
    #[error("frame {index} has another hash than its bytes")]
    Hash {
        /// Its number.
        index: usize,
    },
    /// There are bytes behind the last frame.
    #[error("bytes behind the last frame")]
    Trailing,
}

impl KvLayout {
    /// Makes the layout of so many tokens. `request` and `prompt_sha256` name the handoff: frames of another
    /// one are refused.
    pub fn new(
        format: KvEncoding,
        tokens: usize,
        layers: Vec<KvLayer>,
        (request, prompt_sha256): (uuid::Uuid, &str),
    ) -> Self {
        let mut name = Sha256::new_with_prefix(request.as_bytes());
        name.update(prompt_sha256);
        Self { format, tokens, layers, name: name.finalize().into() }
    }

    /// Returns the layers.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// Returns the tokens of each layer.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the bytes of all frames.
    pub fn bytes(&self) -> u64 {
        self.places().map(|place| (HEAD_BYTES + place.bytes) as u64).sum()
    }

    /// Checks the bytes of a ticket.
    ///
    /// # Errors
    /// [`KvFrameError::Size`].
    pub fn check(&self, ticket: &KvTicket) -> Result<(), KvFrameError> {
        let (said, want) = (ticket.bytes, self.bytes());
        if said == want { Ok(()) } else { Err(KvFrameError::Size { said, want }) }
    }

    /// Returns the places of all frames, in order.
    pub fn places(&self) -> impl Iterator<Item = KvPlace> + '_ {
        let of_layer = move |(layer, KvLayer { heads, token_bytes }): (usize, &KvLayer)| {
            let (heads, token_bytes, all) = (*heads, *token_bytes, self.tokens);
            let most = (FRAME_BYTES / token_bytes.max(1)).clamp(1, FRAME_TOKENS_MAX);
            (0..all).step_by(most).map(move |first| {
                let tokens = most.min(all - first);
                KvPlace { index: 0, layer, heads, first, tokens, bytes: tokens * token_bytes }
            })
        };
        let places = self.layers.iter().enumerate().flat_map(of_layer);
        places.enumerate().map(|(index, place)| KvPlace { index, ..place })
    }

    /// Returns a frame: its head, and then its rows.
    ///
    /// # Panics
    /// If `rows` has another length than the place.
    pub fn frame(&self, place: KvPlace, rows: &[u8]) -> Vec<u8> {
        assert_eq!(rows.len(), place.bytes, "the rows of a frame are those of its place");
        let mut frame = Vec::with_capacity(HEAD_BYTES + rows.len());
        frame.extend_from_slice(&self.head(place));
        frame.extend_from_slice(&self.hash(&frame, rows));
        frame.extend_from_slice(rows);
        frame
    }

    /// Returns a head without its hash.
    fn head(&self, place: KvPlace) -> [u8; HEAD_BYTES - HASH_BYTES] {
        let mut head = [0; HEAD_BYTES - HASH_BYTES];
        let short = |number: usize| (number as u32).to_le_bytes();
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&short(place.index));
        head[8..12].copy_from_slice(&short(place.layer));
        // The first head, and how many.
        head[12..14].copy_from_slice(&[0; 2]);
        head[14..16].copy_from_slice(&short(place.heads)[..2]);
        head[16..20].copy_from_slice(&short(place.first));
        head[20..24].copy_from_slice(&short(place.tokens));
        head[24..28].copy_from_slice(&short(self.format as usize));
        head[28..32].copy_from_slice(&short(place.bytes));
        head
    }

    fn hash(&self, head: &[u8], rows: &[u8]) -> [u8; HASH_BYTES] {
        let mut digest = Sha256::new_with_prefix(self.name);
        digest.update(head);
        digest.update(rows);
        *digest.finalize().first_chunk().expect("a digest is longer")
    }
}

/// Puts frames together as their bytes come.
///
/// Memory: the bytes of one frame, and those that were pushed last.
#[derive(Debug, Clone)]
pub struct KvFrames {
    layout: KvLayout,
    places: std::vec::IntoIter<KvPlace>,
    /// The frame that comes next.
    next: Option<KvPlace>,
    /// Bytes of it that have come.
    held: Vec<u8>,
    /// Bytes of whole frames so far.
    whole: u64,
}

impl KvFrames {
    /// Waits for the first frame.
    pub fn new(layout: KvLayout) -> Self {
        let places: Vec<KvPlace> = layout.places().collect();
        let mut places = places.into_iter();
        let next = places.next();
        Self { layout, places, next, held: Vec::new(), whole: 0 }
    }

    /// Returns the byte at which a fetch goes on after a cut: behind the last whole frame.
    pub fn whole_bytes(&self) -> u64 {
        self.whole
    }

    /// Returns whether all frames have come.
    pub fn is_complete(&self) -> bool {
        self.next.is_none()
    }

    /// Forgets the part of a frame that came before a cut.
    pub fn cut(&mut self) {
        self.held.clear();
    }

    /// Takes the next bytes; gives each frame that is whole to `take`.
    ///
    /// # Errors
    /// [`KvFrameError`]. What comes then is not looked at.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(KvPlace, &[u8]),
    ) -> Result<(), KvFrameError> {
        while !bytes.is_empty() {
            let place = self.next.ok_or(KvFrameError::Trailing)?;
            let index = place.index;
            let want = if self.held.len() < HEAD_BYTES { HEAD_BYTES } else { HEAD_BYTES + place.bytes };
            let (now, rest) = bytes.split_at(bytes.len().min(want - self.held.len()));
            self.held.extend_from_slice(now);
            bytes = rest;
            if self.held.len() >= HEAD_BYTES
                && self.held[..HEAD_BYTES - HASH_BYTES] != self.layout.head(place)
            {
                return Err(KvFrameError::Head { index });
            }
            if self.held.len() < HEAD_BYTES + place.bytes {
                continue;
            }
            let (head, rows) = self.held.split_at(HEAD_BYTES);
            let (head, hash) = head.split_at(HEAD_BYTES - HASH_BYTES);
            if self.layout.hash(head, rows) != hash {
                return Err(KvFrameError::Hash { index });
            }
            take(place, rows);
            self.whole += self.held.len() as u64;
            self.held.clear();
            self.next = self.places.next();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
