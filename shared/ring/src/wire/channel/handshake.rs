//! The handshake: it agrees on version and pattern, proves both keys, and says what the channel is for.
//!
//! It begins with seven bytes in the clear (a mark, the version, the pattern); then come Noise messages of
//! fixed sizes. The clear bytes are mixed into the handshake, so that nobody can change them. The called
//! device sends nothing to a caller that does not begin with the mark, nor to one that does not know its
//! key. If versions differ, both sides send theirs in the clear; devices announce them on the network
//! anyway.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState, StatelessTransportState};

use super::deadline::{Deadline, read_all, write_all};
use super::{Admission, ChannelError, Instances, Purpose};
use crate::home::identity::{Identity, InstanceId, PublicKey};

/// Version of everything that two devices of a ring exchange.
pub const PROTOCOL_VERSION: u16 = 1;

const MARK: [u8; 4] = *b"BTNR";
const PREAMBLE: usize = MARK.len() + 3;
/// One byte of meaning, and the sender's instance.
const PAYLOAD: usize = 1 + 16;
const KEY: usize = 32;
const TAG: usize = 16;
/// IK: e, es, s, ss, payload.
const IK_1: usize = KEY + KEY + TAG + PAYLOAD + TAG;
/// IK: e, ee, se, payload.
const IK_2: usize = KEY + PAYLOAD + TAG;
/// XX: e.
const XX_1: usize = KEY;
/// XX: e, ee, s, es, payload.
const XX_2: usize = KEY + KEY + TAG + PAYLOAD + TAG;
/// XX: s, se, payload.
const XX_3: usize = KEY + TAG + PAYLOAD + TAG;
/// The largest of these messages.
const MESSAGE_MAX: usize = XX_2;
/// Most bytes that are read from a refused caller and dropped, so that the refusal still reaches it.
const DRAINED_BYTES: usize = 4096;
const DRAIN: Duration = Duration::from_millis(300);

/// The result of a handshake.
pub(super) struct Established {
    pub(super) transport: StatelessTransportState,
    pub(super) peer: PublicKey,
    pub(super) instance: InstanceId,
    pub(super) hash: [u8; 32],
}

/// What the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Use(Purpose),
    /// Only to know whether the device answers.
    Probe,
}

impl Intent {
    fn byte(self) -> u8 {
        match self {
            Self::Use(Purpose::Control) => 1,
            Self::Use(Purpose::Ring) => 2,
            Self::Use(Purpose::Pairing) => 3,
            Self::Probe => 4,
            Self::Use(Purpose::Weights) => 5,
            Self::Use(Purpose::Edge) => 6,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Use(Purpose::Control)),
            2 => Some(Self::Use(Purpose::Ring)),
            3 => Some(Self::Use(Purpose::Pairing)),
            4 => Some(Self::Probe),
            5 => Some(Self::Use(Purpose::Weights)),
            6 => Some(Self::Use(Purpose::Edge)),
            _ => None,
        }
    }
}

/// What the two devices know of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// The caller knows the other's key.
    Pinned = 1,
    /// Neither side knows the other's key.
    Strangers = 2,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::Pinned => "Noise_IK_25519_ChaChaPoly_SHA256",
            Self::Strangers => "Noise_XX_25519_ChaChaPoly_SHA256",
        }
    }
}

/// Sent in place of a pattern: the caller was ended in favour of a newer one.
const BUSY: u8 = 0xff;

const WELCOME: u8 = 0;
const NOT_PINNED: u8 = 1;
const CLONED: u8 = 2;

fn preamble(version: u16, pattern: u8) -> [u8; PREAMBLE] {
    let [high, low] = version.to_be_bytes();
    let [a, b, c, d] = MARK;
    [a, b, c, d, high, low, pattern]
}

/// Returns the version and pattern of a preamble, or `None` if it does not begin with the mark.
pub(super) fn parse_preamble(bytes: &[u8; PREAMBLE]) -> Option<(u16, u8)> {
    let [a, b, c, d, high, low, pattern] = *bytes;
    ([a, b, c, d] == MARK).then_some((u16::from_be_bytes([high, low]), pattern))
}

fn noise(
    pattern: Pattern,
    identity: &Identity,
    peer: Option<&PublicKey>,
    caller: bool,
) -> Result<HandshakeState, ChannelError> {
    let params = pattern.name().parse().expect("the patterns are Noise's own names");
    let prologue = preamble(PROTOCOL_VERSION, pattern as u8);
    let build = || {
        let mut builder = Builder::new(params).local_private_key(identity.secret())?.prologue(&prologue)?;
        if let Some(peer) = peer {
            builder = builder.remote_public_key(&peer.0)?;
        }
        if caller { builder.build_initiator() } else { builder.build_responder() }
    };
    // Only the system's random source can fail here.
    build().map_err(|err| ChannelError::Io(std::io::Error::other(err.to_string())))
}

