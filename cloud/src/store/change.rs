//! Changes: one transaction holds the change, its audit row, and the new generation number that replicas
//! compare.
//!
//! Scenes, device classes, tenants, keys and users are all changed in the same way. [`Change::find`] or
//! [`Change::known`] reads the current state and checks that the change is based on it. [`Change::put`]
//! writes the new state and the audit row, which names each field that differs, and commits. Always: either
//! all three are written or none. Changes wait for each other (a lock on the one row of `service_state`), so
//! the audit log has them in the order in which they happened.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::audit::{AuditRow, link};
use super::db::{Arg, Row, Statement, Tx, args};
use super::snapshot::Shared;
use super::{Store, StoreError, now_ms, sql};
use crate::access::Actor;

/// The fields of a record as the audit log shows them, by name. Never a secret.
pub(super) type Fields = Map<String, Value>;

/// A kind of record that is stored in a row with an id and a revision, and whose changes are audited.
pub(super) trait Recorded: Sized {
    /// Its name in messages.
    const NAME: &'static str;
    /// Its name in the audit log: `KIND/ID` is changed by `KIND.VERB`.
    const KIND: &'static str;
    /// Reads the row of an id.
    const READ: &'static Statement;
    /// Adds a row.
    const ADD: &'static Statement;
    /// Changes a row.
    const CHANGE: &'static Statement;

    /// Reads a row.
    fn read(row: &Row) -> Result<Self, StoreError>;

    /// Returns its id.
    fn id(&self) -> &str;

    /// Returns its revision, which every change increases by 1.
    fn revision(&self) -> u64;

    /// Returns the number that `expected` is compared with; `None` if there is none.
    fn current(&self, _expected: Expected) -> Option<u64> {
        Some(self.revision())
    }

    /// Returns the values of `ADD`, in its order.
    fn added(&self) -> Vec<Arg<'_>>;

    /// Returns the values of `CHANGE`, in its order.
    fn changed(&self) -> Vec<Arg<'_>> {
        self.added()
    }

    /// Returns the fields that the audit log shows.
    fn fields(&self) -> Fields;
}

/// The state that a change is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Any state.
    Any,
    /// The record does not exist yet.
    Absent,
    /// The record has this revision.
    Revision(u64),
    /// For a scene: this version is in force (0: none), whatever drafts there are. For other records: like a
    /// revision.
    Version(u32),
}

impl From<Option<u32>> for Expected {
    /// Expects this version of a scene to be in force; anything if `None`.
    fn from(version: Option<u32>) -> Expected {
        version.map_or(Expected::Any, Expected::Version)
    }
}

