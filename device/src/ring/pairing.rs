//! Pairing two strangers by a short code that a person carries from one screen to the other.
//!
//! Over a channel between strangers ([`super::channel`], pattern XX) both sides run SPAKE2 (Abdalla and Pointcheval
//! 2005; Ed25519 group) with the code, bound to both static keys and to the handshake's hash. Someone between the two
//! has two channels with two hashes, so that what it passes on fits neither. The one that joins proves first that it
//! knows the code; only then does the head prove it, so that guessing needs the head, one code for each guess.
//!
//! Always holds: a code is good for one guess and one device, and for [`CODE_LIFE`]; it goes with the first guess that comes,
//! so that who begins and does not guess keeps nobody waiting; after [`WRONG_MAX`] wrong guesses
//! there are no more codes until the program is started again. Keys are pinned only by the caller, after both proofs.

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

use super::channel::{Channel, ChannelError, Receiver, Sender};
use super::identity::{DeviceName, Identity, PublicKey, RingId};
use super::state::{StateError, random};

/// How long a code can be used.
pub const CODE_LIFE: Duration = Duration::from_secs(600);
/// Wrong guesses after which no code is given out any more.
pub const WRONG_MAX: u32 = 3;
/// How long each step of a pairing may take.
const STEP: Duration = Duration::from_secs(10);
const DIGITS: usize = 6;
/// Bytes of SPAKE2's message: a letter for the side, a point.
const POINT: usize = 33;
const PROOF: usize = 32;
const DONE: &[u8] = &[1];

/// Six digits, each as likely as any other.
#[derive(Clone, PartialEq, Eq)]
pub struct Code([u8; DIGITS]);

impl Code {
    /// A new code.
    ///
    /// # Errors
    /// [`StateError::NoRandomness`].
    pub fn random() -> Result<Self, StateError> {
        const CODES: u32 = 10_u32.pow(DIGITS as u32);
        // Numbers beyond the last multiple would make the lower codes likelier.
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
        // Logs are read by others than the person at the screen.
        f.write_str("Code")
    }
}

/// A text that is no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a pairing code has {DIGITS} digits, such as 482 913")]
pub struct NoCode;

impl FromStr for Code {
    type Err = NoCode;

    fn from_str(text: &str) -> Result<Self, NoCode> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b' ' | b'-')).collect();
        let digits: [u8; DIGITS] = digits.try_into().map_err(|_| NoCode)?;
        if digits.iter().all(u8::is_ascii_digit) { Ok(Self(digits)) } else { Err(NoCode) }
    }
}

/// Why a head does not pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The guess was wrong; the code is used up.
    #[error("the code is wrong, and used up by this try: take the new one from the head's screen")]
    WrongCode,
    /// Too many wrong guesses.
    #[error("there were {WRONG_MAX} wrong codes: start `baton ring init` again on the head")]
    Locked,
    /// Another device is pairing.
    #[error("the head is pairing with another device right now: try again")]
    Busy,
    /// No code is out, or it is too old.
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
    /// The other side sent something else than a pairing.
    #[error("the other side sent a pairing message of {bytes} bytes that cannot be read")]
    Malformed {
        /// Bytes of the message.
        bytes: usize,
    },
    /// The connection.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The key could not be pinned.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The head's book of codes. Time is whatever clock the caller has, from any beginning.
#[derive(Debug, Default)]
pub struct Desk(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// The code that is out.
    code: Option<Offered>,
    /// Whether a guess is being judged right now.
    taken: bool,
    wrong: u32,
    /// Codes that were out.
    offered: u64,
}

#[derive(Debug, Clone)]
struct Offered {
    code: Code,
    since: Duration,
    number: u64,
}

impl Desk {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a code out in place of the one before.
    ///
    /// # Errors
    /// [`Refusal::Locked`]; [`Refusal::Busy`] while a guess is judged.
    pub fn offer(&self, code: Code, now: Duration) -> Result<(), Refusal> {
        let mut book = self.book();
        book.free()?;
        book.offered += 1;
        book.code = Some(Offered { code, since: now, number: book.offered });
        Ok(())
    }

