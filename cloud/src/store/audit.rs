//! The audit log: who changed what, as a chain of hashes.
//!
//! Each row's hash covers its fields and the hash of the row before. The end of the chain is also stored
//! apart. So a check finds a row that was altered, deleted, added or moved. Somebody who can write the whole
//! database can also compute a whole new chain. To detect that, keep the end of the chain ([`AuditEnd`])
//! elsewhere and give it to [`Store::verify_audit`]. [`Store::verify_audit_after`] continues from the end of
//! an earlier check; the check of the whole log stays available.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::db::{Row, Tx, args};
use super::{Store, StoreError, sql};

/// Rows that are read at once.
const PAGE: u64 = 1000;
/// The first bytes of every hash, so that a hash of other data cannot be taken for one of a row.
const DOMAIN: &[u8] = b"baton audit row 1\0";

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// 1, 2, 3, …
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who: `user:NAME`, `cli` or `service`.
    pub actor: String,
    /// The action, for example `scene.publish`.
    pub action: String,
    /// What was changed, for example `scene/doc-qa`.
    pub target: String,
    /// The change as JSON, with old and new values. Never a secret.
    pub detail: String,
    /// Hash of the row before; zeros for the first.
    pub prev_hash: [u8; 32],
    /// Hash of this row.
    pub hash: [u8; 32],
}

/// The end of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditEnd {
    /// The number of rows.
    pub seq: u64,
    /// Hash of the last row; zeros if there is none.
    pub hash: [u8; 32],
}

/// The result of a check of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditCheck {
    /// The chain is intact.
    Whole(AuditEnd),
    /// The chain is broken.
    Broken {
        /// The first row that is wrong.
        seq: u64,
        /// What is wrong with it.
        fault: AuditFault,
    },
}

/// What is wrong with a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuditFault {
    /// A field or the hash of the row was altered.
    #[error("the row was altered")]
    Altered,
    /// The row is missing.
    #[error("the row is missing")]
    Missing,
    /// The row does not follow the one before it: that one was replaced, or rows were moved.
    #[error("the row does not follow the one before it")]
    Unlinked,
    /// There are more rows than were written.
    #[error("the row was not written by this program")]
    Added,
    /// The chain is intact, but does not hold the end that was noted.
    #[error("the chain is not the one whose end was noted")]
    Replaced,
}

/// A query for a page of rows. An empty text matches any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only rows before this one.
    pub before: Option<u64>,
    /// Only rows of this target.
    pub target: String,
    /// Only rows by this actor.
    pub actor: String,
    /// The most rows to return.
    pub limit: u32,
}

impl AuditRow {
    /// Computes SHA-256 over every field except `hash`. A text is preceded by its length, so that different
    /// rows never hash the same bytes.
    #[must_use]
    pub fn computed_hash(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(DOMAIN);
        hasher.update(self.prev_hash);
        hasher.update(self.seq.to_be_bytes());
        hasher.update(self.at_ms.to_be_bytes());
        for text in [&self.actor, &self.action, &self.target, &self.detail] {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text);
        }
        hasher.finalize().into()
    }

    /// Returns the row as the command line and the API print it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let detail: Value = serde_json::from_str(&self.detail).unwrap_or(Value::Null);
        json!({
            "seq": self.seq,
            "at_ms": self.at_ms,
            "actor": self.actor,
            "action": self.action,
            "target": self.target,
            "detail": detail,
            "hash": hex::encode(self.hash),
        })
    }
}

impl AuditEnd {
    /// Returns `SEQ:HASH`, to be kept elsewhere.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}:{}", self.seq, hex::encode(self.hash))
    }
}

/// Links a row to the one before it, whose hash is `prev`.
pub(super) fn link(prev: &[u8; 32], row: AuditRow) -> AuditRow {
    let mut row = AuditRow { prev_hash: *prev, ..row };
    row.hash = row.computed_hash();
    row
}

/// Finds the first break of a chain, row by row.
#[derive(Debug)]
pub struct ChainCheck {
    end: AuditEnd,
}

impl Default for ChainCheck {
    fn default() -> ChainCheck {
        ChainCheck { end: AuditEnd { seq: 0, hash: [0; 32] } }
    }
}

impl ChainCheck {
    /// Continues after rows that were checked before.
    #[must_use]
    pub fn after(end: AuditEnd) -> ChainCheck {
        ChainCheck { end }
    }

    /// Checks the next row, in the order of `seq`.
    ///
    /// # Errors
    /// The number of the first wrong row, and what is wrong with it.
    pub fn push(&mut self, row: &AuditRow) -> Result<(), (u64, AuditFault)> {
        let want = self.end.seq + 1;
        if row.seq != want {
            return Err((want, AuditFault::Missing));
        }
        if row.hash != row.computed_hash() {
            return Err((row.seq, AuditFault::Altered));
        }
        if row.prev_hash != self.end.hash {
            return Err((row.seq, AuditFault::Unlinked));
        }
        self.end = AuditEnd { seq: row.seq, hash: row.hash };
        Ok(())
    }

