//! Verification: a device goes on with an answer, and the cloud checks the tokens that it drafts.
//!
//! The request repeats nothing: it names the tokens before the draft by their number and a digest. The cloud
//! replies how many drafted tokens it would have written itself, and which tokens follow them. So a device
//! that shows only what was checked shows exactly the text that the cloud alone would have written.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::range::{NumberRange, OutOfRange};

/// Most tokens of one draft.
pub const DRAFT_TOKENS_MAX: usize = 32;
/// Most tokens that one reply may be asked for.
pub const AT_LEAST_MAX: u32 = 64;
/// Most tokens before a draft.
const FROM: NumberRange = NumberRange::new(1.0, 16_777_216.0);
const AT_LEAST: NumberRange = NumberRange::new(1.0, AT_LEAST_MAX as f64);
const MILLIS: NumberRange = NumberRange::new(0.0, 86_400_000.0);
const TOKENS: NumberRange = NumberRange::new(0.0, DRAFT_TOKENS_MAX as f64);

/// Whether the cloud checks what the device writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyPolicy {
    /// It does not.
    #[default]
    Off,
    /// It does, as long as the line holds. Without it the device goes on alone.
    On,
    /// It does. Without the line, nothing is shown until it is back, or until a time limit.
    Strict,
}

impl VerifyPolicy {
    /// The names of all policies on the wire.
    pub const NAMES: [&'static str; 3] = [Self::Off.as_str(), Self::On.as_str(), Self::Strict.as_str()];

    /// Returns the policy's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Strict => "strict",
        }
    }
}

/// What the cloud offers with the first token: it keeps the answer, and checks drafts of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VerifyOffer {
    /// Most tokens of a draft that one pass of the model checks.
    pub draft_max: u32,
    /// How long the answer is kept without a request, in milliseconds.
    pub kept_ms: u64,
    /// Expected time of a pass with one row, in milliseconds.
    #[serde(default)]
    pub pass_ms: f64,
    /// Expected time of each further row, in milliseconds.
    #[serde(default)]
    pub row_ms: f64,
}

impl VerifyOffer {
    /// Checks the ranges of all numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first number that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        TOKENS.check("verify.draft_max", self.draft_max)?;
        MILLIS.check("verify.kept_ms", self.kept_ms as f64)?;
        MILLIS.check("verify.pass_ms", self.pass_ms)?;
        MILLIS.check("verify.row_ms", self.row_ms)
    }
}

/// `POST /v1/assist/{id}/verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Index of the first drafted token: the number of answer tokens before it.
    pub from: u32,
    /// Digest of these tokens ([`answer_digest`]).
    pub digest: String,
    /// The drafted tokens, possibly none.
    pub draft: Vec<u32>,
    /// How many tokens the reply must bring, drafted ones included. The cloud writes what is missing, unless
    /// the answer ends or the tenant's day has no room for more.
    pub at_least: u32,
}

impl VerifyRequest {
    /// Reads and checks a request.
    ///
    /// # Errors
    /// [`VerifyError`] if it is no such JSON, or a number is out of its range.
    pub fn parse(json: &[u8]) -> Result<VerifyRequest, VerifyError> {
        let request: VerifyRequest = serde_json::from_slice(json).map_err(VerifyError::Json)?;
        FROM.check("from", request.from)?;
        AT_LEAST.check("at_least", request.at_least)?;
        TOKENS.check("draft", request.draft.len() as f64)?;
        Ok(request)
    }
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is not the JSON of a request.
    #[error("{0}")]
    Json(#[source] serde_json::Error),
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

impl VerifyError {
    /// Returns the field to blame, if there is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            VerifyError::Json(_) => None,
            VerifyError::Range(range) => Some(&range.field),
        }
    }
}

/// The reply to a [`VerifyRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyReply {
    /// The request's `from`.
    pub from: u32,
    /// How many of the drafted tokens the cloud would have written, from the first on.
    pub accepted: u32,
    /// The tokens that the cloud writes behind them.
    pub next: Vec<u32>,
    /// Whether the answer ends behind these.
    pub ended: bool,
    /// Digest of the whole answer then.
    pub digest: String,
    /// Times of the cloud.
    #[serde(default)]
    pub timing: VerifyTiming,
}

