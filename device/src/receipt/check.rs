//! Checks a receipt against a key, and against the record that it was made from.

use baton_registry::digest::Digest;
use baton_registry::envelope::{EnvelopeError, PublicKey};

use serde_json::Value;

use super::{BytesMark, Receipt, RecordDigests};
use crate::conversations::{Sent, StoredAnswer};

/// What of a receipt does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// It is something else.
    #[error("this is no receipt")]
    None(#[source] EnvelopeError),
    /// The signed bytes are no receipt of this version.
    #[error("the signed bytes are no receipt of this version, or were changed: {0}")]
    Json(String),
    /// The signature does not fit.
    #[error("the receipt was changed after it was signed")]
    Changed(#[source] EnvelopeError),
    /// What is around the signed bytes is not as this program writes it.
    #[error(
        "the signature fits, but the file around it was changed: it is not the JSON that `baton receipt export` writes"
    )]
    Form,
    /// Another key signed it.
    #[error("the receipt is whole, but another device signed it: its key is {found}, expected is {wanted}")]
    OtherKey {
        /// The key that it was signed with.
        found: PublicKey,
        /// The key that should have signed.
        wanted: PublicKey,
    },
    /// The record has none.
    #[error(
        "answer {0} has no receipt: it was recorded by an earlier version, without a key, or its texts have too many parts"
    )]
    Missing(i64),
    /// The record was changed.
    #[error("the receipt is whole, but {0} in the record was changed after it was signed")]
    Record(&'static str),
    /// The record's copy of a request is none of the requests of the receipt.
    #[error("the receipt is whole, but the request in the record (digest {0}) is none that it lists")]
    Request(Digest),
    /// No text of the requests has the document's length.
    #[error(
        "the receipt holds, but no text that was sent had the {0} bytes of this document: it is another, or was changed"
    )]
    NoDocument(usize),
    /// The ranges of the document are not what was sent.
    #[error(
        "the receipt holds, but its ranges of {0} make another text of this document than was sent: the document was changed"
    )]
    Document(String),
}

impl RecordDigests {
    /// Computes the digests of a record.
    pub fn of(stored: &StoredAnswer) -> Self {
        let of = |text: &str| Digest::of(text.as_bytes());
        Self { report: of(&stored.report), sent: stored.sent.as_deref().map(of) }
    }
}

impl Receipt {
    /// Checks that this key signed it.
    ///
    /// # Errors
    /// [`ReceiptError::OtherKey`].
    pub fn check_key(&self, wanted: PublicKey) -> Result<(), ReceiptError> {
        match self.key == wanted {
            true => Ok(()),
            false => Err(ReceiptError::OtherKey { found: self.key, wanted }),
        }
    }

    /// Checks that the record is as it was when the receipt was signed, and that the request in it is one
    /// that the receipt lists, byte for byte.
    ///
    /// # Errors
    /// [`ReceiptError::Record`] or [`ReceiptError::Request`] says what was changed.
    pub fn check_record(&self, stored: &StoredAnswer) -> Result<(), ReceiptError> {
        let found = RecordDigests::of(stored);
        for (holds, what) in [
            (self.ended_ms == stored.ended_ms, "the time"),
            (self.asked_by == stored.asked_by, "the command"),
            (self.record.report == found.report, "the report"),
            (self.record.sent == found.sent, "what was sent"),
        ] {
            if !holds {
                return Err(ReceiptError::Record(what));
            }
        }
        let Some(sent) = &stored.sent else { return Ok(()) };
        let sent: Sent = serde_json::from_str(sent).map_err(|_| ReceiptError::Record("what was sent"))?;
        for json in sent.bodies() {
            let mark = BytesMark::of(json.as_bytes());
            if !self.requests.iter().any(|request| request.json == mark) {
                return Err(ReceiptError::Request(mark.digest));
            }
        }
        Ok(())
    }

    /// Checks that the receipt's ranges of a document make the text that was sent of it. Returns the places
    /// of that text in the requests. The record must have passed [`Receipt::check_record`].
    ///
    /// # Errors
    /// [`ReceiptError::NoDocument`] or [`ReceiptError::Document`] if the document is not the one that was
    /// given.
    pub fn check_document(&self, stored: &StoredAnswer, document: &str) -> Result<Vec<String>, ReceiptError> {
        let sent = stored.sent.as_deref().and_then(|sent| serde_json::from_str::<Sent>(sent).ok());
        let mut places = Vec::new();
        for json in sent.iter().flat_map(Sent::bodies) {
            let body: Value = serde_json::from_str(json).unwrap_or_default();
            let mark = BytesMark::of(json.as_bytes());
            let request = self.requests.iter().find(|request| request.json == mark);
            let texts = request.into_iter().flat_map(|request| &request.texts);
            for text in texts.filter(|text| text.given_bytes == document.len()) {
                let made: Option<String> = text.parts.iter().map(|part| part.text(document)).collect();
                if made.as_deref() != body.pointer(&text.text).and_then(Value::as_str) {
                    return Err(ReceiptError::Document(text.text.clone()));
                }
                places.push(text.text.clone());
            }
        }
        match places.is_empty() {
            true => Err(ReceiptError::NoDocument(document.len())),
            false => Ok(places),
        }
    }
}
