//! Records answers on this device: how each came about, and what was sent for it.
//!
//! A record that cannot be written is a warning. No answer fails for it.

use super::prepare::Prepared;
use super::{Agent, AnswerReport, RouteAudit};
use crate::conversations::{Conversations, Sent};
use baton_terminal::chain;
use serde_json::{Value, json};
use tracing::warn;

/// Where answers are recorded.
#[derive(Debug)]
pub(super) struct Recorder {
    kept: Conversations,
    asked_by: &'static str,
    cloud: String,
}

impl Agent {
    /// Makes the agent record its answers. `asked_by` is the command that asks, `cloud` the cloud's address.
    #[must_use]
    pub fn with_records(mut self, kept: Conversations, asked_by: &'static str, cloud: &str) -> Self {
        self.recorder = Some(Recorder { kept, asked_by, cloud: cloud.to_owned() });
        self
    }

    /// Returns the records, if there are any.
    pub fn records(&self) -> Option<&Conversations> {
        self.recorder.as_ref().map(|recorder| &recorder.kept)
    }

    /// Records an answer, and what was sent for it ([`Prepared::sent_request`]). Returns the key of the
    /// record.
    pub(super) async fn record(&self, sent: Option<(Value, usize)>, report: &AnswerReport) -> Option<String> {
        let recorder = self.recorder.as_ref()?;
        let mut told = json!(report);
        if let Some(fields) = told.as_object_mut() {
            fields.remove("answer");
        }
        let sent = sent.map(|(request, bytes)| Sent { cloud: recorder.cloud.clone(), bytes, request });
        match recorder.kept.record(recorder.asked_by, &told, sent.as_ref()).await {
            Ok(key) => Some(key),
            Err(err) => {
                warn!(err = chain(&err), "the answer is not recorded");
                None
            }
        }
    }

    /// Puts an audit into the record of its answer, and what was sent for it: the first request, and the
    /// bytes of all.
    pub(super) async fn record_audit(
        &self,
        key: Option<&str>,
        audit: &RouteAudit,
        sent: Option<(Value, usize)>,
    ) {
        let Some((recorder, key)) = self.recorder.as_ref().zip(key) else { return };
        let sent = sent.map(|(request, bytes)| Sent { cloud: recorder.cloud.clone(), bytes, request });
        if let Err(err) = recorder.kept.record_audit(key, &json!(audit), sent).await {
            warn!(err = chain(&err), "the audit of an answer is not recorded");
        }
    }
}

impl Prepared {
    /// Returns the body that was sent as it was before it was compressed, and the bytes of what was sent;
    /// `None` if the cloud was not asked. A second request, to go on behind the device's text, is beside the
    /// first as `continued`.
    pub(super) fn sent_request(&self) -> Option<(Value, usize)> {
        let (request, redacted) = (self.request.as_ref()?, self.redacted.as_ref().ok()?);
        if !self.is_sent {
            return None;
        }
        let mut body = json!(redacted.as_request());
        let mut bytes = request.body().len();
        if let Some((continued, more)) = &self.continued {
            body["continued"] = json!(continued.as_request());
            bytes += more;
        }
        Some((body, bytes))
    }
}
