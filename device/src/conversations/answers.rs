//! Records of answers: who wrote them, when their tokens came, and what was sent for them.
//!
//! A record holds no text of an answer, and of a question only what left the device, as it left: private
//! values are placeholders there. What was never sent is not recorded. The newest [`ANSWERS_MAX`] records
//! are kept, of at most [`BYTES_MAX`] bytes. A receipt of an answer lies in its record ([`crate::receipt`]).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{ConversationError, Conversations};

/// The most records.
pub(super) const ANSWERS_MAX: i64 = 500;
/// The most bytes of all records.
pub(super) const BYTES_MAX: i64 = 64 << 20;

/// What was sent to a cloud.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    /// The cloud's address.
    pub cloud: String,
    /// Bytes of all bodies as they were sent, which may be compressed.
    pub bytes: usize,
    /// The JSON of the first body, byte for byte.
    pub request: Box<RawValue>,
    /// The JSON of the request to go on behind the device's text, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued: Option<Box<RawValue>>,
}

impl Sent {
    /// Returns the JSON of each body.
    pub fn bodies(&self) -> impl Iterator<Item = &str> {
        [Some(&self.request), self.continued.as_ref()].into_iter().flatten().map(|body| body.get())
    }
}

/// A record as it is stored: its texts, byte for byte.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredAnswer {
    /// When the answer ended, in milliseconds since 1970.
    pub ended_ms: i64,
    /// The command that was asked.
    pub asked_by: String,
    /// The JSON of the report of the answer, without its text.
    pub report: String,
    /// The JSON of [`Sent`], if something was sent.
    pub sent: Option<String>,
    /// The signed receipt, if there is one.
    pub receipt: Option<String>,
}

/// A record in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answered {
    /// Its number.
    pub id: i64,
    /// When the answer ended, in milliseconds since 1970.
    pub ended_ms: i64,
    /// The command that was asked.
    pub asked_by: String,
    /// The report of the answer, without its text.
    pub report: Value,
    /// Whether something was sent.
    pub was_sent: bool,
}

/// A whole record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    #[serde(flatten)]
    /// What a list shows too.
    pub answered: Answered,
    /// What was sent, if anything was: `cloud`, `bytes` and the `request`.
    pub sent: Option<Value>,
}

/// The audits among the records.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AuditSummary {
    /// Turns whose routes were all measured.
    pub turns: i64,
    /// Their mean regret, as a share of the best route's weighted time.
    pub mean_regret: Option<f64>,
    /// The largest regret.
    pub worst_regret: Option<f64>,
}

type Row = (i64, i64, String, String, Option<String>);

type StoredRow = (i64, i64, String, String, Option<String>, Option<String>);

fn stored((id, ended_ms, asked_by, report, sent, receipt): StoredRow) -> (i64, StoredAnswer) {
    (id, StoredAnswer { ended_ms, asked_by, report, sent, receipt })
}

fn record((id, ended_ms, asked_by, report, sent): Row) -> Record {
    // What cannot be read was written by another version.
    let read = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let was_sent = sent.is_some();
    let answered = Answered { id, ended_ms, asked_by, report: read(&report), was_sent };
    Record { answered, sent: sent.as_deref().map(read) }
}

impl Conversations {
    /// Records an answer; the oldest records go if there are too many. Returns the record's random key.
    ///
    /// # Errors
    /// [`ConversationError::Database`].
    pub async fn record(&self, new: &StoredAnswer) -> Result<String, ConversationError> {
        let key = Uuid::new_v4().simple().to_string();
        let mut change = self.pool.begin().await?;
        let insert =
            "INSERT INTO answers (key, ended_ms, asked_by, report, sent, receipt) VALUES (?, ?, ?, ?, ?, ?)";
        let insert = sqlx::query(insert).bind(&key).bind(new.ended_ms).bind(&new.asked_by);
        let insert = insert.bind(&new.report).bind(&new.sent).bind(&new.receipt);
        let id = insert.execute(&mut *change).await?.last_insert_rowid();
        let old = "DELETE FROM answers WHERE id <= ? - ? OR id IN (SELECT id FROM (SELECT id, sum(length(report) \
            + length(coalesce(sent, '')) + length(coalesce(receipt, ''))) OVER (ORDER BY id DESC) AS bytes \
            FROM answers) WHERE bytes > ? AND id < ?)";
        let old = sqlx::query(old).bind(id).bind(ANSWERS_MAX).bind(BYTES_MAX).bind(id);
        old.execute(&mut *change).await?;
        change.commit().await?;
        Ok(key)
    }