/// The times of one verification, in milliseconds, and its passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyTiming {
    /// From the request's arrival until it got a slot.
    pub queue_ms: f64,
    /// From getting the slot to the end.
    pub slot_ms: f64,
    /// Passes of the model in which it had a row.
    pub passes: u32,
}

impl VerifyReply {
    /// Checks a reply against the answer and the draft that it is about.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence.
    pub fn check(&self, before: &[u32], draft: &[u32]) -> Result<(), &'static str> {
        let accepted = self.accepted as usize;
        if self.from as usize != before.len() {
            return Err("the reply is about another part of the answer");
        }
        if accepted > draft.len() {
            return Err("the reply accepts more tokens than were drafted");
        }
        if self.next.len() > AT_LEAST_MAX as usize + 1 {
            return Err("the reply has more tokens than were asked for");
        }
        if self.next.is_empty() && !self.ended {
            return Err("the reply has no token and no end");
        }
        let answer = before.iter().chain(&draft[..accepted]).chain(&self.next).copied();
        if answer_digest(answer) == self.digest { Ok(()) } else { Err("the reply is about another answer") }
    }
}

/// Returns the digest of an answer: SHA-256 of its ids as 32-bit little-endian numbers, in hex.
pub fn answer_digest(ids: impl IntoIterator<Item = u32>) -> String {
    let mut digest = Sha256::new();
    ids.into_iter().for_each(|id| digest.update(id.to_le_bytes()));
    hex::encode(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(before: &[u32], draft: &[u32], accepted: usize, next: &[u32]) -> VerifyReply {
        let answer = before.iter().chain(&draft[..accepted]).chain(next).copied();
        VerifyReply {
            from: before.len() as u32,
            accepted: accepted as u32,
            next: next.to_vec(),
            ended: false,
            digest: answer_digest(answer),
            timing: VerifyTiming::default(),
        }
    }

    #[test]
    fn a_digest_is_that_of_the_bytes() {
        // `printf '\x01\x00\x00\x00\x00\x01\x00\x00' | sha256sum`
        let want = "242045e2f1bb37769b514f182fd91b3d215324cb57f187cced1e9c62921dbac3";
        assert_eq!(answer_digest([1, 256]), want);
        assert_ne!(answer_digest([1, 256]), answer_digest([256, 1]));
    }

    #[test]
    fn requests_are_checked() {
        let json = |from: &str, at_least: &str, draft: &str| {
            format!(r#"{{"from":{from},"digest":"d","draft":{draft},"at_least":{at_least}}}"#)
        };
        let good = VerifyRequest::parse(json("3", "1", "[5,6]").as_bytes()).unwrap();
        assert_eq!((good.from, good.draft, good.at_least), (3, vec![5, 6], 1));
        let long = format!("[{}]", vec!["1"; DRAFT_TOKENS_MAX + 1].join(","));
        for (from, at_least, draft, field) in [
            ("0", "1", "[]", Some("from")),
            ("3", "0", "[]", Some("at_least")),
            ("3", "65", "[]", Some("at_least")),
            ("3", "1", &long, Some("draft")),
            ("-1", "1", "[]", None),
        ] {
            let err = VerifyRequest::parse(json(from, at_least, draft).as_bytes()).unwrap_err();
            assert_eq!(err.field(), field, "{from} {at_least} {draft}");
        }
        assert!(VerifyRequest::parse(br#"{"from":1,"digest":"","draft":[],"at_least":1,"x":1}"#).is_err());
    }

    #[test]
    fn replies_about_something_else_are_refused() {
        let (before, draft) = ([1, 2, 3], [4, 5, 6]);
        let good = reply(&before, &draft, 2, &[9]);
        assert_eq!(good.check(&before, &draft), Ok(()));
        let wrong = [
            VerifyReply { from: 2, ..good.clone() },
            VerifyReply { accepted: 4, ..good.clone() },
            VerifyReply { accepted: 1, ..good.clone() },
            VerifyReply { next: vec![8], ..good.clone() },
            VerifyReply { next: Vec::new(), ..good.clone() },
            VerifyReply { next: vec![9; 70], ..good.clone() },
        ];
        for (at, reply) in wrong.iter().enumerate() {
            assert!(reply.check(&before, &draft).is_err(), "{at}");
        }
        assert!(good.check(&[1, 2, 7], &draft).is_err());
        let ended = VerifyReply { ended: true, ..reply(&before, &draft, 3, &[]) };
        assert_eq!(ended.check(&before, &draft), Ok(()));
    }
}
