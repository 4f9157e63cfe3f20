//! Records answers on this device: how each came about, what was sent for it, and the signed receipt of it.
//!
//! A record that cannot be written is a warning. No answer fails for it.

use std::sync::{Arc, OnceLock};

use super::prepare::Prepared;
use super::{Agent, AnswerReport, RouteAudit};
use crate::client::{OutgoingDraft, OutgoingRequest};
use crate::conversations::{Conversations, Sent, StoredAnswer, now};
use crate::privacy::RedactedRequest;
use crate::receipt::{
    BytesMark, DeviceSide, ModelMark, PARTS_MAX, Purpose, Receipt, ReceiptError, RecordDigests, SentRequest,
    Written,
};
use crate::relay::{Note, RelayMode};
use baton_engine::AdapterId;
use baton_registry::digest::Digest;
use baton_registry::envelope::SigningKey;
use baton_terminal::chain;
use serde_json::json;
use serde_json::value::RawValue;
use tracing::warn;

/// Name and version of this program.
const PROGRAM: &str = concat!("baton ", env!("CARGO_PKG_VERSION"));

/// Where answers are recorded.
#[derive(Debug)]
pub(super) struct Recorder {
    kept: Conversations,
    asked_by: &'static str,
    cloud: String,
    /// What receipts are signed with; without it there are none.
    key: Option<Arc<SigningKey>>,
    /// The device model's fingerprint.
    fingerprint: Arc<OnceLock<Digest>>,
}

/// What a record says of a question.
pub(super) struct Asked {
    /// The requests that were given to the network.
    bodies: Vec<SentBody>,
    /// The drafts of the answer that were.
    drafts: Vec<SentRequest>,
    by_cloud_alone: bool,
    adapter: Option<AdapterId>,
}

/// A request that was given to the network.
pub(super) struct SentBody {
    told: SentRequest,
    json: Box<RawValue>,
}

/// Returns what a receipt says of a draft. It has ids of tokens that a model wrote, and no text of the user.
pub(super) fn sent_draft(url: String, draft: &OutgoingDraft) -> SentRequest {
    let mark = BytesMark::of(draft.body());
    SentRequest {
        purpose: Purpose::Verify,
        url,
        id: draft.request_id(),
        encoding: None,
        body: mark,
        json: mark,
        texts: Vec::new(),
    }
}

impl SentBody {
    fn of(
        purpose: Purpose,
        url: String,
        redacted: &RedactedRequest,
        sent: &OutgoingRequest,
    ) -> serde_json::Result<Self> {
        // These are the bytes that were sent, or compressed: the same value has the same JSON.
        let json = serde_json::to_string(redacted.as_request())?;
        let told = SentRequest {
            purpose,
            url,
            id: sent.request_id(),
            encoding: sent.gzipped().then(|| "gzip".to_owned()),
            body: BytesMark::of(sent.body()),
            json: BytesMark::of(json.as_bytes()),
            texts: redacted.origins().to_vec(),
        };
        Ok(Self { told, json: RawValue::from_string(json)? })
    }
}

impl Agent {
    /// Makes the agent record its answers. `asked_by` is the command that asks, `cloud` the cloud's address.
    /// With a key each record has a signed receipt.
    #[must_use]
    pub fn with_records(
        mut self,
        kept: Conversations,
        asked_by: &'static str,
        cloud: &str,
        key: Option<SigningKey>,
    ) -> Self {
        let (key, fingerprint) = (key.map(Arc::new), Arc::default());
        self.recorder = Some(Recorder { kept, asked_by, cloud: cloud.to_owned(), key, fingerprint });
        self
    }

    /// Returns the records, if there are any.
    pub fn records(&self) -> Option<&Conversations> {
        self.recorder.as_ref().map(|recorder| &recorder.kept)
    }

    /// Returns the requests that were given to the network for a question; each purpose is `purpose`, if
    /// that is given.
    pub(super) fn sent_bodies(&self, prepared: &Prepared, purpose: Option<Purpose>) -> Vec<SentBody> {
        let Some(url) = self.cloud.as_ref().map(|cloud| cloud.assist_url()) else { return Vec::new() };
        let first = prepared.request.as_ref().zip(prepared.redacted.as_ref().ok());
        let first =
            first.filter(|_| prepared.is_sent).map(|(sent, redacted)| (Purpose::Answer, redacted, sent));
        let more = prepared.continued.as_ref();
        let more = more.map(|(redacted, sent)| (Purpose::Continue, redacted, sent));
        let all = first.into_iter().chain(more);
        all.filter_map(|(own, redacted, sent)| {
            SentBody::of(purpose.unwrap_or(own), url.clone(), redacted, sent)
                .inspect_err(|err| warn!(err = chain(err), "what was sent is not recorded"))
                .ok()
        })
        .collect()
    }

    /// Returns what a record says of a question; `None` if nothing is recorded.
    pub(super) fn asked(&self, prepared: &Prepared) -> Option<Asked> {
        self.recorder.as_ref()?;
        Some(Asked {
            bodies: self.sent_bodies(prepared, None),
            drafts: prepared.drafts.clone(),
            by_cloud_alone: prepared.mode == RelayMode::CloudOnly,
            adapter: prepared.adapter,
        })
    }

