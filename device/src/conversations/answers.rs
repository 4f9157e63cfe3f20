//! Records of answers: who wrote them, when their tokens came, and what was sent for them.
//!
//! A record holds no text of an answer, and of a question only what left the device, as it left: private
//! values are placeholders there. What was never sent is not recorded. The newest [`ANSWERS_MAX`] records
//! are kept, of at most [`BYTES_MAX`] bytes.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::{ConversationError, Conversations, now};

/// The most records.
pub(super) const ANSWERS_MAX: i64 = 500;
/// The most bytes of all records.
pub(super) const BYTES_MAX: i64 = 64 << 20;

/// What was sent to a cloud.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sent {
    /// The cloud's address.
    pub cloud: String,
    /// Bytes of the body as they were sent, which may be compressed.
    pub bytes: usize,
    /// The body.
    pub request: Value,
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
    pub async fn record(
        &self,
        asked_by: &str,
        report: &Value,
        sent: Option<&Sent>,
    ) -> Result<String, ConversationError> {
        let key = Uuid::new_v4().simple().to_string();
        let sent = sent.map(serde_json::to_string).transpose().unwrap_or_default();
        let mut change = self.pool.begin().await?;
        let insert = "INSERT INTO answers (key, ended_ms, asked_by, report, sent) VALUES (?, ?, ?, ?, ?)";
        let insert = sqlx::query(insert).bind(&key).bind(now()).bind(asked_by);
        let insert = insert.bind(report.to_string()).bind(sent);
        let id = insert.execute(&mut *change).await?.last_insert_rowid();
        let old = "DELETE FROM answers WHERE id <= ? - ? OR id IN (SELECT id FROM (SELECT id, sum(length(report) \
            + length(coalesce(sent, ''))) OVER (ORDER BY id DESC) AS bytes FROM answers) WHERE bytes > ? AND id < ?)";
        let old = sqlx::query(old).bind(id).bind(ANSWERS_MAX).bind(BYTES_MAX).bind(id);
        old.execute(&mut *change).await?;
        change.commit().await?;
        Ok(key)
    }

    /// Puts an audit into a record, and what was sent for it: all requests held the same texts, so one is
    /// kept, with the bytes of all.
    ///
    /// # Errors
    /// [`ConversationError::NoRecord`] if the record is gone; [`ConversationError::Database`].
    pub async fn record_audit(
        &self,
        key: &str,
        audit: &Value,
        sent: Option<Sent>,
    ) -> Result<(), ConversationError> {
        let mut change = self.pool.begin().await?;
        let found: Option<(String, Option<String>)> =
            sqlx::query_as("SELECT report, sent FROM answers WHERE key = ?")
                .bind(key)
                .fetch_optional(&mut *change)
                .await?;
        let (report, before) = found.ok_or(ConversationError::NoRecord)?;
        let mut report = serde_json::from_str::<Value>(&report).unwrap_or_default();
        if let Some(fields) = report.as_object_mut() {
            fields.insert("audit".into(), audit.clone());
        }
        let before = before.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let sent = match (before, sent) {
            (Some(mut before), Some(more)) => {
                let bytes = before["bytes"].as_u64().unwrap_or(0) + more.bytes as u64;
                before["bytes"] = bytes.into();
                Some(before)
            }
            (before, more) => before.or_else(|| more.and_then(|more| serde_json::to_value(more).ok())),
        };
        let update = sqlx::query("UPDATE answers SET report = ?, sent = ? WHERE key = ?");
        let update = update.bind(report.to_string()).bind(sent.map(|sent| sent.to_string())).bind(key);
        update.execute(&mut *change).await?;
        Ok(change.commit().await?)
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

    #[tokio::test]
    async fn records_are_kept_listed_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let kept = Conversations::open(&path).await.unwrap();
        assert!(matches!(kept.recorded_answer(None).await, Err(ConversationError::NoRecord)));
        let sent = Sent {
            cloud: "https://a.example".into(),
            bytes: 77,
            request: json!({ "segments": [{ "text": "[EMAIL_1]" }] }),
        };
        let key = kept.record("baton ask", &json!({ "ending": "stop" }), Some(&sent)).await.unwrap();
        kept.record("baton chat", &json!({ "ending": "length" }), None).await.unwrap();
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
        let sent = |bytes, text: &str| Sent {
            cloud: "https://a.example".into(),
            bytes,
            request: json!({ "segments": [{ "text": text }] }),
        };
        assert_eq!(
            kept.audits().await.unwrap(),
            AuditSummary { turns: 0, mean_regret: None, worst_regret: None }
        );
        let alone = kept.record("baton serve", &json!({ "ending": "stop" }), None).await.unwrap();
        let relay = kept.record("baton serve", &json!({}), Some(&sent(70, "as sent first"))).await.unwrap();
        let cut = kept.record("baton serve", &json!({}), None).await.unwrap();
        kept.record_audit(&alone, &json!({ "regret": 0.1 }), Some(sent(30, "for the audit"))).await.unwrap();
        kept.record_audit(&relay, &json!({ "regret": 0.3 }), Some(sent(35, "the same"))).await.unwrap();
        kept.record_audit(&cut, &json!({ "measured": [] }), None).await.unwrap();
        let summary = kept.audits().await.unwrap();
        assert_eq!((summary.turns, summary.worst_regret), (2, Some(0.3)));
        assert!((summary.mean_regret.unwrap() - 0.2).abs() < 1e-12, "{summary:?}");
        let read = kept.recorded_by_key(&alone).await.unwrap();
        assert_eq!(read.answered.report, json!({ "ending": "stop", "audit": { "regret": 0.1 } }));
        assert_eq!(read.sent.unwrap(), serde_json::to_value(sent(30, "for the audit")).unwrap());
        let read = kept.recorded_by_key(&relay).await.unwrap();
        assert_eq!(read.sent.unwrap(), serde_json::to_value(sent(105, "as sent first")).unwrap());
        assert_eq!(kept.recorded_by_key(&cut).await.unwrap().sent, None);
        let gone = kept.record_audit("1", &json!({}), None).await;
        assert!(matches!(gone, Err(ConversationError::NoRecord)), "{gone:?}");
    }

    #[tokio::test]
    async fn the_oldest_records_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Conversations::open(&folder.path().join(FILE)).await.unwrap();
        for _ in 0..ANSWERS_MAX + 3 {
            kept.record("baton ask", &json!({}), None).await.unwrap();
        }
        let listed = kept.recorded(10_000).await.unwrap();
        assert_eq!((listed.len() as i64, listed[0].id), (ANSWERS_MAX, ANSWERS_MAX + 3));
        // A record alone may be larger than all may be together; it stays until the next one.
        let large = json!({ "text": "x".repeat(BYTES_MAX as usize) });
        kept.record("baton ask", &large, None).await.unwrap();
        let ids =
            async || -> Vec<i64> { kept.recorded(10).await.unwrap().iter().map(|one| one.id).collect() };
        assert_eq!(ids().await, [ANSWERS_MAX + 4]);
        kept.record("baton ask", &json!({}), None).await.unwrap();
        assert_eq!(ids().await, [ANSWERS_MAX + 5]);
    }
}
