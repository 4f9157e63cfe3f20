//! Receipts of answers: which bytes of the user's texts left this device, what stayed, who wrote each token.
//!
//! A receipt is made when an answer ends and signed with this device's key. It holds no text of the user:
//! only places, kinds and placeholders. `docs/receipts.md` defines its bytes. What always holds: a receipt
//! that [`Receipt::read`] returns is, byte for byte, the one that was signed.

mod check;

pub use check::ReceiptError;

use std::collections::BTreeMap;

use baton_protocol::ModelPair;
use baton_registry::digest::Digest;
use baton_registry::envelope::{self, Envelope, PublicKey, SigningKey};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::privacy::{EntityKind, Origin, Span};
use crate::relay::{CloudMark, Shown, Source};
use crate::secrets::{self, Keys, RECEIPT_KEY};

/// The type of the signed bytes.
pub const PAYLOAD_TYPE: &str = "application/vnd.baton.receipt.v1+json";
/// Most parts of texts in a receipt. An answer with more has none: a receipt of it would have many megabytes.
pub const PARTS_MAX: usize = 100_000;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] secrets::KeyError),
    /// What the file holds makes no key.
    #[error(transparent)]
    Key(#[from] envelope::KeyError),
}

/// Returns the key that this device signs receipts with. It is made at its first use.
///
/// # Errors
/// [`SigningKeyError`] if it can be neither read nor made.
pub fn signing_key(keys: &Keys) -> Result<SigningKey, SigningKeyError> {
    Ok(SigningKey::from_seed(&keys.get(RECEIPT_KEY)?)?)
}

/// A receipt. Its fields in this order, as compact JSON, are the bytes that are signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The public key of the device that signed it.
    pub key: PublicKey,
    /// When the answer ended, in milliseconds since 1970.
    pub ended_ms: i64,
    /// The command that was asked, such as `baton ask`.
    pub asked_by: String,
    /// The digests of the answer's record on the device.
    pub record: RecordDigests,
    /// What the device answered with.
    pub device: DeviceSide,
    /// What the cloud answered with; absent if no token came from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<CloudMark>,
    /// The requests that were given to the network, in order.
    pub requests: Vec<SentRequest>,
    /// Who wrote the tokens that were shown, in order.
    pub tokens: Vec<Written>,
}

/// The digests of a record's texts as they are stored. If one byte of them changes, that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordDigests {
    /// Of the report: times, tokens, notes.
    pub report: Digest,
    /// Of what was sent; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Digest>,
}

/// What a device answers with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSide {
    /// Name and version of the program.
    pub program: String,
    /// The model; absent if it took no part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelMark>,
}

/// A model on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelMark {
    /// Its name.
    pub name: String,
    /// Digest of its header, its tensors' names and places, and a sample of each tensor.
    pub fingerprint: Digest,
    /// Digest of its tokenizer, 64 hex digits.
    pub tokenizer_sha256: String,
    /// The scene's name of the adapter, if one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The versions in the cloud's registry, if they are from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<ModelPair>,
}

/// What a request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// The answer.
    Answer,
    /// Going on with the answer behind the device's text.
    Continue,
    /// Comparing the routes of the turn, behind the answer.
    Audit,
    /// Having a draft of the answer checked.
    Verify,
}

/// A request that was given to the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentRequest {
    /// What it was for.
    pub purpose: Purpose,
    /// Where it went: scheme, host, port and path.
    pub url: String,
    /// Its id, as in the body.
    pub id: Uuid,
    /// `gzip` if the body was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// The body as it was sent.
    pub body: BytesMark,
    /// The JSON in the body, before it was compressed.
    pub json: BytesMark,
    /// Where its texts come from.
    pub texts: Vec<Origin>,
}

/// Length and digest of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesMark {
    /// How many.
    pub bytes: usize,
    /// Their digest.
    pub digest: Digest,
}

impl BytesMark {
    /// Measures bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len(), digest: Digest::of(bytes) }
    }
}

/// Tokens of an answer with one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// The first token's index.
    pub from: usize,
    /// One more than the last token's index.
    pub to: usize,
    /// Who wrote them.
    pub by: Source,
    /// Who else computed them and agreed before they were shown; absent if nobody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_by: Option<Source>,
}

impl Written {
    /// Joins tokens as they were shown to ranges with one writer. The cloud has verified those of the device
    /// below this index.
    pub fn of(shown: &[Shown], verified_until: usize) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for Shown { index, source, .. } in shown {
            let is_verified = *source == Source::Device && *index < verified_until;
            let verified_by = is_verified.then_some(Source::Cloud);
            match ranges.last_mut() {
                Some(last) if last.by == *source && last.to == *index && last.verified_by == verified_by => {
                    last.to += 1;
                }
                _ => {
                    ranges.push(Self { from: *index, to: index + 1, by: *source, verified_by });
                }
            }
        }
        ranges
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.to.saturating_sub(self.from)
    }
}

impl SentRequest {
    /// Returns the bytes of the user's texts that left as they are, and those that were left out.
    pub fn given_bytes(&self) -> (usize, usize) {
        let (mut sent, mut kept) = (0, 0);
        for Origin { given_bytes, parts, .. } in &self.texts {
            let copied: usize =
                parts.iter().filter(|part| matches!(part, Span::Sent(_))).map(Span::sent_bytes).sum();
            sent += copied;
            kept += given_bytes.saturating_sub(copied);
        }
        (sent, kept)
    }

    /// Counts the placeholders of each kind.
    pub fn replaced(&self) -> BTreeMap<EntityKind, usize> {
        let mut counts = BTreeMap::new();
        for part in self.texts.iter().flat_map(|text| &text.parts) {
            if let Span::Replaced { kind, .. } = part {
                *counts.entry(*kind).or_default() += 1;
            }
        }
        counts
    }
}

impl Receipt {
    /// Returns whether it is small enough to be kept.
    pub fn fits(&self) -> bool {
        let parts = self.requests.iter().flat_map(|request| &request.texts).map(|text| text.parts.len());
        parts.sum::<usize>() <= PARTS_MAX
    }

    /// Signs it: returns the JSON of a DSSE envelope.
    ///
    /// # Errors
    /// A field has no JSON form, which no value of this type causes.
    pub fn sign(&self, key: &SigningKey) -> serde_json::Result<String> {
        let body = serde_json::to_vec(self)?;
        serde_json::to_string(&key.sign_bytes(PAYLOAD_TYPE, &body))
    }

    /// Reads a signed receipt. Its signature fits the key that it names; whose key that is says
    /// [`Receipt::check_key`].
    ///
    /// # Errors
    /// [`ReceiptError`] says what does not hold.
    pub fn read(signed: &[u8]) -> Result<Self, ReceiptError> {
        let envelope = Envelope::parse(signed).map_err(ReceiptError::None)?;
        let body = envelope.unchecked(PAYLOAD_TYPE).map_err(ReceiptError::None)?;
        let receipt: Self =
            serde_json::from_slice(&body).map_err(|err| ReceiptError::Json(err.to_string()))?;
        envelope.open(PAYLOAD_TYPE, &[receipt.key]).map_err(ReceiptError::Changed)?;
        // The envelope around the signed bytes is not signed: only its one form is taken.
        let exact = envelope.to_json();
        if signed.strip_suffix(b"\n").unwrap_or(signed) != exact {
            return Err(ReceiptError::Form);
        }
        Ok(receipt)
    }
}

#[cfg(test)]
mod tests;