    /// Whether a new code is due: none is out, or it is too old, and no guess is judged, and nothing is locked.
    pub fn wants_code(&self, now: Duration) -> bool {
        let book = self.book();
        book.fresh(now).is_none() && book.free().is_ok()
    }

    /// Whether there were too many wrong guesses.
    pub fn locked(&self) -> bool {
        self.book().wrong >= WRONG_MAX
    }

    /// Wrong guesses so far.
    pub fn wrong(&self) -> u32 {
        self.book().wrong
    }

    /// The code that is out, for one of any number of callers: who only begins keeps nobody else from it.
    fn look(&self, now: Duration) -> Result<Offered, Refusal> {
        let book = self.book();
        book.free()?;
        book.fresh(now).cloned().ok_or(Refusal::NoCode)
    }

    /// Takes this code for a guess: the first one that comes, and no other.
    fn take(&self, offered: &Offered) -> Result<Try<'_>, Refusal> {
        let mut book = self.book();
        book.free()?;
        book.code.take_if(|out| out.number == offered.number).ok_or(Refusal::NoCode)?;
        book.taken = true;
        drop(book);
        Ok(Try { desk: self, right: false })
    }
}

impl Book {
    fn free(&self) -> Result<(), Refusal> {
        match (self.wrong >= WRONG_MAX, self.taken) {
            (true, _) => Err(Refusal::Locked),
            (_, true) => Err(Refusal::Busy),
            _ => Ok(()),
        }
    }

    fn fresh(&self, now: Duration) -> Option<&Offered> {
        self.code.as_ref().filter(|out| now.saturating_sub(out.since) < CODE_LIFE)
    }
}

/// One guess at a code, wrong unless something else is said; whatever happens, the desk is free again when it is dropped.
struct Try<'a> {
    desk: &'a Desk,
    right: bool,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        let mut book = self.desk.book();
        book.taken = false;
        book.wrong += u32::from(!self.right);
    }
}

/// What two devices tell each other once they are proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What the device is called.
    pub name: DeviceName,
    /// The port that it listens on for its ring.
    pub port: u16,
    /// The ring: the head's; of the one that joins it says nothing.
    pub ring: RingId,
}

impl Profile {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.ring.0.to_vec();
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(self.name.as_str().as_bytes());
        bytes
    }

    /// A ring, a port, and the rest a name; none where it is not one.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (ring, rest) = bytes.split_first_chunk::<8>()?;
        let (port, name) = rest.split_first_chunk::<2>()?;
        let name = std::str::from_utf8(name).ok()?.parse().ok()?;
        Some(Self { name, port: u16::from_be_bytes(*port), ring: RingId(*ring) })
    }
}

/// Who speaks, in proofs.
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

    /// Who the side is, in this channel.
    fn id(self, key: &PublicKey, hash: &[u8; 32]) -> spake2::Identity {
        spake2::Identity::new(&[self.mark(), &key.0, hash].concat())
    }

    /// What shows that a side has the key that only the code gives. All parts have fixed sizes.
    fn proof(self, key: &[u8], hash: &[u8; 32]) -> [u8; PROOF] {
        Sha256::new().chain_update(self.mark()).chain_update(key).chain_update(hash).finalize().into()
    }
}

/// Sends and receives with the step's deadline.
struct Line {
    sender: Sender,
    receiver: Receiver,
}