    /// Records an answer, and what was sent for it. Returns the key of the record.
    pub(super) async fn record(&self, asked: Option<Asked>, report: &AnswerReport) -> Option<String> {
        let (recorder, asked) = self.recorder.as_ref().zip(asked)?;
        let mut told = json!(report);
        if let Some(fields) = told.as_object_mut() {
            fields.remove("answer");
            let notes: Vec<Note> = report.notes.iter().map(Note::kept).collect();
            fields.insert("notes".to_owned(), json!(notes));
        }
        let sent = recorder.sent(&asked.bodies);
        let mut stored = StoredAnswer {
            ended_ms: now(),
            asked_by: recorder.asked_by.to_owned(),
            report: told.to_string(),
            sent: sent.as_ref().and_then(|sent| serde_json::to_string(sent).ok()),
            receipt: None,
        };
        if let Some(key) = recorder.key.clone() {
            let receipt = Receipt {
                key: key.public(),
                ended_ms: stored.ended_ms,
                asked_by: stored.asked_by.clone(),
                record: RecordDigests::of(&stored),
                device: DeviceSide { program: PROGRAM.to_owned(), model: self.device_model(&asked).await },
                cloud: report.timeline.cloud.clone(),
                requests: asked.bodies.into_iter().map(|body| body.told).chain(asked.drafts).collect(),
                tokens: Written::of(&report.timeline.shown, report.timeline.verified_until()),
            };
            stored.receipt = signed(&receipt, &key);
        }
        match recorder.kept.record(&stored).await {
            Ok(key) => Some(key),
            Err(err) => {
                warn!(err = chain(&err), "the answer is not recorded");
                None
            }
        }
    }

    /// Returns what a receipt says of the device's model, if the model may have taken part.
    async fn device_model(&self, asked: &Asked) -> Option<ModelMark> {
        let device = self.device.as_ref().filter(|_| !asked.by_cloud_alone)?;
        let fingerprint = Arc::clone(&self.recorder.as_ref()?.fingerprint);
        let model = device.model.clone();
        let read = move || *fingerprint.get_or_init(|| Digest::from_bytes(model.fingerprint()));
        let fingerprint = tokio::task::spawn_blocking(read).await.ok()?;
        let adapter = device.adapters.iter().find(|(_, id)| Some(**id) == asked.adapter);
        Some(ModelMark {
            name: device.model.name().to_owned(),
            fingerprint,
            tokenizer_sha256: device.model.tokenizer().digest_hex().to_owned(),
            adapter: adapter.map(|(name, _)| name.clone()),
            pair: self.pair(),
        })
    }

    /// Puts an audit into the record of its answer, and what was sent for it: the first request, and the
    /// bytes of all. The receipt then lists all requests, and is signed again.
    pub(super) async fn record_audit(&self, key: Option<&str>, audit: &RouteAudit, sent: Vec<SentBody>) {
        let Some((recorder, key)) = self.recorder.as_ref().zip(key) else { return };
        let first = recorder.sent(&sent);
        let sign = |before: &StoredAnswer, after: &StoredAnswer| {
            let key = recorder.key.as_ref()?;
            let again = signed_again(before, after, sent, key);
            again.inspect_err(|err| warn!(err = chain(err), "the receipt is not signed again")).ok()?
        };
        if let Err(err) = recorder.kept.record_audit(key, &json!(audit), first, sign).await {
            warn!(err = chain(&err), "the audit of an answer is not recorded");
        }
    }
}

impl Recorder {
    /// Returns what a record holds of requests: the JSON of the first and of one to continue, and the bytes
    /// of all.
    fn sent(&self, bodies: &[SentBody]) -> Option<Sent> {
        let (first, more) = bodies.split_first()?;
        let continued = more.iter().find(|body| body.told.purpose == Purpose::Continue);
        Some(Sent {
            cloud: self.cloud.clone(),
            bytes: bodies.iter().map(|body| body.told.body.bytes).sum(),
            request: first.json.clone(),
            continued: continued.map(|body| body.json.clone()),
        })
    }
}

/// Signs a receipt, if it is small enough.
fn signed(receipt: &Receipt, key: &SigningKey) -> Option<String> {
    if !receipt.fits() {
        warn!(PARTS_MAX, "the texts of a request have too many parts for a receipt");
        return None;
    }
    receipt.sign(key).inspect_err(|err| warn!(err = chain(err), "an answer has no receipt")).ok()
}

/// Signs the receipt of a record again, with further requests. A record that was changed is not signed: its
/// receipt stays, and tells the change.
fn signed_again(
    before: &StoredAnswer,
    after: &StoredAnswer,
    more: Vec<SentBody>,
    key: &SigningKey,
) -> Result<Option<String>, ReceiptError> {
    let Some(receipt) = &before.receipt else { return Ok(None) };
    let mut receipt = Receipt::read(receipt.as_bytes())?;
    receipt.check_key(key.public())?;
    receipt.check_record(before)?;
    receipt.record = RecordDigests::of(after);
    receipt.requests.extend(more.into_iter().map(|body| body.told));
    Ok(signed(&receipt, key))
}
