//! Pairs two strangers by a short code that a person reads on one screen and types on the other device.
//!
//! Over a channel between strangers ([`crate::wire::channel`], pattern XX) both sides run SPAKE2 (Abdalla and
//! Pointcheval 2005; Ed25519 group) with the code. It is bound to both static keys and to the hash of the
//! handshake. An attacker in the middle has two channels with different hashes, so what it forwards fits
//! neither. The joining device proves first that it knows the code; only then does the head. So guessing
//! needs the head, and one code for each guess.
//!
//! Always holds:
//!
//! - A code is good for one guess and one device, and for [`CODE_LIFE`]. It is used up by the first guess
//!   that arrives, so a device that begins and does not guess blocks nobody.
//! - After [`WRONG_MAX`] wrong guesses there are no more codes until the program is started again.
//! - Keys are pinned only by the caller, after both proofs.

pub mod host;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use spake2::{Ed25519Group, Password, Spake2};
use subtle::ConstantTimeEq as _;

use crate::home::identity::{DeviceName, Identity, PublicKey, RingId};
use crate::home::state::{StateError, random};
use crate::wire::channel::{Channel, ChannelError, Receiver, Sender};

/// How long a code can be used.
pub const CODE_LIFE: Duration = Duration::from_secs(600);
/// Wrong guesses after which no more codes are given out.
pub const WRONG_MAX: u32 = 3;
/// How long each step of a pairing may take.
const STEP: Duration = Duration::from_secs(10);
const DIGITS: usize = 6;
/// Bytes of a SPAKE2 message: a letter for the side, and a point.
const POINT: usize = 33;
const PROOF: usize = 32;
const DONE: &[u8] = &[1];

/// Six digits; all codes are equally likely.
#[derive(Clone, PartialEq, Eq)]
pub struct Code([u8; DIGITS]);

impl Code {
    /// Makes a new code.
    ///
    /// # Errors
    /// [`StateError::NoRandomness`].
    pub fn random() -> Result<Self, StateError> {
        const CODES: u32 = 10_u32.pow(DIGITS as u32);
        // Numbers beyond the last multiple would make lower codes more likely.
        const FAIR: u32 = u32::MAX / CODES * CODES;
        let mut number = u32::MAX;
        while number >= FAIR {
            number = u32::from_le_bytes(random()?);
        }
        let digit = |at: usize| b'0' + (number / 10_u32.pow((DIGITS - 1 - at) as u32) % 10) as u8;
        Ok(Self(std::array::from_fn(digit)))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::str::from_utf8(&self.0).expect("digits are ASCII");
        let (first, second) = text.split_at(DIGITS / 2);
        write!(f, "{first} {second}")
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Logs are read by people who do not sit at the screen.
        f.write_str("Code")
    }
}

/// A text that is not a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a pairing code has {DIGITS} digits, such as 482 913")]
pub struct InvalidCode;

impl FromStr for Code {
    type Err = InvalidCode;

    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b' ' | b'-')).collect();
        let digits: [u8; DIGITS] = digits.try_into().map_err(|_| InvalidCode)?;
        if digits.iter().all(u8::is_ascii_digit) { Ok(Self(digits)) } else { Err(InvalidCode) }
    }
}

/// Why a head does not pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The guess was wrong; the code is used up.
    #[error("the code is wrong, and used up by this try: take the new one from the head's screen")]
    WrongCode,
    /// There were too many wrong guesses.
    #[error("there were {WRONG_MAX} wrong codes: start `baton ring init` again on the head")]
    Locked,
    /// Another device is being paired.
    #[error("the head is pairing with another device right now: try again")]
    Busy,
    /// No code is valid: there is none, or it is too old.
    #[error("the head has no code out, or it is too old: take the one that its screen shows now")]
    NoCode,
}

impl Refusal {
    fn byte(self) -> u8 {
        match self {
            Self::WrongCode => 2,
            Self::Locked => 3,
            Self::Busy => 4,
            Self::NoCode => 5,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        [Self::WrongCode, Self::Locked, Self::Busy, Self::NoCode]
            .into_iter()
            .find(|known| known.byte() == byte)
    }
}

/// Why two devices are not paired.
#[derive(Debug, thiserror::Error)]
pub enum PairingError {
    /// The head does not pair now, or not with this code.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The head has not proved that it knows the code.
    #[error("the other side does not know the code: it is not the head that showed it")]
    Impostor,
    /// The other side sent something that is not a pairing message.
    #[error("the other side sent a pairing message of {bytes} bytes that cannot be read")]
    Malformed {
        /// Bytes of the message.
        bytes: usize,
    },
    /// An error of the connection.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The key could not be pinned.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The head's codes. Times come from the caller's clock, which may begin at any moment.
#[derive(Debug, Default)]
pub struct PairingCodes(Mutex<CodeState>);

#[derive(Debug, Default)]
struct CodeState {
    /// The present code.
    code: Option<OfferedCode>,
    /// Whether a guess is being checked right now.
    taken: bool,
    wrong: u32,
    /// Number of codes so far.
    offered: u64,
}

#[derive(Debug, Clone)]
struct OfferedCode {
    code: Code,
    since: Duration,
    number: u64,
}

impl PairingCodes {
    fn state(&self) -> MutexGuard<'_, CodeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a new code in place of the present one.
    ///
    /// # Errors
    /// [`Refusal::Locked`]; [`Refusal::Busy`] while a guess is checked.
    pub fn offer(&self, code: Code, now: Duration) -> Result<(), Refusal> {
        let mut state = self.state();
        state.free()?;
        state.offered += 1;
        state.code = Some(OfferedCode { code, since: now, number: state.offered });
        Ok(())
    }