impl Expected {
    /// Checks the current revision; `None` if the record does not exist.
    fn check(self, what: &'static str, id: &str, current: Option<u64>) -> Result<(), StoreError> {
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

/// A change in progress, rolled back if it is dropped.
pub(super) struct Change {
    pub(super) tx: Tx,
    /// When it happens, in milliseconds since 1970.
    pub(super) at_ms: i64,
    /// Who does it.
    pub(super) by: String,
    seq: u64,
    hash: [u8; 32],
    /// Wakes this process's own watch; `None` if replicas do not need to know of the change.
    told: Option<Arc<Shared>>,
}

impl Store {
    /// Reads all records that a statement finds.
    pub(super) async fn all<T: Recorded>(&self, statement: &Statement) -> Result<Vec<T>, StoreError> {
        self.pool.rows(statement, args![]).await?.iter().map(T::read).collect()
    }

    /// Reads the record of this id.
    pub(super) async fn one<T: Recorded>(&self, id: &str) -> Result<T, StoreError> {
        let row = self.pool.row(T::READ, args![id]).await?;
        row.as_ref().map(T::read).transpose()?.ok_or_else(|| unknown::<T>(id))
    }

    /// Begins a change of settings that replicas must learn of.
    pub(super) async fn change(&self, by: &Actor) -> Result<Change, StoreError> {
        self.begin(by, true).await
    }

    /// Begins a change that replicas need not learn of, with an audit row.
    pub(super) async fn note(&self, by: &Actor) -> Result<Change, StoreError> {
        self.begin(by, false).await
    }

    async fn begin(&self, by: &Actor, tells: bool) -> Result<Change, StoreError> {
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
    /// Reads the record of this id, if there is one, and checks that the change is based on it.
    pub(super) async fn find<T: Recorded>(
        &mut self,
        id: &str,
        expected: Expected,
    ) -> Result<Option<T>, StoreError> {
        let row = self.tx.row(T::READ, args![id]).await?;
        let found = row.as_ref().map(T::read).transpose()?;
        expected.check(T::NAME, id, found.as_ref().and_then(|found| found.current(expected)))?;
        Ok(found)
    }

    /// Does the same as [`Change::find`], and fails if there is no such record.
    pub(super) async fn known<T: Recorded>(&mut self, id: &str, expected: Expected) -> Result<T, StoreError> {
        let found: Option<T> = self.find(id, Expected::Any).await?;
        let found = found.ok_or_else(|| unknown::<T>(id))?;
        expected.check(T::NAME, id, found.current(expected))?;
        Ok(found)
    }

    /// Writes a row, as a new one or in place of `old`.
    pub(super) async fn write<T: Recorded>(&mut self, old: Option<&T>, new: &T) -> Result<(), StoreError> {
        let (statement, values) = match old {
            Some(_) => (T::CHANGE, new.changed()),
            None => (T::ADD, new.added()),
        };
        self.tx.execute(statement, &values).await?;
        Ok(())
    }

    /// Writes a row and an audit row of what differs from `old`, and commits. The audit row includes `more`.
    /// Returns the new record.
    pub(super) async fn put<T: Recorded>(
        mut self,
        verb: &str,
        old: Option<&T>,
        new: T,
        more: Value,
    ) -> Result<T, StoreError> {
        self.write(old, &new).await?;
        self.record::<T>(verb, new.id(), (old.map(T::fields), Some(new.fields())), more).await?;
        Ok(new)
    }

    /// Ends a change: adds an audit row of `more` and of what differs between two states, and commits. A
    /// state is `None` if the record did not exist before, or is gone.
    pub(super) async fn record<T: Recorded>(
        mut self,
        verb: &str,
        id: &str,
        (before, after): (Option<Fields>, Option<Fields>),
        more: Value,
    ) -> Result<(), StoreError> {
        let mut detail = more;
        detail["changes"] = changes(before, after);
        self.log(&format!("{}.{verb}", T::KIND), &format!("{}/{id}", T::KIND), &detail).await?;
        self.commit().await
    }

    /// Adds a row to the audit log.
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

    /// Commits the transaction and wakes this process's watch.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.tx.execute(&sql::STATE_AUDITED, args![self.seq, &self.hash]).await?;
        self.tx.commit().await?;
        if let Some(shared) = self.told {
            shared.tell();
        }
        Ok(())
    }
}

/// Returns the error for an id that names nothing.
pub(super) fn unknown<T: Recorded>(id: &str) -> StoreError {
    StoreError::Unknown { what: T::NAME, id: id.chars().take(64).collect() }
}

/// Returns the fields of a JSON object.
pub(super) fn fields(object: Value) -> Fields {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Returns the fields that differ, by name: `{"xi": {"from": 0.25, "to": 0.5}}`. A new record has no `from`,
/// one that is gone has no `to`.
fn changes(before: Option<Fields>, after: Option<Fields>) -> Value {
    let both = before.is_some() && after.is_some();
    let mut changes = Map::new();
    for (side, fields) in [("from", before), ("to", after)] {
        for (name, value) in fields.into_iter().flatten() {
            changes.entry(name).or_insert_with(|| json!({}))[side] = value;
        }
    }
    if both {
        changes.retain(|_, change| change["from"] != change["to"]);
    }
    Value::Object(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_what_differs_is_recorded() {
        let state = |a: u32, b: &str| Some(fields(json!({ "a": a, "b": b })));
        assert_eq!(changes(state(1, "x"), state(2, "x")), json!({ "a": { "from": 1, "to": 2 } }));
        assert_eq!(changes(state(1, "x"), state(1, "x")), json!({}));
        assert_eq!(changes(None, state(1, "x")), json!({ "a": { "to": 1 }, "b": { "to": "x" } }));
        assert_eq!(changes(state(1, ""), None), json!({ "a": { "from": 1 }, "b": { "from": "" } }));
    }

    #[test]
    fn a_change_is_based_on_what_there_is() {
        let check = |expected: Expected, current: Option<u64>, want: bool| {
            assert_eq!(expected.check("thing", "a", current).is_ok(), want, "{expected:?} {current:?}");
        };
        check(Expected::Any, None, true);
        check(Expected::Absent, None, true);
        check(Expected::Absent, Some(1), false);
        check(Expected::Revision(2), Some(2), true);
        check(Expected::Revision(2), Some(3), false);
        check(Expected::Revision(2), None, false);
        check(Expected::Version(0), None, true);
        check(Expected::Version(1), None, false);
    }
}