    /// Returns the result. `kept` is the end that the database stores apart; `noted_fits` says that the chain
    /// holds the end that somebody noted, if there is one.
    #[must_use]
    pub fn finish(self, kept: AuditEnd, noted_fits: bool) -> AuditCheck {
        let AuditEnd { seq, hash } = self.end;
        let broken = |seq, fault| AuditCheck::Broken { seq, fault };
        if seq < kept.seq {
            broken(seq + 1, AuditFault::Missing)
        } else if seq > kept.seq {
            broken(kept.seq + 1, AuditFault::Added)
        } else if hash != kept.hash {
            broken(seq, AuditFault::Altered)
        } else if !noted_fits {
            broken(seq, AuditFault::Replaced)
        } else {
            AuditCheck::Whole(self.end)
        }
    }
}

impl Store {
    /// Returns rows that match a query, the newest first.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditRow>, StoreError> {
        let before = query.before.unwrap_or(i64::MAX as u64);
        let values = args![before, &query.target, &query.actor, query.limit.min(10_000)];
        self.pool.rows(&sql::AUDIT_BEFORE, values).await?.iter().map(audit_row).collect()
    }

    /// Checks the whole log. `noted` is an end of the chain that somebody kept earlier; the log must still
    /// hold it.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn verify_audit(&self, noted: Option<(u64, String)>) -> Result<AuditCheck, StoreError> {
        let mut tx = self.pool.begin_read().await?;
        let kept = kept_end(&mut tx).await?;
        let mut check = ChainCheck::default();
        let mut noted_fits = noted.as_ref().is_none_or(|(seq, _)| *seq == 0);
        let mut after = 0;
        loop {
            let rows = tx.rows(&sql::AUDIT_AFTER, args![after, PAGE]).await?;
            let Some(last) = rows.last() else { break };
            after = last.count("seq")?;
            for row in &rows {
                let row = audit_row(row)?;
                if let Err((seq, fault)) = check.push(&row) {
                    return Ok(AuditCheck::Broken { seq, fault });
                }
                noted_fits |= noted
                    .as_ref()
                    .is_some_and(|(seq, hash)| *seq == row.seq && *hash == hex::encode(row.hash));
            }
        }
        Ok(check.finish(kept, noted_fits))
    }

    /// Checks only the rows after an end that was intact at an earlier check. If the log does not hold that
    /// end any more, checks the whole log.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn verify_audit_after(&self, looked_at: AuditEnd) -> Result<AuditCheck, StoreError> {
        if looked_at.seq == 0 {
            return self.verify_audit(None).await;
        }
        let mut tx = self.pool.begin_read().await?;
        let kept = kept_end(&mut tx).await?;
        let last = tx.row(&sql::AUDIT_AFTER, args![looked_at.seq - 1, 1_u64]).await?;
        let last = last.as_ref().map(audit_row).transpose()?;
        let is_there = last.is_some_and(|row| {
            (row.seq, row.hash) == (looked_at.seq, looked_at.hash) && row.computed_hash() == row.hash
        });
        if !is_there {
            drop(tx);
            return self.verify_audit(None).await;
        }
        let mut check = ChainCheck::after(looked_at);
        let mut after = looked_at.seq;
        loop {
            let rows = tx.rows(&sql::AUDIT_AFTER, args![after, PAGE]).await?;
            let Some(last) = rows.last() else { break };
            after = last.count("seq")?;
            for row in &rows {
                if let Err((seq, fault)) = check.push(&audit_row(row)?) {
                    return Ok(AuditCheck::Broken { seq, fault });
                }
            }
        }
        Ok(check.finish(kept, true))
    }
}

/// Reads the end of the chain that is stored apart from the rows.
async fn kept_end(tx: &mut Tx) -> Result<AuditEnd, StoreError> {
    let state = tx.row(&sql::STATE, args![]).await?;
    let state = state.ok_or(StoreError::Query { doing: sql::STATE.doing, err: sqlx::Error::RowNotFound })?;
    Ok(AuditEnd { seq: state.count("audit_seq")?, hash: state.hash("audit_hash")? })
}

/// Returns whether the rows of a page are intact and linked to each other. The newest row comes first.
#[must_use]
pub fn page_is_whole(rows: &[AuditRow]) -> bool {
    let written = rows.iter().all(|row| row.hash == row.computed_hash());
    let linked = rows
        .iter()
        .zip(rows.iter().skip(1))
        .all(|(newer, older)| newer.seq == older.seq + 1 && newer.prev_hash == older.hash);
    written && linked
}

fn audit_row(row: &Row) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        seq: row.count("seq")?,
        at_ms: row.int("at_ms")?,
        actor: row.text("actor")?,
        action: row.text("action")?,
        target: row.text("target")?,
        detail: row.text("detail")?,
        prev_hash: row.hash("prev_hash")?,
        hash: row.hash("hash")?,
    })
}
