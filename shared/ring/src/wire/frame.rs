//! The messages between the devices of a ring, and their binary format.
//!
//! Every frame begins with a version and a kind; then come fixed little-endian fields, without pointers and
//! without a schema in the data. Decoding accepts any bytes: it returns a frame or a [`FrameError`], and
//! uses memory in proportion to the bytes. It knows no model: the code that uses a frame checks whether
//! shapes fit a step and whether numbers are finite.

mod bytes;
mod control;
mod profile;
mod step;

pub use control::{
    Configure, EchoData, Failure, FailureCode, Heartbeat, Hello, LinkSpeed, MeasuredLink, PieceData, Provide,
};
pub use step::{Activations, Audit, Operation, Span, Step};

use crate::core::ids::{DeviceId, Digest, Epoch, Node};
use bytes::{Reader, Writer};

/// Version of the format. Devices of different versions do not form a ring.
pub const VERSION: u16 = 9;
/// Most bytes of a message that says which pieces of a model a device has, one bit per piece.
pub const WHICH_BYTES_MAX: usize = 1 << 20;
/// Most tokens of a KV cache, as many as a plan may have.
pub const KV_TOKENS_MAX: u64 = 1 << 24;
/// Most bytes of one echo, in either direction.
pub const ECHO_BYTES_MAX: u32 = 4 << 20;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of the format.
    #[error("frame of version {theirs}, this program speaks version {VERSION}")]
    Version {
        /// The version in the frame.
        theirs: u16,
    },
    /// A number out of its range.
    #[error("{what} is {value}, must be at most {max}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// The frame ends too early.
    #[error("{what} needs {needed} bytes, the frame has {left} left")]
    Short {
        /// The field.
        what: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// There are bytes after the end of the frame.
    #[error("{bytes} bytes behind the end of the frame")]
    Trailing {
        /// How many bytes.
        bytes: usize,
    },
    /// A text that is not UTF-8 or has control characters.
    #[error("{what} is not UTF-8 without control characters")]
    Text {
        /// The field.
        what: &'static str,
    },
    /// Numbers that do not fit each other.
    #[error("{what} do not fit each other")]
    Mismatch {
        /// The fields.
        what: &'static str,
    },
}

/// One message between two devices of a ring.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Worker to head, first on a control channel: introduces the worker.
    Hello(Hello),
    /// First on a channel of the ring itself: the epoch of its frames, and the sender's place.
    Enter {
        /// The epoch.
        epoch: Epoch,
        /// The sender's place; the head is place 0.
        place: u16,
    },
    /// Head to worker: its part in a new epoch.
    Configure(Box<Configure>),
    /// Worker to head: ready for the steps of this epoch.
    Ready {
        /// The epoch.
        epoch: Epoch,
    },
    /// In both directions of a control channel.
    Heartbeat(Heartbeat),
    /// Worker to head: it cannot go on in this epoch. Head to worker: its results are wrong.
    Failed(Failure),
    /// From place to place.
    Step(Step),
    /// Head to a worker that is in no epoch: fetch what its part will need.
    Provide(Box<Provide>),
    /// Worker to head: everything of [`Frame::Provide`] is there.
    Provided,
    /// Worker to head: asks for the list of the model file's pieces.
    FetchManifest,
    /// Head to worker: that list.
    Manifest(Vec<u8>),
    /// Worker to head, or to another worker: asks for these pieces of the model file.
    FetchPieces {
        /// The first piece.
        first: u32,
        /// How many pieces.
        count: u32,
    },
    /// The answer to [`Frame::FetchPieces`]: one piece.
    Piece(PieceData),
    /// Worker to worker: asks which pieces of this model it has. The worker may then ask for some of them.
    AskPieces {
        /// SHA-256 of the list of the model's pieces.
        model: Digest,
    },
    /// The answer: one bit per piece, the lowest bit of a byte first. A missing bit means that the piece is
    /// not there.
    HasPieces(Vec<u8>),
    /// Worker to head: it received something from another worker.
    FetchProgress,
    /// Over a link that this side has opened: answer at once, because the time is measured.
    Echo(EchoData),
    /// The answer, with as many bytes as were asked for.
    Echoed(EchoData),
    /// Head to worker: the device with this key will measure its path to you.
    AwaitEdge {
        /// The device.
        from: DeviceId,
    },
    /// Head to worker: measure the path to this device.
    MeasureEdge(Node),
    /// Worker to head: the result of that measurement.
    Edge(MeasuredLink),
}

impl Frame {
    /// Encodes the frame as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// Appends the frame's bytes, for senders that use one buffer again and again.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let out = &mut Writer(out);
        out.u16(VERSION);
        match self {
            Self::Hello(hello) => control::write_hello(out, hello),
            Self::Enter { epoch, place } => {
                out.u8(kind::ENTER);
                out.u64(epoch.0);
                out.u16(*place);
            }
            Self::Configure(configure) => control::write_configure(out, configure),
            Self::Ready { epoch } => {
                out.u8(kind::READY);
                out.u64(epoch.0);
            }
            Self::Heartbeat(beat) => control::write_heartbeat(out, beat),
            Self::Failed(failure) => control::write_failure(out, failure),
            Self::Step(step) => step::write(out, step),
            Self::Provide(provide) => control::write_provide(out, provide),
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
            Self::FetchProgress => out.u8(kind::FETCH_PROGRESS),
            Self::Echo(echo) => control::write_echo(out, kind::ECHO, echo),
            Self::Echoed(echo) => control::write_echo(out, kind::ECHOED, echo),
            Self::AwaitEdge { from } => {
                out.u8(kind::AWAIT_EDGE);
                out.0.extend_from_slice(&from.0);
            }
            Self::MeasureEdge(to) => {
                out.u8(kind::MEASURE_EDGE);
                control::write_node(out, to);
            }
            Self::Edge(link) => control::write_link_speed(out, link),
        }
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// [`FrameError`] for any bytes that [`Frame::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(bytes);
        let theirs = from.u16("version")?;
        if theirs != VERSION {
            return Err(FrameError::Version { theirs });
        }
        let frame = match from.u8("kind")? {
            kind::HELLO => Self::Hello(control::read_hello(&mut from)?),
            kind::ENTER => Self::Enter { epoch: Epoch(from.u64("epoch")?), place: from.u16("place")? },
            kind::CONFIGURE => Self::Configure(Box::new(control::read_configure(&mut from)?)),
            kind::READY => Self::Ready { epoch: Epoch(from.u64("epoch")?) },
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
                Self::Piece(PieceData { index, bytes: from.bytes("bytes of a piece")?.to_vec() })
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
            kind::FETCH_PROGRESS => Self::FetchProgress,
            kind::ECHO => Self::Echo(control::read_echo(&mut from)?),
            kind::ECHOED => Self::Echoed(control::read_echo(&mut from)?),
            kind::AWAIT_EDGE => Self::AwaitEdge { from: DeviceId(from.key("key")?) },
            kind::MEASURE_EDGE => Self::MeasureEdge(control::read_node(&mut from)?),
            kind::EDGE => Self::Edge(control::read_link_speed(&mut from)?),
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
    pub(super) const FETCH_PROGRESS: u8 = 18;
    pub(super) const PROVIDE: u8 = 19;
    pub(super) const PROVIDED: u8 = 20;
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
