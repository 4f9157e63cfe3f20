//! The identity of a device: a key pair made on first use, and a name for people.
//!
//! The key pair is the static one of Noise (X25519). The secret key stays in the ring's state folder and in
//! this process: it is never sent, printed or logged. Other devices know a device only by its public key;
//! names are for people and prove nothing. Each process also has a random instance number, so that two
//! devices with copies of one folder are told apart.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};

use crate::home::state::{StateError, StateFolder, random, unhex};

const FILE: &str = "identity.json";
/// Version of the file format.
const FORM: u32 = 1;
/// Bytes of the longest name: a DNS label holds no more.
const NAME_BYTES_MAX: usize = 63;
/// The name of a device whose system has no name for it.
const NAMELESS: &str = "device";

/// A device's public key, which other devices pin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Returns the eight characters that people compare.
    pub fn fingerprint(&self) -> Fingerprint {
        const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let digest = Sha256::digest(self.0);
        let bits = digest.iter().take(5).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        Fingerprint(std::array::from_fn(|at| ALPHABET[(bits >> (35 - 5 * at) & 31) as usize]))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Why a text is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not 64 hexadecimal digits.
    #[error("`{0}` is no key: want 64 hexadecimal digits")]
    Key(String),
    /// Not eight base32 characters.
    #[error("`{0}` is no fingerprint: want 8 characters of A-Z and 2-7")]
    Fingerprint(String),
    /// Not 16 hexadecimal digits.
    #[error("`{0}` is no ring: want 16 hexadecimal digits")]
    Ring(String),
    /// Not a name that can be shown and announced.
    #[error(
        "`{0}` is no device name: want 1 to {NAME_BYTES_MAX} bytes of letters, digits, `-`, `_`, `.` and \
         spaces within"
    )]
    Name(String),
}

impl FromStr for PublicKey {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        unhex(text).map(Self).ok_or_else(|| IdentityError::Key(shown(text)))
    }
}

/// Returns the part of an outside text that may be quoted: its beginning, without control characters.
fn shown(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Serializes and deserializes a type as its text.
macro_rules! as_text {
    ($kind:ty) => {
        impl Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(PublicKey);
as_text!(Fingerprint);
as_text!(RingId);
as_text!(DeviceName);

/// 40 bits of a key's SHA-256 in base32 (RFC 4648), for people: enough to tell the devices of a home apart,
/// but no proof.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 8]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).expect("base32 is ASCII"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let bytes: Option<[u8; 8]> = text.as_bytes().try_into().ok();
        bytes
            .filter(|bytes| bytes.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7')))
            .map(Self)
            .ok_or_else(|| IdentityError::Fingerprint(shown(text)))
    }
}

/// Identifies a ring: a random number made by the device that created the ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(pub [u8; 8]);

impl RingId {
    /// Makes the number of a new ring.
    ///
    /// # Errors
    /// [`StateError::NoRandomness`].
    pub fn random() -> Result<Self, StateError> {
        Ok(Self(random()?))
    }
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingId({self})")
    }
}

impl FromStr for RingId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        unhex(text).map(Self).ok_or_else(|| IdentityError::Ring(shown(text)))
    }
}

/// One running process of a device: random, new at each start.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(pub [u8; 16]);

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceId({})", hex::encode(self.0))
    }
}

/// The name that people gave a device; safe to print and to announce.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName(String);

