//! Changes: one transaction holds the change, its audit row, and the new generation that replicas look for.
//!
//! Always: either all three are there or none. Changes wait for each other (a lock on the one row of
//! `service_state`), so that their order in the audit log is the order in which they happened.

use std::sync::Arc;

use serde_json::Value;

use super::audit::{AuditRow, link};
use super::db::{Tx, args};
use super::snapshot::Shared;
use super::{Store, StoreError, now_ms, sql};
use crate::access::Actor;

/// What a change is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever there is.
    Any,
    /// That there is none yet.
    Absent,
    /// This revision, as it was read.
    Revision(u64),
    /// Of a scene: that this version is in force, whatever drafts there are; 0: none. Of anything else: as a revision.
    Version(u32),
}

impl From<Option<u32>> for Expected {
    /// The version of a scene that must be in force, where one is named.
    fn from(version: Option<u32>) -> Expected {
        version.map_or(Expected::Any, Expected::Version)
    }
}

impl Expected {
    /// Checks the revision that there is; none: nothing is there.
    pub(super) fn check(self, what: &'static str, id: &str, current: Option<u64>) -> Result<(), StoreError> {
        let conflict = |expected| {
            let current = current.unwrap_or(0);
            Err(StoreError::Conflict { what, id: id.to_owned(), expected, current })
        };
        match self {
            Expected::Absent if current.is_some() => conflict(0),
            Expected::Revision(expected) if current != Some(expected) => conflict(expected),
            Expected::Version(expected) if current.unwrap_or(0) != u64::from(expected) => {
                conflict(expected.into())
            }
            Expected::Any | Expected::Absent | Expected::Revision(_) | Expected::Version(_) => Ok(()),
        }
    }
}

/// A change under way; undone where it is dropped.
pub(super) struct Change {
    pub(super) tx: Tx,
    /// When it happens, in milliseconds since 1970.
    pub(super) at_ms: i64,
    /// Who does it.
    pub(super) by: String,
    seq: u64,
    hash: [u8; 32],
    /// Where this process's own watch hears of it; none: nobody needs to.
    told: Option<Arc<Shared>>,
}

impl Store {
    /// Begins a change; `tells`: replicas must hear of it.
    pub(super) async fn change(&self, by: &Actor, tells: bool) -> Result<Change, StoreError> {
        let mut tx = self.pool.begin_write().await?;
        let state = tx.row(&sql::STATE_LOCK, args![i64::from(tells)]).await?;
        let state =
            state.ok_or(StoreError::Query { doing: "begin a change", err: sqlx::Error::RowNotFound })?;
        let (seq, hash) = (state.count("audit_seq")?, state.hash("audit_hash")?);
        let told = tells.then(|| self.shared.clone());
        Ok(Change { tx, at_ms: now_ms(), by: by.as_str().to_owned(), seq, hash, told })
    }
}

impl Change {
    /// Adds what is done to the audit log.
    pub(super) async fn log(&mut self, action: &str, target: &str, detail: &Value) -> Result<(), StoreError> {
        let row = link(
            &self.hash,
            AuditRow {
                seq: self.seq + 1,
                at_ms: self.at_ms,
                actor: self.by.clone(),
                action: action.to_owned(),
                target: target.to_owned(),
                detail: detail.to_string(),
                prev_hash: self.hash,
                hash: [0; 32],
            },
        );
        let values = args![
            row.seq,
            row.at_ms,
            &row.actor,
            &row.action,
            &row.target,
            &row.detail,
            &row.prev_hash,
            &row.hash
        ];
        self.tx.execute(&sql::AUDIT_ADD, values).await?;
        (self.seq, self.hash) = (row.seq, row.hash);
        Ok(())
    }

    /// Makes it last.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.tx.execute(&sql::STATE_AUDITED, args![self.seq, &self.hash]).await?;
        self.tx.commit().await?;
        if let Some(shared) = self.told {
            shared.tell();
        }
        Ok(())
    }
}
