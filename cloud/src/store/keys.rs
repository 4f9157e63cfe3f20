//! API keys: made, changed, revoked, replaced. Only hashes are here.

use serde_json::{Value, json};

use super::change::{Change, Expected};
use super::db::{Row, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, ApiKey, KeySecret, Scopes, check_label};

const KEY: &str = "key";

/// What a new key is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Whose it is.
    pub tenant: String,
    /// What people call it.
    pub label: String,
    /// What it allows.
    pub scopes: Scopes,
    /// From when on it is refused, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
}

impl Store {
    /// Every key, revoked ones too, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.pool.rows(&sql::KEYS, args![]).await?.iter().map(key).collect()
    }

    /// One key by its public id.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::keys`].
    pub async fn key(&self, id: &str) -> Result<ApiKey, StoreError> {
        let row = self.pool.row(&sql::KEY, args![id]).await?;
        row.as_ref().map(key).transpose()?.ok_or_else(|| unknown(id))
    }

    /// Makes a key. The secret is returned once and kept nowhere.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] where there is no such tenant, [`StoreError::Access`] where a value is out of its
    /// bounds, [`StoreError::Query`] where the database does not answer.
    pub async fn create_key(&self, new: &NewKey, by: &Actor) -> Result<(ApiKey, KeySecret), StoreError> {
        check_label("label", &new.label)?;
        let mut change = self.change(by, true).await?;
        if change.tx.row(&sql::TENANT, args![&new.tenant]).await?.is_none() {
            let id = new.tenant.chars().take(64).collect();
            return Err(StoreError::Unknown { what: "tenant", id });
        }
        let made = change.add_key(new, None).await?;
        change.log("key.create", &target(&made.0.id), &key_json(&made.0)).await?;
        change.commit().await?;
        Ok(made)
    }

    /// Refuses a key from now on.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::Conflict`], [`StoreError::State`] where it is revoked already,
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn revoke_key(&self, id: &str, expected: Expected, by: &Actor) -> Result<ApiKey, StoreError> {
        let mut change = self.change(by, true).await?;
        let mut key = change.key(id, expected).await?;
        if key.revoked_ms.is_some() {
            return Err(StoreError::State { what: KEY, id: id.to_owned(), why: "is revoked already" });
        }
        key.revoked_ms = Some(change.at_ms);
        change.keep_key(&mut key).await?;
        change.log("key.revoke", &target(id), &key_json(&key)).await?;
        change.commit().await?;
        Ok(key)
    }

    /// Makes a key that replaces another one; the old one is good for `grace_ms` more, so that callers can change
    /// over. Returns the new key and its secret.
    ///
    /// # Errors
    /// As for [`Store::revoke_key`].
    pub async fn rotate_key(
        &self,
        id: &str,
        grace_ms: i64,
        expected: Expected,
        by: &Actor,
    ) -> Result<(ApiKey, KeySecret), StoreError> {
        let mut change = self.change(by, true).await?;
        let mut old = change.key(id, expected).await?;
        if !old.is_good(change.at_ms) {
            return Err(StoreError::State { what: KEY, id: id.to_owned(), why: "is revoked or expired" });
        }
        let new = NewKey {
            tenant: old.tenant.clone(),
            label: old.label.clone(),
            scopes: old.scopes,
            expires_ms: old.expires_ms,
        };
        let made = change.add_key(&new, Some(id)).await?;
        let end = change.at_ms.saturating_add(grace_ms.max(0));
        old.expires_ms = Some(old.expires_ms.map_or(end, |at| at.min(end)));
        change.keep_key(&mut old).await?;
        let detail = json!({ "new": made.0.id, "old_expires_ms": old.expires_ms });
        change.log("key.rotate", &target(id), &detail).await?;
        change.commit().await?;
        Ok(made)
    }

    /// Notes when keys were last used. Not a change of settings: no audit row, no new generation.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn note_key_uses(&self, uses: &[(String, i64)]) -> Result<(), StoreError> {
        if uses.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin_write().await?;
        for (id, at_ms) in uses {
            tx.execute(&sql::KEY_USED, args![id, *at_ms]).await?;
        }
        tx.commit().await
    }
}

impl Change {
    async fn key(&mut self, id: &str, expected: Expected) -> Result<ApiKey, StoreError> {
        let row = self.tx.row(&sql::KEY, args![id]).await?;
        let found = row.as_ref().map(key).transpose()?.ok_or_else(|| unknown(id))?;
        expected.check(KEY, id, Some(found.revision))?;
        Ok(found)
    }

    async fn add_key(
        &mut self,
        new: &NewKey,
        rotated_from: Option<&str>,
    ) -> Result<(ApiKey, KeySecret), StoreError> {
        let secret = KeySecret::generate();
        let key = ApiKey {
            id: secret.id().to_owned(),
            revision: 1,
            tenant: new.tenant.clone(),
            label: new.label.clone(),
            hash: secret.hash(),
            scopes: new.scopes,
            created_ms: self.at_ms,
            created_by: self.by.clone(),
            expires_ms: new.expires_ms,
            revoked_ms: None,
            last_used_ms: None,
            rotated_from: rotated_from.map(str::to_owned),
        };
        let scopes = key.scopes.to_string();
        let values = args![
            &key.id,
            key.revision,
            &key.tenant,
            &key.label,
            &key.hash,
            &scopes,
            key.created_ms,
            &key.created_by,
            key.expires_ms,
            key.revoked_ms,
            key.last_used_ms,
            rotated_from
        ];
        self.tx.execute(&sql::KEY_ADD, values).await?;
        Ok((key, secret))
    }

    async fn keep_key(&mut self, key: &mut ApiKey) -> Result<(), StoreError> {
        key.revision += 1;
        let scopes = key.scopes.to_string();
        let values = args![&key.id, key.revision, &key.label, &scopes, key.expires_ms, key.revoked_ms];
        self.tx.execute(&sql::KEY_CHANGE, values).await?;
        Ok(())
    }
}

fn target(id: &str) -> String {
    format!("key/{id}")
}

fn unknown(id: &str) -> StoreError {
    StoreError::Unknown { what: KEY, id: id.chars().take(64).collect() }
}

/// A key as the command line, the API and the audit log have it: never its secret, nor its hash.
#[must_use]
pub fn key_json(key: &ApiKey) -> Value {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    json!({
        "id": key.id,
        "tenant": key.tenant,
        "label": key.label,
        "scopes": scopes,
        "created_ms": key.created_ms,
        "created_by": key.created_by,
        "expires_ms": key.expires_ms,
        "revoked_ms": key.revoked_ms,
        "last_used_ms": key.last_used_ms,
        "rotated_from": key.rotated_from,
    })
}

pub(super) fn key(row: &Row) -> Result<ApiKey, StoreError> {
    Ok(ApiKey {
        id: row.text("id")?,
        revision: row.count("revision")?,
        tenant: row.text("tenant")?,
        label: row.text("label")?,
        hash: row.hash("hash")?,
        scopes: row.parsed("scopes")?,
        created_ms: row.int("created_ms")?,
        created_by: row.text("created_by")?,
        expires_ms: row.opt_int("expires_ms")?,
        revoked_ms: row.opt_int("revoked_ms")?,
        last_used_ms: row.opt_int("last_used_ms")?,
        rotated_from: row.opt_text("rotated_from")?,
    })
}
