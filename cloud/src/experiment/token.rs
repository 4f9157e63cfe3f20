//! Signed names of answers that take part in an experiment. Whoever has one may send feedback for the answer.
//!
//! The name says which experiment, arm and bucket the answer is counted under, so that no replica has to
//! remember answers. Always: HMAC-SHA256 (RFC 2104) over the name and its tenant, with a key that all
//! replicas share. So a name of one tenant is worth nothing to another.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::scene::check_id;

/// The first characters of each name: its form.
const FORM: &str = "f1";
/// Bytes of the signature: half of a SHA-256, as RFC 2104 allows.
const SIGNATURE_BYTES: usize = 16;
/// The longest name, in bytes.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Size of SHA-256's blocks, in bytes.
const BLOCK: usize = 64;

/// An answer that takes part in an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The id of its request.
    pub request: Uuid,
    /// The experiment.
    pub experiment: String,
    /// The arm.
    pub arm: String,
    /// The bucket of its device.
    pub bucket: u8,
    /// Until when feedback is taken, in milliseconds since 1970.
    pub expires_ms: i64,
}

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It was not signed here for this tenant. The message does not say what is wrong with it.
    #[error("it was not given to this tenant by this service")]
    Unknown,
    /// It is too old.
    #[error("its time is over")]
    Expired,
}

impl Answer {
    /// Returns the signed name.
    #[must_use]
    pub fn sign(&self, key: &[u8; 32], owner: u128) -> String {
        let Answer { request, experiment, arm, bucket, expires_ms } = self;
        let text = format!("{FORM}.{}.{experiment}.{arm}.{bucket}.{expires_ms}", request.simple());
        let signature = hex::encode(signature(key, owner, &text));
        format!("{text}.{signature}")
    }

    /// Reads a signed name.
    ///
    /// # Errors
    /// [`TokenError`] if it was not signed with this key for this owner, or is too old.
    pub fn read(token: &str, key: &[u8; 32], owner: u128, now_ms: i64) -> Result<Answer, TokenError> {
        let signed = token.rsplit_once('.').filter(|_| token.len() <= TOKEN_BYTES_MAX);
        let (text, sent) = signed.ok_or(TokenError::Unknown)?;
        let sent = hex::decode(sent).map_err(|_| TokenError::Unknown)?;
        if !bool::from(signature(key, owner, text).ct_eq(&sent)) {
            return Err(TokenError::Unknown);
        }
        let answer = Answer::parse(text).ok_or(TokenError::Unknown)?;
        if answer.expires_ms <= now_ms { Err(TokenError::Expired) } else { Ok(answer) }
    }

    fn parse(text: &str) -> Option<Answer> {
        let mut parts = text.split('.');
        let is_form = parts.next()? == FORM;
        let mut next = || parts.next();
        let answer = Answer {
            request: Uuid::try_parse(next()?).ok()?,
            experiment: next().filter(|id| check_id(id).is_ok())?.to_owned(),
            arm: next().filter(|name| check_id(name).is_ok())?.to_owned(),
            bucket: next()?.parse().ok()?,
            expires_ms: next()?.parse().ok()?,
        };
        (is_form && parts.next().is_none()).then_some(answer)
    }
}

fn signature(key: &[u8; 32], owner: u128, text: &str) -> [u8; SIGNATURE_BYTES] {
    let mac = hmac_sha256(key, &[&owner.to_le_bytes(), text.as_bytes()]);
    std::array::from_fn(|at| mac[at])
}

/// Returns HMAC-SHA256 of the parts, one after another. The key has at most one block.
fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let padded =
        |pad: u8| -> [u8; BLOCK] { std::array::from_fn(|at| key.get(at).copied().unwrap_or_default() ^ pad) };
    let inner =
        parts.iter().fold(Sha256::new_with_prefix(padded(0x36)), |digest, part| digest.chain_update(part));
    Sha256::new_with_prefix(padded(0x5c)).chain_update(inner.finalize()).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn answer() -> Answer {
        Answer {
            request: Uuid::from_u128(0xfeed),
            experiment: "shorter-L".into(),
            arm: "L_8".into(),
            bucket: 200,
            expires_ms: 1_000,
        }
    }

    #[test]
    fn the_code_is_that_of_rfc_4231() {
        let check = |key: &[u8], text: &str, want: &str| {
            let (one, two) = text.as_bytes().split_at(text.len() / 2);
            assert_eq!(hex::encode(hmac_sha256(key, &[one, two])), want, "{text}");
        };
        check(&[0x0b; 20], "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        check(
            b"Jefe",
            "what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
    }

    #[test]
    fn a_name_is_read_back_by_its_tenant_in_time() {
        let token = answer().sign(&KEY, 5);
        assert_eq!(Answer::read(&token, &KEY, 5, 999), Ok(answer()));
        assert_eq!(Answer::read(&token, &KEY, 5, 1_000), Err(TokenError::Expired));
        assert_eq!(Answer::read(&token, &KEY, 6, 0), Err(TokenError::Unknown));
        assert_eq!(Answer::read(&token, &[8; 32], 5, 0), Err(TokenError::Unknown));
    }

    #[test]
    fn what_is_altered_is_refused() {
        let token = answer().sign(&KEY, 5);
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
            let altered = String::from_utf8(bytes).unwrap();
            assert_eq!(Answer::read(&altered, &KEY, 5, 0), Err(TokenError::Unknown), "{altered}");
        }
        for none in ["", ".", "f1", &token[..token.len() - 2], &"x".repeat(10_000)] {
            assert_eq!(Answer::read(none, &KEY, 5, 0), Err(TokenError::Unknown), "{none}");
        }
    }
}