impl DeviceName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the system's name of this device without invalid characters, or `device` if it has none.
    pub fn of_host() -> Self {
        Self::nearest(&host_name().unwrap_or_default())
    }

    /// Makes a valid name that is as close to the text as possible.
    pub fn nearest(text: &str) -> Self {
        // `.local` and the domain say where a device is, not which one it is.
        let first = text.trim().split('.').next().unwrap_or_default();
        let mut name: String =
            first.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect();
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        name.parse().unwrap_or_else(|_| Self(NAMELESS.to_owned()))
    }

    /// Returns this name with a number appended, for a second device of the same name.
    pub(super) fn numbered(&self, number: usize) -> Self {
        let end = format!("-{number}");
        let mut name = self.0.clone();
        while name.len() + end.len() > NAME_BYTES_MAX {
            name.pop();
        }
        Self(name + &end)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DeviceName {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
        if fits && text.trim() == text && text.chars().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdentityError::Name(shown(text)))
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn host_name() -> Option<String> {
    let printed = std::process::Command::new("hostname").output().ok()?;
    String::from_utf8(printed.stdout).ok()
}

/// A device's own key pair, name and running instance.
#[derive(Clone)]
pub struct Identity {
    secret: [u8; 32],
    public: PublicKey,
    instance: InstanceId,
    name: DeviceName,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret key must not appear in logs.
        f.debug_struct("Identity")
            .field("public", &self.public)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    form: u32,
    secret: String,
    public: PublicKey,
    name: DeviceName,
}

/// Computes the public key of a secret key.
fn public_of(secret: &[u8; 32]) -> PublicKey {
    let mut dh = DefaultResolver
        .resolve_dh(&DHChoice::Curve25519)
        .expect("X25519 is built in: the feature `use-curve25519` is on");
    dh.set(secret);
    PublicKey(dh.pubkey().try_into().expect("an X25519 key has 32 bytes"))
}

impl Identity {
    /// Makes a new key pair without storing it.
    ///
    /// # Errors
    /// [`StateError::NoRandomness`].
    pub fn generate(name: DeviceName) -> Result<Self, StateError> {
        let secret = random()?;
        Ok(Self { public: public_of(&secret), secret, instance: InstanceId(random()?), name })
    }

    /// Loads the identity in this folder, or returns `None` if there is none.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Damaged`] also if the two keys do not belong together.
    pub fn load(folder: &StateFolder) -> Result<Option<Self>, StateError> {
        let Some(stored) = folder.read::<Stored>(FILE)? else { return Ok(None) };
        if stored.form != FORM {
            return Err(folder.damaged(FILE, &format!("its form is {}, {FORM} is known", stored.form)));
        }
        let secret = unhex(&stored.secret)
            .ok_or_else(|| folder.damaged(FILE, "its secret key has not 64 hexadecimal digits"))?;
        if public_of(&secret) != stored.public {
            return Err(folder.damaged(FILE, "its public key does not belong to its secret key"));
        }
        folder.keep_private(FILE);
        Ok(Some(Self { secret, public: stored.public, instance: InstanceId(random()?), name: stored.name }))
    }

    /// Loads the identity in this folder, or makes one if there is none. If `name` is given, it is stored.
    ///
    /// # Errors
    /// [`StateError`], as for [`Identity::load`]; a damaged identity is never replaced.
    pub fn open(folder: &StateFolder, name: Option<DeviceName>) -> Result<Self, StateError> {
        if let Some(mut found) = Self::load(folder)? {
            if let Some(name) = name.filter(|name| *name != found.name) {
                found.name = name;
                folder.write(FILE, &found.stored())?;
            }
            return Ok(found);
        }
        let made = Self::generate(name.clone().unwrap_or_else(DeviceName::of_host))?;
        if folder.write_first(FILE, &made.stored())? {
            return Ok(made);
        }
        // Another process was faster: its key counts.
        Self::load(folder)?.ok_or_else(|| folder.damaged(FILE, "it was removed while it was read"))
    }

    fn stored(&self) -> Stored {
        Stored { form: FORM, secret: hex::encode(self.secret), public: self.public, name: self.name.clone() }
    }

    /// Removes the key pair of this folder, so that other devices no longer know this one. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn forget(folder: &StateFolder) -> Result<bool, StateError> {
        folder.remove(FILE)
    }

    /// Returns the public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the secret key, for the handshake only.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Returns the name of this device.
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// Returns which running process this is.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::state::tests::folder;

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let (_dir, state) = folder();
        assert!(Identity::load(&state).unwrap().is_none());
        let name: DeviceName = "Küche 2".parse().unwrap();
        let made = Identity::open(&state, Some(name.clone())).unwrap();
        let again = Identity::open(&state, None).unwrap();
        assert_eq!((made.public(), made.secret(), again.name()), (again.public(), again.secret(), &name));
        assert_ne!(made.instance(), again.instance());
        let renamed = Identity::open(&state, Some("laptop".parse().unwrap())).unwrap();
        assert_eq!((renamed.public(), renamed.name().as_str()), (made.public(), "laptop"));
        assert_eq!(Identity::load(&state).unwrap().unwrap().name().as_str(), "laptop");
        assert!(!format!("{made:?}").contains(&hex::encode(made.secret())), "the secret key is printed");
        assert!(Identity::forget(&state).unwrap());
        assert_ne!(Identity::open(&state, None).unwrap().public(), made.public());
    }

    #[test]
    fn a_damaged_identity_is_said_and_never_replaced() {
        let (_dir, state) = folder();
        let made = Identity::open(&state, None).unwrap();
        let text = std::fs::read_to_string(state.file(FILE)).unwrap();
        let other = Identity::generate(DeviceName::of_host()).unwrap();
        let damages = [
            (text[..text.len() / 2].to_owned(), "EOF while parsing"),
            (
                text.replace(&hex::encode(made.secret()), &hex::encode(other.secret())),
                "does not belong to its secret key",
            ),
            (text.replace(&hex::encode(made.secret()), "12"), "64 hexadecimal digits"),
            (text.replace("\"form\": 1", "\"form\": 2"), "its form is 2, 1 is known"),
            (String::new(), "EOF while parsing"),
        ];
        for (damaged, want) in damages {
            std::fs::write(state.file(FILE), &damaged).unwrap();
            let error = Identity::open(&state, None).unwrap_err().to_string();
            assert!(error.contains("identity.json` is damaged") && error.contains(want), "{want}: {error}");
            assert_eq!(std::fs::read_to_string(state.file(FILE)).unwrap(), damaged, "{want}");
        }
    }

    #[test]
    fn two_that_start_at_once_get_one_key() {
        let (_dir, state) = folder();
        let keys: Vec<PublicKey> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| *Identity::open(&state, None).unwrap().public())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }

    #[test]
    fn keys_and_fingerprints_as_text() {
        // RFC 7748, section 6.1: Bob's key pair.
        let secret = unhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb").unwrap();
        let public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        assert_eq!(public_of(&secret).to_string(), public);
        let key = PublicKey([7; 32]);
        assert_eq!(key.to_string().parse(), Ok(key));
        let fingerprint = key.fingerprint();
        assert_eq!((fingerprint.to_string().len(), fingerprint.to_string().parse()), (8, Ok(fingerprint)));
        // The first 40 bits of the digest, five at a time.
        let digest = Sha256::digest(key.0);
        let first = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(digest[0] >> 3) as usize];
        assert_eq!(fingerprint.to_string().as_bytes()[0], first);
        assert_ne!(fingerprint, PublicKey([8; 32]).fingerprint());
        assert!("short".parse::<PublicKey>().is_err() && "ABCDEFG1".parse::<Fingerprint>().is_err());
    }

    #[test]
    fn names_can_be_shown_and_announced() {
        for good in ["a", "Anna's phone".replace('\'', "").as_str(), "büro-pc_2", "电脑"] {
            assert_eq!(good.parse::<DeviceName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(64);
        for bad in ["", " a", "a ", "a\u{1b}[2J", "a\nb", "a/b", long.as_str()] {
            assert!(bad.parse::<DeviceName>().is_err(), "{bad:?}");
        }
        assert_eq!(DeviceName::nearest("Annas-MBP.local\n").as_str(), "Annas-MBP");
        assert_eq!(DeviceName::nearest("a(b)").as_str(), "a-b-");
        assert_eq!(DeviceName::nearest(&"ü".repeat(60)).as_str().len(), 62);
        for nothing in ["", " \n", ".local"] {
            assert_eq!(DeviceName::nearest(nothing).as_str(), NAMELESS);
        }
        assert_eq!(DeviceName::nearest("a").numbered(2).as_str(), "a-2");
        assert!(DeviceName::nearest(&long).numbered(10).to_string().parse::<DeviceName>().is_ok());
    }
}
