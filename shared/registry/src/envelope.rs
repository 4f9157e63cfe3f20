//! What is signed: DSSE envelopes with Ed25519 signatures. Manifests of models are, and receipts of answers.
//!
//! Source: Dead Simple Signing Envelope 1.0 (secure-systems-lab), whose pre-authentication encoding is
//! signed: `"DSSEv1" SP LEN(type) SP type SP LEN(body) SP body`; RFC 8032 for the signatures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{Manifest, ManifestError};

/// The type of a signed manifest.
pub const PAYLOAD_TYPE: &str = "application/vnd.baton.model.manifest.v1+json";
/// Longest envelope, in bytes: a manifest of 1 TiB has 19 MB of digests, and base64 makes 4 bytes of 3.
pub const ENVELOPE_BYTES_MAX: usize = 32 << 20;
/// Most signatures that are looked at.
const SIGNATURES_MAX: usize = 16;

/// Signed bytes with their type and signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    payload_type: String,
    /// The signed bytes in base64.
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signature {
    keyid: String,
    sig: String,
}

/// A public key of Ed25519: 32 bytes, 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// A text that is no public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a public key is 64 hex digits; `baton-cloud registry key` prints that of a registry, `baton receipt key` that of a device"
)]
pub struct BadPublicKey;

impl PublicKey {
    /// Returns the short name of the key in envelopes: the first 16 hex digits of its SHA-256.
    pub fn id(&self) -> String {
        Digest::of(&self.0).hex()[..16].to_owned()
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::str::FromStr for PublicKey {
    type Err = BadPublicKey;

    fn from_str(text: &str) -> Result<Self, BadPublicKey> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.trim(), &mut bytes).map_err(|_| BadPublicKey)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = BadPublicKey;

    fn try_from(text: String) -> Result<Self, BadPublicKey> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

/// A private key that signs.
#[derive(Debug)]
pub struct SigningKey(Ed25519KeyPair);

/// Why a private key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for a key")]
    Random,
    /// The file is no key.
    #[error("the file holds no Ed25519 key in PKCS#8; `baton-cloud registry key` makes one")]
    NoKey,
}

impl SigningKey {
    /// Makes a key. Returns it and its PKCS#8 form, which is secret.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<(Self, Vec<u8>), KeyError> {
        let random = ring::rand::SystemRandom::new();
        let secret = Ed25519KeyPair::generate_pkcs8(&random).map_err(|_| KeyError::Random)?;
        let key = Self::from_pkcs8(secret.as_ref())?;
        Ok((key, secret.as_ref().to_vec()))
    }

    /// Reads a key in PKCS#8 form.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn from_pkcs8(secret: &[u8]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(secret).map(Self).map_err(|_| KeyError::NoKey)
    }

    /// Makes the key of a seed: 32 secret random bytes (RFC 8032, section 5.1.5).
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| KeyError::NoKey)
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    /// Signs a manifest.
    pub fn sign(&self, manifest: &Manifest) -> Envelope {
        self.sign_bytes(PAYLOAD_TYPE, &manifest.to_json())
    }

    /// Signs bytes of a type.
    pub fn sign_bytes(&self, payload_type: &str, body: &[u8]) -> Envelope {
        let signature = self.0.sign(&signed_bytes(payload_type, body));
        Envelope {
            payload_type: payload_type.to_owned(),
            payload: STANDARD.encode(body),
            signatures: vec![Signature {
                keyid: self.public().id(),
                sig: STANDARD.encode(signature.as_ref()),
            }],
        }
    }
}

