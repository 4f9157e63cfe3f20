//! What devices of a ring say to each other, and how it lies in bytes.
//!
//! Fixed fields, little-endian, a version and a kind first; no pointers and nothing that describes itself. Decoding is
//! total: any bytes give a frame or a [`FrameError`], with memory in proportion to the bytes. It knows no model:
//! whether shapes fit a step, and whether numbers are finite, is checked by who uses a frame.

mod bytes;
mod control;
mod profile;
mod step;

pub use control::{
    Configure, EchoOf, Failure, FailureCode, Heartbeat, Hello, NextNode, PieceOf, Provide, Way, WayTo,
};
pub use step::{Activations, Audit, Operation, Span, Step};

use bytes::{Reader, Writer};

/// The version of the format. Devices of different versions do not form a ring.
pub const VERSION: u16 = 7;
/// Most bytes that say which pieces of a model there are, a bit for each.
pub const WHICH_BYTES_MAX: usize = 1 << 20;
/// Most tokens of a KV cache, as many as a plan may have.
pub const KV_TOKENS_MAX: u64 = 1 << 24;
/// Most bytes of one echo, either way.
pub const ECHO_BYTES_MAX: u32 = 4 << 20;

/// Bytes that do not make a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of the format.
    #[error("frame of version {theirs}, this program speaks version {VERSION}")]
    Version {
        /// What the frame says.
        theirs: u16,
    },
    /// A number out of its range.
    #[error("{what} is {value}, must be at most {max}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it says.
        value: u64,
        /// The most.
        max: u64,
    },
    /// The frame ends too early.
    #[error("{what} needs {needed} bytes, the frame has {left} left")]
    Short {
        /// The field.
        what: &'static str,
        /// Bytes it would take.
        needed: usize,
        /// Bytes there are.
        left: usize,
    },
    /// The frame goes on behind its end.
    #[error("{bytes} bytes behind the end of the frame")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A text that is not UTF-8, or has control characters.
    #[error("{what} is not UTF-8 without control characters")]
    Text {
        /// The field.
        what: &'static str,
    },
    /// Numbers that do not belong together.
    #[error("{what} do not fit each other")]
    Mismatch {
        /// The fields.
        what: &'static str,
    },
}

/// One message between two devices of a ring.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Worker to head, first on a control channel: who it is.
    Hello(Hello),
    /// First on a channel of the ring itself: the epoch that it carries, and the sender's place.
    Enter {
        /// The epoch.
        epoch: u64,
        /// The sender's place, the head's is 0.
        place: u16,
    },
    /// Head to worker: its part in a new epoch.
    Configure(Box<Configure>),
    /// Worker to head: ready for this epoch's steps.
    Ready {
        /// The epoch.
        epoch: u64,
    },
    /// Both ways on a control channel.
    Heartbeat(Heartbeat),
    /// Worker to head: it cannot go on in this epoch. Head to worker: its results are wrong.
    Failed(Failure),
    /// From place to place.
    Step(Step),
    /// Head to worker that is in no epoch: fetch what a part will need, before there is one.
    Provide(Box<Provide>),
    /// Worker to head: that is there.
    Provided,
    /// Worker to head: the list of the model file's pieces, please.
    FetchManifest,
    /// Head to worker: that list.
    Manifest(Vec<u8>),
    /// Worker to head, or to another worker: these pieces of the model file, please.
    FetchPieces {
        /// The first piece.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Whoever was asked, to the worker: one piece.
    Piece(PieceOf),
    /// Worker to worker: which pieces of this model there are, please; some of them may be asked for then.
    AskPieces {
        /// SHA-256 of the list of its pieces.
        model: [u8; 32],
    },
    /// The answer: a bit for each piece, the lowest of a byte first; what is not said is not there.
    HasPieces(Vec<u8>),
    /// Worker to head: something came from another worker.
    Fed,
    /// Whoever opened a link to the other side: answer at once, for the time it takes.
    Echo(EchoOf),
    /// The answer: as many bytes as were asked for.
    Echoed(EchoOf),
    /// Head to worker: a device of this key will measure the way to you.
    AwaitEdge {
        /// Its public key.
        from: [u8; 32],
    },
    /// Head to worker: measure the way to this device.
    MeasureEdge(NextNode),
    /// Worker to head: that way.
    Edge(WayTo),
}