    /// Puts an audit into a record, and what was sent for it: all requests held the same texts, so one is
    /// kept, with the bytes of all. `sign` is given the record before and after, and returns its new
    /// receipt.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if the record is gone; [`ConversationError::Database`].
    pub async fn record_audit(
        &self,
        key: &str,
        audit: &Value,
        sent: Option<Sent>,
        sign: impl FnOnce(&StoredAnswer, &StoredAnswer) -> Option<String>,
    ) -> Result<(), ConversationError> {
        let mut change = self.pool.begin().await?;
        let found: Option<StoredRow> =
            sqlx::query_as("SELECT id, ended_ms, asked_by, report, sent, receipt FROM answers WHERE key = ?")
                .bind(key)
                .fetch_optional(&mut *change)
                .await?;
        let (_, before) = found.map(stored).ok_or(ConversationError::NoRecord)?;
        let mut report = serde_json::from_str::<Value>(&before.report).unwrap_or_default();
        if let Some(fields) = report.as_object_mut() {
            fields.insert("audit".into(), audit.clone());
        }
        let first = before.sent.as_deref().and_then(|text| serde_json::from_str::<Sent>(text).ok());
        let sent = match (first, sent) {
            (Some(first), Some(more)) => Some(Sent { bytes: first.bytes + more.bytes, ..first }),
            (first, more) => first.or(more),
        };
        let sent = sent.map(|sent| serde_json::to_string(&sent)).transpose().unwrap_or_default();
        let mut after = StoredAnswer { report: report.to_string(), sent, ..before.clone() };
        after.receipt = sign(&before, &after).or(after.receipt);
        let update = sqlx::query("UPDATE answers SET report = ?, sent = ?, receipt = ? WHERE key = ?");
        let update = update.bind(&after.report).bind(&after.sent).bind(&after.receipt).bind(key);
        update.execute(&mut *change).await?;
        Ok(change.commit().await?)
    }

    /// Returns a record as it is stored, with its number; without a number, the newest.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if there is none.
    pub async fn stored_answer(&self, id: Option<i64>) -> Result<(i64, StoredAnswer), ConversationError> {
        let query = "SELECT id, ended_ms, asked_by, report, sent, receipt FROM answers \
            WHERE ? IS NULL OR id = ? ORDER BY id DESC LIMIT 1";
        let row: Option<StoredRow> =
            sqlx::query_as(query).bind(id).bind(id).fetch_optional(&self.pool).await?;
        row.map(stored).ok_or(ConversationError::NoRecord)
    }

    /// Returns the signed receipt in the record with this key, if it has one.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if there is no such record.
    pub async fn receipt_by_key(&self, key: &str) -> Result<Option<String>, ConversationError> {
        let row: Option<(Option<String>,)> = sqlx::query_as("SELECT receipt FROM answers WHERE key = ?")
            .bind(key)
            .fetch_optional(&self.pool)
            .await?;
        row.map(|(receipt,)| receipt).ok_or(ConversationError::NoRecord)
    }

    /// Returns how well the routes of the audited turns were chosen.
    ///
    /// # Errors
    /// [`ConversationError::Database`].
    pub async fn audits(&self) -> Result<AuditSummary, ConversationError> {
        let query = "SELECT count(regret), avg(regret), max(regret) \
            FROM (SELECT json_extract(report, '$.audit.regret') AS regret FROM answers)";
        let (turns, mean_regret, worst_regret) = sqlx::query_as(query).fetch_one(&self.pool).await?;
        Ok(AuditSummary { turns, mean_regret, worst_regret })
    }