impl Line {
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

/// Reads a head's word: the rest of the message, or its refusal.
fn accepted(message: &[u8]) -> Result<&[u8], PairingError> {
    match message.split_first() {
        Some((1, rest)) => Ok(rest),
        Some((byte, [])) => Err(Refusal::of(*byte).map_or_else(|| malformed(message), PairingError::Refused)),
        _ => Err(malformed(message)),
    }
}

/// Joins the head at the other end of a channel between strangers. `pin` keeps its key once it has proved the code.
///
/// # Errors
/// [`PairingError`]; nothing is pinned then but where the last word of the head is missing ([`PairingError::Channel`]),
/// and pairing again repairs that.
pub fn join(
    channel: Channel,
    identity: &Identity,
    code: &Code,
    own: &Profile,
    pin: &mut dyn FnMut(&PublicKey, &Profile) -> Result<(), StateError>,
) -> Result<Profile, PairingError> {
    let (peer, hash) = (*channel.peer(), *channel.hash());
    let (a, b) = (Side::Joiner.id(identity.public(), &hash), Side::Head.id(&peer, &hash));
    let (sender, receiver) = channel.split();
    let mut line = Line { sender, receiver };
    let (state, point) = Spake2::<Ed25519Group>::start_a(&Password::new(code.0), &a, &b);
    line.send(&point)?;
    let message = line.receive()?;
    let theirs = accepted(&message)?;
    let key = state.finish(theirs).map_err(|_| malformed(&message))?;
    let mut proof = Side::Joiner.proof(&key, &hash).to_vec();
    proof.extend_from_slice(&own.to_bytes());
    line.send(&proof)?;
    let message = line.receive()?;
    let rest = accepted(&message)?;
    let (proof, profile) = rest.split_first_chunk::<PROOF>().ok_or_else(|| malformed(&message))?;
    if !bool::from(proof.ct_eq(&Side::Head.proof(&key, &hash))) {
        return Err(PairingError::Impostor);
    }
    let profile = Profile::from_bytes(profile).ok_or_else(|| malformed(&message))?;
    pin(&peer, &profile)?;
    line.send(DONE)?;
    let last = line.receive()?;
    if last == DONE { Ok(profile) } else { Err(malformed(&last)) }
}

/// Admits the device at the other end of a channel between strangers. `pin` keeps its key once it has proved the code.
///
/// # Errors
/// [`PairingError`]; [`PairingError::Refused`] says what the other side was told. Nothing is pinned then.
pub fn admit(
    channel: Channel,
    identity: &Identity,
    desk: &Desk,
    now: Duration,
    own: &Profile,
    pin: &mut dyn FnMut(&PublicKey, &Profile) -> Result<(), StateError>,
) -> Result<Profile, PairingError> {
    let (peer, hash) = (*channel.peer(), *channel.hash());
    let (a, b) = (Side::Joiner.id(&peer, &hash), Side::Head.id(identity.public(), &hash));
    let (sender, receiver) = channel.split();
    let mut line = Line { sender, receiver };
    let theirs = line.receive()?;
    if theirs.len() != POINT {
        return Err(malformed(&theirs));
    }
    let offered = match desk.look(now) {
        Ok(offered) => offered,
        Err(refusal) => return Err(line.refuse(refusal)),
    };
    let (state, point) = Spake2::<Ed25519Group>::start_b(&Password::new(offered.code.0), &a, &b);
    let key = state.finish(&theirs).map_err(|_| malformed(&theirs))?;
    line.send(&[&[1], point.as_slice()].concat())?;
    let message = line.receive()?;
    // It is a guess, whatever it looks like.
    let mut attempt = match desk.take(&offered) {
        Ok(attempt) => attempt,
        Err(refusal) => return Err(line.refuse(refusal)),
    };
    let right = message
        .split_first_chunk::<PROOF>()
        .filter(|(proof, _)| bool::from(proof.ct_eq(&Side::Joiner.proof(&key, &hash))));
    let Some((_, profile)) = right else {
        return Err(line.refuse(Refusal::WrongCode));
    };
    attempt.right = true;
    let profile = Profile::from_bytes(profile).ok_or_else(|| malformed(&message))?;
    let mut answer = vec![1];
    answer.extend_from_slice(&Side::Head.proof(&key, &hash));
    answer.extend_from_slice(&own.to_bytes());
    line.send(&answer)?;
    let last = line.receive()?;
    if last != DONE {
        return Err(malformed(&last));
    }
    pin(&peer, &profile)?;
    line.send(DONE)?;
    Ok(profile)
}