impl Frame {
    /// The frame as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u16(VERSION);
        match self {
            Self::Hello(hello) => control::write_hello(&mut out, hello),
            Self::Enter { epoch, place } => {
                out.u8(kind::ENTER);
                out.u64(*epoch);
                out.u16(*place);
            }
            Self::Configure(configure) => control::write_configure(&mut out, configure),
            Self::Ready { epoch } => {
                out.u8(kind::READY);
                out.u64(*epoch);
            }
            Self::Heartbeat(beat) => control::write_heartbeat(&mut out, beat),
            Self::Failed(failure) => control::write_failure(&mut out, failure),
            Self::Step(step) => step::write(&mut out, step),
            Self::Provide(provide) => control::write_provide(&mut out, provide),
            Self::Provided => out.u8(kind::PROVIDED),
            Self::FetchManifest => out.u8(kind::FETCH_MANIFEST),
            Self::Manifest(bytes) => {
                out.u8(kind::MANIFEST);
                out.bytes(bytes);
            }
            Self::FetchPieces { first, count } => {
                out.u8(kind::FETCH_PIECES);
                out.u32(*first);
                out.u32(*count);
            }
            Self::Piece(piece) => {
                out.u8(kind::PIECE);
                out.u32(piece.index);
                out.bytes(&piece.bytes);
            }
            Self::AskPieces { model } => {
                out.u8(kind::ASK_PIECES);
                out.0.extend_from_slice(model);
            }
            Self::HasPieces(which) => {
                out.u8(kind::HAS_PIECES);
                out.bytes(which);
            }
            Self::Fed => out.u8(kind::FED),
            Self::Echo(echo) => control::write_echo(&mut out, kind::ECHO, echo),
            Self::Echoed(echo) => control::write_echo(&mut out, kind::ECHOED, echo),
            Self::AwaitEdge { from } => {
                out.u8(kind::AWAIT_EDGE);
                out.0.extend_from_slice(from);
            }
            Self::MeasureEdge(to) => {
                out.u8(kind::MEASURE_EDGE);
                control::write_node(&mut out, to);
            }
            Self::Edge(way) => control::write_way(&mut out, way),
        }
        out.0
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`FrameError`] for anything that [`Frame::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(bytes);
        let theirs = from.u16("version")?;
        if theirs != VERSION {
            return Err(FrameError::Version { theirs });
        }
        let frame = match from.u8("kind")? {
            kind::HELLO => Self::Hello(control::read_hello(&mut from)?),
            kind::ENTER => Self::Enter { epoch: from.u64("epoch")?, place: from.u16("place")? },
            kind::CONFIGURE => Self::Configure(Box::new(control::read_configure(&mut from)?)),
            kind::READY => Self::Ready { epoch: from.u64("epoch")? },
            kind::HEARTBEAT => Self::Heartbeat(control::read_heartbeat(&mut from)?),
            kind::FAILED => Self::Failed(control::read_failure(&mut from)?),
            kind::STEP => Self::Step(step::read(&mut from)?),
            kind::PROVIDE => Self::Provide(Box::new(control::read_provide(&mut from)?)),
            kind::PROVIDED => Self::Provided,
            kind::FETCH_MANIFEST => Self::FetchManifest,
            kind::MANIFEST => Self::Manifest(from.bytes("manifest")?.to_vec()),
            kind::FETCH_PIECES => {
                Self::FetchPieces { first: from.u32("first piece")?, count: from.u32("pieces")? }
            }
            kind::PIECE => {
                let index = from.u32("piece")?;
                Self::Piece(PieceOf { index, bytes: from.bytes("bytes of a piece")?.to_vec() })
            }
            kind::ASK_PIECES => Self::AskPieces { model: from.key("model")? },
            kind::HAS_PIECES => {
                let which = from.bytes("pieces that there are")?;
                if which.len() > WHICH_BYTES_MAX {
                    let (value, max) = (which.len() as u64, WHICH_BYTES_MAX as u64);
                    return Err(FrameError::Value { what: "bytes of pieces that there are", value, max });
                }
                Self::HasPieces(which.to_vec())
            }
            kind::FED => Self::Fed,
            kind::ECHO => Self::Echo(control::read_echo(&mut from)?),
            kind::ECHOED => Self::Echoed(control::read_echo(&mut from)?),
            kind::AWAIT_EDGE => Self::AwaitEdge { from: from.key("key")? },
            kind::MEASURE_EDGE => Self::MeasureEdge(control::read_node(&mut from)?),
            kind::EDGE => Self::Edge(control::read_way(&mut from)?),
            value => {
                let max = u64::from(kind::PROVIDED);
                return Err(FrameError::Value { what: "kind", value: u64::from(value), max });
            }
        };
        from.end()?;
        Ok(frame)
    }
}

/// Numbers of the kinds.
mod kind {
    pub(super) const HELLO: u8 = 0;
    pub(super) const ENTER: u8 = 1;
    pub(super) const CONFIGURE: u8 = 2;
    pub(super) const READY: u8 = 3;
    pub(super) const HEARTBEAT: u8 = 4;
    pub(super) const FAILED: u8 = 5;
    pub(super) const STEP: u8 = 6;
    pub(super) const FETCH_MANIFEST: u8 = 7;
    pub(super) const MANIFEST: u8 = 8;
    pub(super) const FETCH_PIECES: u8 = 9;
    pub(super) const PIECE: u8 = 10;
    pub(super) const ECHO: u8 = 11;
    pub(super) const ECHOED: u8 = 12;
    pub(super) const AWAIT_EDGE: u8 = 13;
    pub(super) const MEASURE_EDGE: u8 = 14;
    pub(super) const EDGE: u8 = 15;
    pub(super) const ASK_PIECES: u8 = 16;
    pub(super) const HAS_PIECES: u8 = 17;
    pub(super) const FED: u8 = 18;
    pub(super) const PROVIDE: u8 = 19;
    pub(super) const PROVIDED: u8 = 20;
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