    /// Returns the newest records, the newest first.
    ///
    /// # Errors
    /// [`ConversationError::Database`].
    pub async fn recorded(&self, most: usize) -> Result<Vec<Answered>, ConversationError> {
        let query = "SELECT id, ended_ms, asked_by, report, CASE WHEN sent IS NULL THEN NULL ELSE '{}' END \
            FROM answers ORDER BY id DESC LIMIT ?";
        let rows: Vec<Row> = sqlx::query_as(query).bind(most as i64).fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(|row| record(row).answered).collect())
    }

    /// Returns a record; without a number, the newest.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if there is none.
    pub async fn recorded_answer(&self, id: Option<i64>) -> Result<Record, ConversationError> {
        let query = "SELECT id, ended_ms, asked_by, report, sent FROM answers WHERE ? IS NULL OR id = ? \
            ORDER BY id DESC LIMIT 1";
        let row: Option<Row> = sqlx::query_as(query).bind(id).bind(id).fetch_optional(&self.pool).await?;
        row.map(record).ok_or(ConversationError::NoRecord)
    }

    /// Returns the record with this key.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if there is none.
    pub async fn recorded_by_key(&self, key: &str) -> Result<Record, ConversationError> {
        let query = "SELECT id, ended_ms, asked_by, report, sent FROM answers WHERE key = ?";
        let row: Option<Row> = sqlx::query_as(query).bind(key).fetch_optional(&self.pool).await?;
        row.map(record).ok_or(ConversationError::NoRecord)
    }

    /// Forgets a record; without a number, all. Returns how many there were.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if there is none of this number.
    pub async fn forget_record(&self, id: Option<i64>) -> Result<u64, ConversationError> {
        let gone = sqlx::query("DELETE FROM answers WHERE ? IS NULL OR id = ?").bind(id).bind(id);
        match (gone.execute(&self.pool).await?.rows_affected(), id) {
            (0, Some(_)) => Err(ConversationError::NoRecord),
            (gone, _) => Ok(gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::FILE;
    use serde_json::json;

    fn sent(bytes: usize, text: &str) -> Sent {
        let request = json!({ "segments": [{ "text": text }] }).to_string();
        let request = RawValue::from_string(request).unwrap();
        Sent { cloud: "https://a.example".into(), bytes, request, continued: None }
    }

    fn answer(asked_by: &str, report: &Value, sent: Option<&Sent>) -> StoredAnswer {
        let (asked_by, report) = (asked_by.to_owned(), report.to_string());
        let sent = sent.map(|sent| serde_json::to_string(sent).unwrap());
        StoredAnswer { ended_ms: 7, asked_by, report, sent, receipt: None }
    }

    #[tokio::test]
    async fn records_are_kept_listed_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let kept = Conversations::open(&path).await.unwrap();
        assert!(matches!(kept.recorded_answer(None).await, Err(ConversationError::NoRecord)));
        let sent = sent(77, "[EMAIL_1]");
        let key = kept.record(&answer("baton ask", &json!({ "ending": "stop" }), Some(&sent))).await.unwrap();
        kept.record(&answer("baton chat", &json!({ "ending": "length" }), None)).await.unwrap();
        let (first, second) = (1, 2);
        // Another program sees them too.
        let other = Conversations::open(&path).await.unwrap();
        let listed = other.recorded(10).await.unwrap();
        let shown: Vec<(i64, &str, bool)> =
            listed.iter().map(|one| (one.id, one.asked_by.as_str(), one.was_sent)).collect();
        assert_eq!(shown, [(second, "baton chat", false), (first, "baton ask", true)]);
        let read = other.recorded_answer(Some(first)).await.unwrap();
        assert_eq!(read.answered.report, json!({ "ending": "stop" }));
        assert_eq!(read.sent.unwrap(), serde_json::to_value(&sent).unwrap());
        assert_eq!(other.recorded_by_key(&key).await.unwrap().answered.id, first);
        assert!(matches!(other.recorded_by_key("1").await, Err(ConversationError::NoRecord)));
        assert_eq!(other.recorded_answer(None).await.unwrap().sent, None);
        assert_eq!(other.forget_record(Some(first)).await.unwrap(), 1);
        assert!(matches!(other.forget_record(Some(first)).await, Err(ConversationError::NoRecord)));
        assert_eq!(other.forget_record(None).await.unwrap(), 1);
        assert!(kept.recorded(10).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_audit_is_in_its_record_with_what_it_sent() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Conversations::open(&folder.path().join(FILE)).await.unwrap();
        assert_eq!(
            kept.audits().await.unwrap(),
            AuditSummary { turns: 0, mean_regret: None, worst_regret: None }
        );
        let alone = kept.record(&answer("baton serve", &json!({ "ending": "stop" }), None)).await.unwrap();
        let relay =
            kept.record(&answer("baton serve", &json!({}), Some(&sent(70, "as sent first")))).await.unwrap();
        let cut = kept.record(&answer("baton serve", &json!({}), None)).await.unwrap();
        let audited = async |key: &str, audit: Value, sent| {
            let sign = |before: &StoredAnswer, after: &StoredAnswer| {
                assert_eq!((before.receipt.as_ref(), &before.asked_by), (None, &after.asked_by));
                Some(format!("{} {}", before.report, after.report))
            };
            kept.record_audit(key, &audit, sent, sign).await
        };
        audited(&alone, json!({ "regret": 0.1 }), Some(sent(30, "for the audit"))).await.unwrap();
        audited(&relay, json!({ "regret": 0.3 }), Some(sent(35, "the same"))).await.unwrap();
        audited(&cut, json!({ "measured": [] }), None).await.unwrap();
        let receipt = kept.receipt_by_key(&cut).await.unwrap();
        assert_eq!(receipt.as_deref(), Some(r#"{} {"audit":{"measured":[]}}"#));
        let (id, stored) = kept.stored_answer(None).await.unwrap();
        assert_eq!((id, stored.receipt, stored.ended_ms), (3, receipt, 7));
        let summary = kept.audits().await.unwrap();
        assert_eq!((summary.turns, summary.worst_regret), (2, Some(0.3)));
        assert!((summary.mean_regret.unwrap() - 0.2).abs() < 1e-12, "{summary:?}");
        let read = kept.recorded_by_key(&alone).await.unwrap();
        assert_eq!(read.answered.report, json!({ "ending": "stop", "audit": { "regret": 0.1 } }));
        assert_eq!(read.sent.unwrap(), serde_json::to_value(sent(30, "for the audit")).unwrap());
        let read = kept.recorded_by_key(&relay).await.unwrap();
        assert_eq!(read.sent.unwrap(), serde_json::to_value(sent(105, "as sent first")).unwrap());
        assert_eq!(kept.recorded_by_key(&cut).await.unwrap().sent, None);
        let gone = audited("1", json!({}), None).await;
        assert!(matches!(kept.receipt_by_key("1").await, Err(ConversationError::NoRecord)));
        assert!(matches!(gone, Err(ConversationError::NoRecord)), "{gone:?}");
    }

    #[tokio::test]
    async fn the_oldest_records_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Conversations::open(&folder.path().join(FILE)).await.unwrap();
        for _ in 0..ANSWERS_MAX + 3 {
            kept.record(&answer("baton ask", &json!({}), None)).await.unwrap();
        }
        let listed = kept.recorded(10_000).await.unwrap();
        assert_eq!((listed.len() as i64, listed[0].id), (ANSWERS_MAX, ANSWERS_MAX + 3));
        // A record alone may be larger than all may be together; it stays until the next one.
        let large = json!({ "text": "x".repeat(BYTES_MAX as usize) });
        kept.record(&answer("baton ask", &large, None)).await.unwrap();
        let ids =
            async || -> Vec<i64> { kept.recorded(10).await.unwrap().iter().map(|one| one.id).collect() };
        assert_eq!(ids().await, [ANSWERS_MAX + 4]);
        kept.record(&answer("baton ask", &json!({}), None)).await.unwrap();
        assert_eq!(ids().await, [ANSWERS_MAX + 5]);
    }
}