    /// Returns whether a new code is due: no code is valid, no guess is being checked, and nothing is
    /// locked.
    pub fn wants_code(&self, now: Duration) -> bool {
        let state = self.state();
        state.fresh(now).is_none() && state.free().is_ok()
    }

    /// Returns whether there were too many wrong guesses.
    pub fn locked(&self) -> bool {
        self.state().wrong >= WRONG_MAX
    }

    /// Returns the number of wrong guesses so far.
    pub fn wrong(&self) -> u32 {
        self.state().wrong
    }

    /// Returns the present code. Any number of callers may begin with it: a caller that only begins does
    /// not use it up.
    fn look(&self, now: Duration) -> Result<OfferedCode, Refusal> {
        let state = self.state();
        state.free()?;
        state.fresh(now).cloned().ok_or(Refusal::NoCode)
    }

    /// Uses the code up for one guess: only the first caller gets it.
    fn take(&self, offered: &OfferedCode) -> Result<Guess<'_>, Refusal> {
        let mut state = self.state();
        state.free()?;
        state.code.take_if(|out| out.number == offered.number).ok_or(Refusal::NoCode)?;
        state.taken = true;
        drop(state);
        Ok(Guess { codes: self, right: false })
    }
}

impl CodeState {
    fn free(&self) -> Result<(), Refusal> {
        match (self.wrong >= WRONG_MAX, self.taken) {
            (true, _) => Err(Refusal::Locked),
            (_, true) => Err(Refusal::Busy),
            _ => Ok(()),
        }
    }

    fn fresh(&self, now: Duration) -> Option<&OfferedCode> {
        self.code.as_ref().filter(|out| now.saturating_sub(out.since) < CODE_LIFE)
    }
}

/// One guess at a code. It counts as wrong unless it is marked as right. Dropping it always allows the next
/// guess.
struct Guess<'a> {
    codes: &'a PairingCodes,
    right: bool,
}

impl Drop for Guess<'_> {
    fn drop(&mut self) {
        let mut state = self.codes.state();
        state.taken = false;
        state.wrong += u32::from(!self.right);
    }
}

/// What two devices tell each other after both proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairingInfo {
    /// The name of the device.
    pub name: DeviceName,
    /// The port on which it listens for its ring.
    pub port: u16,
    /// The ring of the head; the value of the joining device has no meaning.
    pub ring: RingId,
}

impl PairingInfo {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.ring.0.to_vec();
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(self.name.as_str().as_bytes());
        bytes
    }

    /// Reads a ring, a port and a name. Returns `None` if they are not valid.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (ring, rest) = bytes.split_first_chunk::<8>()?;
        let (port, name) = rest.split_first_chunk::<2>()?;
        let name = std::str::from_utf8(name).ok()?.parse().ok()?;
        Some(Self { name, port: u16::from_be_bytes(*port), ring: RingId(*ring) })
    }
}

/// The side that makes a proof.
#[derive(Clone, Copy)]
enum Side {
    Joiner,
    Head,
}

impl Side {
    fn mark(self) -> &'static [u8] {
        match self {
            Self::Joiner => b"baton ring pairing 1 joiner",
            Self::Head => b"baton ring pairing 1 head  ",
        }
    }

    /// Returns the side's SPAKE2 identity in this channel.
    fn id(self, key: &PublicKey, hash: &[u8; 32]) -> spake2::Identity {
        spake2::Identity::new(&[self.mark(), &key.0, hash].concat())
    }

    /// Returns the proof that a side has the key, which only the code gives. All parts have fixed sizes.
    fn proof(self, key: &[u8], hash: &[u8; 32]) -> [u8; PROOF] {
        Sha256::new().chain_update(self.mark()).chain_update(key).chain_update(hash).finalize().into()
    }
}

/// Sends and receives with the deadline of a step.
struct PairingChannel {
    sender: Sender,
    receiver: Receiver,
}

impl PairingChannel {
    fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        self.sender.send(message, STEP)
    }

    fn receive(&mut self) -> Result<Vec<u8>, ChannelError> {
        self.receiver.receive(STEP)
    }

    /// Tells the other side why it is not paired.
    fn refuse(&mut self, refusal: Refusal) -> PairingError {
        match self.send(&[refusal.byte()]) {
            Ok(()) => refusal.into(),
            Err(err) => err.into(),
        }
    }
}