/// Why what is signed is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// It is not the JSON that is wanted.
    #[error("the envelope is not the JSON that is wanted: {0}")]
    Json(String),
    /// It holds something else.
    #[error("the envelope holds `{found}`, not `{wanted}`")]
    Type {
        /// The type that it says.
        found: String,
        /// The type that is wanted.
        wanted: String,
    },
    /// No key that is trusted has signed it.
    #[error("no trusted key signed it: it is signed by {signed}, trusted are {trusted}")]
    Untrusted {
        /// The names of the keys that it says it is signed with.
        signed: String,
        /// The names of the trusted keys.
        trusted: String,
    },
    /// A trusted key's signature does not fit the bytes.
    #[error("the signature of key {0} does not fit what is signed: one of them was changed")]
    Forged(String),
    /// The signed manifest is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl Envelope {
    /// Reads an envelope; its signatures are not checked yet.
    ///
    /// # Errors
    /// [`EnvelopeError::Json`].
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        if json.len() > ENVELOPE_BYTES_MAX {
            return Err(EnvelopeError::Json(format!("it has more than {ENVELOPE_BYTES_MAX} bytes")));
        }
        serde_json::from_slice(json).map_err(|err| EnvelopeError::Json(err.to_string()))
    }

    /// Returns the JSON that lies in the registry.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the manifest, if one of the trusted keys has signed it.
    ///
    /// # Errors
    /// [`EnvelopeError`] says why it is refused.
    pub fn verify(&self, trusted: &[PublicKey]) -> Result<Manifest, EnvelopeError> {
        Ok(Manifest::parse(&self.open(PAYLOAD_TYPE, trusted)?)?)
    }

    /// Returns the signed bytes, which are not checked.
    ///
    /// # Errors
    /// [`EnvelopeError`] if the type is another one, or they are not in base64.
    pub fn unchecked(&self, payload_type: &str) -> Result<Vec<u8>, EnvelopeError> {
        if self.payload_type != payload_type {
            let (found, wanted) = (short(&self.payload_type), payload_type.to_owned());
            return Err(EnvelopeError::Type { found, wanted });
        }
        STANDARD.decode(&self.payload).map_err(|err| EnvelopeError::Json(err.to_string()))
    }

    /// Returns the signed bytes, if they have this type and one of the trusted keys has signed them.
    ///
    /// # Errors
    /// [`EnvelopeError`] says why they are refused.
    pub fn open(&self, payload_type: &str, trusted: &[PublicKey]) -> Result<Vec<u8>, EnvelopeError> {
        let body = self.unchecked(payload_type)?;
        let json = |err: base64::DecodeError| EnvelopeError::Json(err.to_string());
        let signed = signed_bytes(&self.payload_type, &body);
        let mut forged = None;
        for Signature { keyid, sig } in self.signatures.iter().take(SIGNATURES_MAX) {
            let Some(key) = trusted.iter().find(|key| key.id() == *keyid) else { continue };
            let sig = STANDARD.decode(sig).map_err(json)?;
            match UnparsedPublicKey::new(&ED25519, key.0).verify(&signed, &sig) {
                Ok(()) => return Ok(body),
                Err(_) => forged = Some(keyid.clone()),
            }
        }
        match forged {
            Some(keyid) => Err(EnvelopeError::Forged(keyid)),
            None => Err(EnvelopeError::Untrusted {
                signed: listed(self.signatures.iter().map(|signature| short(&signature.keyid))),
                trusted: listed(trusted.iter().map(PublicKey::id)),
            }),
        }
    }
}

/// Returns the bytes that a signature is over.
fn signed_bytes(payload_type: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.take(SIGNATURES_MAX).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Kind, tests::manifest};

    #[test]
    fn a_signed_manifest_is_read_by_who_trusts_the_key() {
        let (key, secret) = SigningKey::generate().unwrap();
        let again = SigningKey::from_pkcs8(&secret).unwrap();
        assert_eq!(again.public(), key.public());
        let want = manifest("m@1", Kind::Base);
        let envelope = Envelope::parse(&key.sign(&want).to_json()).unwrap();
        let (other, _) = SigningKey::generate().unwrap();
        assert_eq!(envelope.verify(&[other.public(), key.public()]), Ok(want));
        let untrusted = envelope.verify(&[other.public()]).unwrap_err();
        assert!(matches!(untrusted, EnvelopeError::Untrusted { .. }));
        assert!(untrusted.to_string().contains(&key.public().id()), "{untrusted}");
        assert!(matches!(envelope.verify(&[]), Err(EnvelopeError::Untrusted { .. })));
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        assert_eq!("00".parse::<PublicKey>(), Err(BadPublicKey));
        let seed = [7; 32];
        let signed = SigningKey::from_seed(&seed).unwrap().sign_bytes("text/plain", b"words");
        let public = SigningKey::from_seed(&seed).unwrap().public();
        assert_eq!(signed.open("text/plain", &[public]).unwrap(), b"words");
        assert!(matches!(signed.open("text/html", &[public]), Err(EnvelopeError::Type { .. })));
        assert_eq!(SigningKey::from_pkcs8(b"no key").unwrap_err(), KeyError::NoKey);
    }

    #[test]
    fn no_changed_byte_of_the_manifest_or_its_signature_is_taken() {
        let (key, _) = SigningKey::generate().unwrap();
        let envelope = key.sign(&manifest("m@1", Kind::Base));
        let trusted = [key.public()];
        let body = STANDARD.decode(&envelope.payload).unwrap();
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            let changed = Envelope { payload: STANDARD.encode(changed), ..envelope.clone() };
            assert!(matches!(changed.verify(&trusted), Err(EnvelopeError::Forged(_))), "byte {at}");
        }
        let signature = STANDARD.decode(&envelope.signatures[0].sig).unwrap();
        for at in 0..signature.len() {
            let mut changed = signature.clone();
            changed[at] ^= 1;
            let mut forged = envelope.clone();
            forged.signatures[0].sig = STANDARD.encode(changed);
            assert!(matches!(forged.verify(&trusted), Err(EnvelopeError::Forged(_))), "byte {at}");
        }
        let other = Envelope { payload_type: "text/plain".into(), ..envelope };
        let wanted = PAYLOAD_TYPE.to_owned();
        assert_eq!(other.verify(&trusted), Err(EnvelopeError::Type { found: "text/plain".into(), wanted }));
    }

    #[test]
    fn what_is_signed_is_the_specified_encoding() {
        // The example of the specification's protocol.md.
        let bytes = signed_bytes("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }
}