fn payload(meaning: u8, identity: &Identity) -> [u8; PAYLOAD] {
    let mut bytes = [meaning; PAYLOAD];
    bytes[1..].copy_from_slice(&identity.instance().0);
    bytes
}

/// Writes a message of exactly `N` bytes.
fn write<const N: usize>(state: &mut HandshakeState, payload: &[u8]) -> Result<[u8; N], ChannelError> {
    // The library needs room for a tag even if a message has none.
    let mut message = [0; MESSAGE_MAX + TAG];
    let wrote = state.write_message(payload, &mut message);
    let wrote = wrote.map_err(|err| ChannelError::Io(std::io::Error::other(err.to_string())))?;
    let exact: &[u8; N] = message[..wrote].try_into().expect("a handshake message has its pattern's size");
    Ok(*exact)
}

/// Reads a message and the two parts of its payload. Every error means that the sender has not proved its
/// key.
fn read(state: &mut HandshakeState, message: &[u8]) -> Result<(u8, InstanceId), ChannelError> {
    let mut payload = [0; PAYLOAD];
    let bytes = state.read_message(message, &mut payload).map_err(|_| ChannelError::Unproven)?;
    if bytes != PAYLOAD {
        return Err(ChannelError::Unproven);
    }
    let mut instance = [0; 16];
    instance.copy_from_slice(&payload[1..]);
    Ok((payload[0], InstanceId(instance)))
}

fn remote(state: &HandshakeState) -> Result<PublicKey, ChannelError> {
    let key = state.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
    key.ok_or(ChannelError::Unproven)
}

fn established(state: HandshakeState, instance: InstanceId) -> Result<Established, ChannelError> {
    let peer = remote(&state)?;
    let hash = state.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes");
    let transport = state.into_stateless_transport_mode().map_err(|_| ChannelError::Unproven)?;
    Ok(Established { transport, peer, instance, hash })
}

/// Sends the preamble and the first message; reads the other side's preamble and its message of `N` bytes.
fn ask<const N: usize>(
    stream: &TcpStream,
    pattern: Pattern,
    first: &[u8],
    deadline: &Deadline,
) -> Result<[u8; N], ChannelError> {
    let mut opening = preamble(PROTOCOL_VERSION, pattern as u8).to_vec();
    opening.extend_from_slice(first);
    // A peer that closes here without an answer does not have the expected key, or is another program.
    let silent = |err| if matches!(err, ChannelError::Closed) { ChannelError::Unproven } else { err };
    write_all(stream, &opening, deadline).map_err(silent)?;
    let mut theirs = [0; PREAMBLE];
    read_all(stream, &mut theirs, deadline).map_err(silent)?;
    match parse_preamble(&theirs) {
        None => return Err(ChannelError::Unproven),
        Some((PROTOCOL_VERSION, found)) if found == pattern as u8 => {}
        Some((PROTOCOL_VERSION, BUSY)) => return Err(ChannelError::Busy),
        Some((PROTOCOL_VERSION, _)) => return Err(ChannelError::Unproven),
        Some((theirs, _)) => return Err(ChannelError::Version { ours: PROTOCOL_VERSION, theirs }),
    }
    let mut answer = [0; N];
    read_all(stream, &mut answer, deadline).map_err(silent)?;
    Ok(answer)
}

/// Performs the caller's side of the handshake with a device whose key is pinned.
pub(super) fn call_pinned(
    stream: &TcpStream,
    identity: &Identity,
    peer: &PublicKey,
    intent: Intent,
    deadline: &Deadline,
) -> Result<Established, ChannelError> {
    let mut state = noise(Pattern::Pinned, identity, Some(peer), true)?;
    let first: [u8; IK_1] = write(&mut state, &payload(intent.byte(), identity))?;
    let answer: [u8; IK_2] = ask(stream, Pattern::Pinned, &first, deadline)?;
    let (meaning, instance) = read(&mut state, &answer)?;
    match meaning {
        WELCOME => established(state, instance),
        NOT_PINNED => Err(ChannelError::Refused),
        CLONED => Err(ChannelError::Cloned),
        _ => Err(ChannelError::Unproven),
    }
}

/// Performs the caller's side of the handshake with a device whose key is not known.
pub(super) fn call_stranger(
    stream: &TcpStream,
    identity: &Identity,
    deadline: &Deadline,
) -> Result<Established, ChannelError> {
    let mut state = noise(Pattern::Strangers, identity, None, true)?;
    let first: [u8; XX_1] = write(&mut state, &[])?;
    let answer: [u8; XX_2] = ask(stream, Pattern::Strangers, &first, deadline)?;
    let (_, instance) = read(&mut state, &answer)?;
    if remote(&state)? == *identity.public() {
        return Err(ChannelError::Cloned);
    }
    let last: [u8; XX_3] = write(&mut state, &payload(Intent::Use(Purpose::Pairing).byte(), identity))?;
    write_all(stream, &last, deadline)?;
    established(state, instance)
}