fn malformed(message: &[u8]) -> PairingError {
    PairingError::Malformed { bytes: message.len() }
}

/// Reads a message of the head: returns the rest of it, or its refusal as an error.
fn accepted(message: &[u8]) -> Result<&[u8], PairingError> {
    match message.split_first() {
        Some((1, rest)) => Ok(rest),
        Some((byte, [])) => Err(Refusal::of(*byte).map_or_else(|| malformed(message), PairingError::Refused)),
        _ => Err(malformed(message)),
    }
}

/// Joins the head at the other end of a channel between strangers. `pin` stores its key after it has proved
/// that it knows the code.
///
/// # Errors
/// [`PairingError`]. Nothing is pinned then, except if only the head's last message is missing or wrong;
/// pairing again repairs that.
pub fn join(
    channel: Channel,
    identity: &Identity,
    code: &Code,
    own: &PairingInfo,
    pin: &mut dyn FnMut(&PublicKey, &PairingInfo) -> Result<(), StateError>,
) -> Result<PairingInfo, PairingError> {
    let (peer, hash) = (*channel.peer(), *channel.hash());
    let (a, b) = (Side::Joiner.id(identity.public(), &hash), Side::Head.id(&peer, &hash));
    let (sender, receiver) = channel.split();
    let mut link = PairingChannel { sender, receiver };
    let (state, point) = Spake2::<Ed25519Group>::start_a(&Password::new(code.0), &a, &b);
    link.send(&point)?;
    let message = link.receive()?;
    let theirs = accepted(&message)?;
    let key = state.finish(theirs).map_err(|_| malformed(&message))?;
    let mut proof = Side::Joiner.proof(&key, &hash).to_vec();
    proof.extend_from_slice(&own.to_bytes());
    link.send(&proof)?;
    let message = link.receive()?;
    let rest = accepted(&message)?;
    let (proof, profile) = rest.split_first_chunk::<PROOF>().ok_or_else(|| malformed(&message))?;
    if !bool::from(proof.ct_eq(&Side::Head.proof(&key, &hash))) {
        return Err(PairingError::Impostor);
    }
    let profile = PairingInfo::from_bytes(profile).ok_or_else(|| malformed(&message))?;
    pin(&peer, &profile)?;
    link.send(DONE)?;
    let last = link.receive()?;
    if last == DONE { Ok(profile) } else { Err(malformed(&last)) }
}

/// Admits the device at the other end of a channel between strangers. `pin` stores its key after it has
/// proved that it knows the code.
///
/// # Errors
/// [`PairingError`]; [`PairingError::Refused`] is what the other side was told. Nothing is pinned then,
/// except if only the last message could not be sent.
pub fn admit(
    channel: Channel,
    identity: &Identity,
    codes: &PairingCodes,
    now: Duration,
    own: &PairingInfo,
    pin: &mut dyn FnMut(&PublicKey, &PairingInfo) -> Result<(), StateError>,
) -> Result<PairingInfo, PairingError> {
    let (peer, hash) = (*channel.peer(), *channel.hash());
    let (a, b) = (Side::Joiner.id(&peer, &hash), Side::Head.id(identity.public(), &hash));
    let (sender, receiver) = channel.split();
    let mut link = PairingChannel { sender, receiver };
    let theirs = link.receive()?;
    if theirs.len() != POINT {
        return Err(malformed(&theirs));
    }
    let offered = match codes.look(now) {
        Ok(offered) => offered,
        Err(refusal) => return Err(link.refuse(refusal)),
    };
    let (state, point) = Spake2::<Ed25519Group>::start_b(&Password::new(offered.code.0), &a, &b);
    let key = state.finish(&theirs).map_err(|_| malformed(&theirs))?;
    link.send(&[&[1], point.as_slice()].concat())?;
    let message = link.receive()?;
    // This is a guess, whatever the message contains.
    let mut attempt = match codes.take(&offered) {
        Ok(attempt) => attempt,
        Err(refusal) => return Err(link.refuse(refusal)),
    };
    let right = message
        .split_first_chunk::<PROOF>()
        .filter(|(proof, _)| bool::from(proof.ct_eq(&Side::Joiner.proof(&key, &hash))));
    let Some((_, profile)) = right else {
        return Err(link.refuse(Refusal::WrongCode));
    };
    attempt.right = true;
    let profile = PairingInfo::from_bytes(profile).ok_or_else(|| malformed(&message))?;
    let mut answer = vec![1];
    answer.extend_from_slice(&Side::Head.proof(&key, &hash));
    answer.extend_from_slice(&own.to_bytes());
    link.send(&answer)?;
    let last = link.receive()?;
    if last != DONE {
        return Err(malformed(&last));
    }
    pin(&peer, &profile)?;
    link.send(DONE)?;
    Ok(profile)
}
