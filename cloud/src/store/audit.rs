//! The audit log: who changed what, in a chain of hashes.
//!
//! Each row's hash covers its fields and the hash of the row before, and the end of the chain is kept apart: a row that
//! was altered, deleted, added or moved is found. Who can write the whole database can also compute a whole new
//! chain: against that, the end of the chain ([`AuditEnd`]) is noted elsewhere and given to [`Store::verify_audit`].
//! Who looks often goes on from where the last look ended ([`Store::verify_audit_after`]); the whole check stays.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::db::{Row, Tx, args};
use super::{Store, StoreError, sql};

/// Rows that are read at a time.
const PAGE: u64 = 1000;
/// What every hash begins with, so that it cannot be one of something else.
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
    /// What was done, `scene.publish` for instance.
    pub action: String,
    /// To what, `scene/doc-qa` for instance.
    pub target: String,
    /// JSON: what was changed from what to what. Never a secret.
    pub detail: String,
    /// Hash of the row before; zeros for the first.
    pub prev_hash: [u8; 32],
    /// Hash of this row.
    pub hash: [u8; 32],
}

/// The end of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditEnd {
    /// Rows in all.
    pub seq: u64,
    /// Hash of the last one; zeros where there is none.
    pub hash: [u8; 32],
}

/// What a check of the chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditCheck {
    /// Every row is as it was written.
    Whole(AuditEnd),
    /// The first row that is not.
    Broken {
        /// Where the chain breaks.
        seq: u64,
        /// How.
        fault: AuditFault,
    },
}

/// How a chain is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuditFault {
    /// A field or the hash of the row was altered.
    #[error("the row was altered")]
    Altered,
    /// The row is not there.
    #[error("the row is missing")]
    Missing,
    /// The row does not follow the one before it: that one was replaced, or rows were moved.
    #[error("the row does not follow the one before it")]
    Unlinked,
    /// There are more rows than were written.
    #[error("the row was not written by this program")]
    Added,
    /// The chain is whole, but is not the one whose end was noted.
    #[error("the chain is not the one whose end was noted")]
    Replaced,
}

/// A page of rows is asked for by these; empty texts: any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only rows before this one.
    pub before: Option<u64>,
    /// Only of this target.
    pub target: String,
    /// Only by this actor.
    pub actor: String,
    /// At most so many.
    pub limit: u32,
}

impl AuditRow {
    /// SHA-256 over every field but itself; texts are preceded by their length, so that no two rows read alike.
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

    /// As the command line and the API print it.
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
            "hash": hex(&self.hash),
        })
    }
}

impl AuditEnd {
    /// `SEQ:HASH`, to be noted elsewhere.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}:{}", self.seq, hex(&self.hash))
    }
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The row as it follows one with the hash `prev`.
pub(super) fn link(prev: &[u8; 32], row: AuditRow) -> AuditRow {
    let mut row = AuditRow { prev_hash: *prev, ..row };
    row.hash = row.computed_hash();
    row
}

/// Looks for the first break of a chain that is read page by page.
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
    /// Goes on behind rows that were looked at before.
    #[must_use]
    pub fn after(end: AuditEnd) -> ChainCheck {
        ChainCheck { end }
    }

    /// Takes the next row in order of `seq`; where it does not fit, how.
    ///
    /// # Errors
    /// The place of the break and the fault.
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

    /// What was found, given the end that was kept apart and, where there is one, the end that somebody noted.
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
    /// Rows from the newest back.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditRow>, StoreError> {
        let before = query.before.unwrap_or(i64::MAX as u64);
        let values = args![before, &query.target, &query.actor, query.limit.min(10_000)];
        self.pool.rows(&sql::AUDIT_BEFORE, values).await?.iter().map(audit_row).collect()
    }

    /// Reads the whole log and looks for the first row that is not as it was written. `noted`: the end of the chain as
    /// somebody kept it at some time; the log must still hold it.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
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
                noted_fits |=
                    noted.as_ref().is_some_and(|(seq, hash)| *seq == row.seq && *hash == hex(&row.hash));
            }
        }
        Ok(check.finish(kept, noted_fits))
    }

    /// The same for the rows behind those that were found whole at an earlier look. Where the log does not hold the end of
    /// these any more, the whole log is read.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
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

/// The end of the chain as it is kept apart.
async fn kept_end(tx: &mut Tx) -> Result<AuditEnd, StoreError> {
    let state = tx.row(&sql::STATE, args![]).await?;
    let state = state.ok_or(StoreError::Query { doing: sql::STATE.doing, err: sqlx::Error::RowNotFound })?;
    Ok(AuditEnd { seq: state.count("audit_seq")?, hash: state.hash("audit_hash")? })
}

/// Whether rows of one page, the newest first, are as they were written and follow each other.
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