/// Performs the called side of the handshake.
pub(super) fn answer(
    stream: &TcpStream,
    identity: &Identity,
    admission: &Admission<'_>,
    deadline: &Deadline,
) -> Result<(Established, Intent), ChannelError> {
    let mut theirs = [0; PREAMBLE];
    let evicted = || admission.evicted.is_some_and(|evicted| evicted());
    let busy = |err| if evicted() { ChannelError::Busy } else { err };
    read_all(stream, &mut theirs, deadline).map_err(busy)?;
    let (version, pattern) = parse_preamble(&theirs).ok_or(ChannelError::Unproven)?;
    if version != PROTOCOL_VERSION {
        tell(stream, 0, deadline);
        return Err(ChannelError::Version { ours: PROTOCOL_VERSION, theirs: version });
    }
    answer_by(stream, pattern, identity, admission, deadline).map_err(|err| {
        if evicted() {
            tell(stream, BUSY, deadline);
        }
        busy(err)
    })
}

fn answer_by(
    stream: &TcpStream,
    pattern: u8,
    identity: &Identity,
    admission: &Admission<'_>,
    deadline: &Deadline,
) -> Result<(Established, Intent), ChannelError> {
    if pattern == Pattern::Pinned as u8 {
        answer_pinned(stream, identity, admission, deadline)
    } else if pattern == Pattern::Strangers as u8 && admission.strangers {
        Ok((answer_stranger(stream, identity, deadline)?, Intent::Use(Purpose::Pairing)))
    } else {
        Err(ChannelError::Unproven)
    }
}

/// Sends this side's version, with `word` in place of the pattern, and then reads what the caller still
/// sends. A connection that is closed with unread bytes is reset, and the answer could be lost.
fn tell(mut stream: &TcpStream, word: u8, deadline: &Deadline) {
    let told = write_all(stream, &preamble(PROTOCOL_VERSION, word), deadline);
    if told.is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let begun = Instant::now();
    let mut rest = [0; 512];
    let mut drained = 0;
    while drained < DRAINED_BYTES && begun.elapsed() < DRAIN {
        match stream.set_read_timeout(Some(DRAIN)).and_then(|()| stream.read(&mut rest)) {
            Ok(bytes @ 1..) => drained += bytes,
            Ok(0) | Err(_) => return,
        }
    }
}

fn answer_pinned(
    stream: &TcpStream,
    identity: &Identity,
    admission: &Admission<'_>,
    deadline: &Deadline,
) -> Result<(Established, Intent), ChannelError> {
    let mut state = noise(Pattern::Pinned, identity, None, false)?;
    let mut first = [0; IK_1];
    read_all(stream, &mut first, deadline)?;
    let (meaning, instance) = read(&mut state, &first)?;
    let peer = remote(&state)?;
    // Pairing uses the other pattern, for strangers.
    let intent = Intent::of(meaning).filter(|intent| *intent != Intent::Use(Purpose::Pairing));
    let intent = intent.ok_or(ChannelError::Unproven)?;
    let taken = |present: &Instances| intent != Intent::Probe && present.taken(&peer, instance);
    let verdict = if peer == *identity.public() {
        CLONED
    } else if !(admission.allowed)(&peer) {
        NOT_PINNED
    } else if admission.present.is_some_and(taken) {
        CLONED
    } else {
        WELCOME
    };
    let mut reply = preamble(PROTOCOL_VERSION, Pattern::Pinned as u8).to_vec();
    let second: [u8; IK_2] = write(&mut state, &payload(verdict, identity))?;
    reply.extend_from_slice(&second);
    write_all(stream, &reply, deadline)?;
    match verdict {
        WELCOME => Ok((established(state, instance)?, intent)),
        CLONED => Err(ChannelError::Cloned),
        _ => Err(ChannelError::Refused),
    }
}

fn answer_stranger(
    stream: &TcpStream,
    identity: &Identity,
    deadline: &Deadline,
) -> Result<Established, ChannelError> {
    let mut state = noise(Pattern::Strangers, identity, None, false)?;
    let mut first = [0; XX_1];
    read_all(stream, &mut first, deadline)?;
    let nothing = state.read_message(&first, &mut []).map_err(|_| ChannelError::Unproven)?;
    assert_eq!(nothing, 0, "the first message of XX has no payload at this size");
    let mut reply = preamble(PROTOCOL_VERSION, Pattern::Strangers as u8).to_vec();
    let second: [u8; XX_2] = write(&mut state, &payload(WELCOME, identity))?;
    reply.extend_from_slice(&second);
    write_all(stream, &reply, deadline)?;
    let mut last = [0; XX_3];
    read_all(stream, &mut last, deadline)?;
    let (meaning, instance) = read(&mut state, &last)?;
    if Intent::of(meaning) != Some(Intent::Use(Purpose::Pairing)) {
        return Err(ChannelError::Unproven);
    }
    if remote(&state)? == *identity.public() {
        return Err(ChannelError::Cloned);
    }
    established(state, instance)
}
