//! API keys: making, revoking and rotating them. Only their hashes are stored.

use serde_json::{Value, json};

use super::change::{Change, Expected, Fields, Recorded, fields};
use super::db::{Arg, Row, Statement, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, ApiKey, KeySecret, Scopes, Tenant, check_label};

/// The settings of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its name for people.
    pub label: String,
    /// What it allows.
    pub scopes: Scopes,
    /// When it expires, in milliseconds since 1970; `None` if never.
    pub expires_ms: Option<i64>,
}

impl Store {
    /// Returns every key, revoked ones too, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.all(&sql::KEYS).await
    }

    /// Returns a key by its public id.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such key, or as for [`Store::keys`].
    pub async fn key(&self, id: &str) -> Result<ApiKey, StoreError> {
        self.one(id).await
    }

    /// Makes a key. The secret is returned once and not stored.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such tenant, [`StoreError::Access`] if a value is out of its
    /// bounds, [`StoreError::Query`] if the database does not answer.
    pub async fn create_key(&self, new: &NewKey, by: &Actor) -> Result<(ApiKey, KeySecret), StoreError> {
        check_label("label", &new.label)?;
        let mut change = self.change(by).await?;
        change.known::<Tenant>(&new.tenant, Expected::Any).await?;
        let (key, secret) = change.new_key(new, None);
        Ok((change.put("create", None, key, json!({})).await?, secret))
    }

    /// Revokes a key: it is refused from now on.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such key, [`StoreError::Conflict`] if it is at another
    /// revision, [`StoreError::State`] if it is revoked already, [`StoreError::Query`] if the database does
    /// not answer.
    pub async fn revoke_key(&self, id: &str, expected: Expected, by: &Actor) -> Result<ApiKey, StoreError> {
        let mut change = self.change(by).await?;
        let old: ApiKey = change.known(id, expected).await?;
        if old.revoked_ms.is_some() {
            return Err(state(id, "is revoked already"));
        }
        let new = ApiKey { revision: old.revision + 1, revoked_ms: Some(change.at_ms), ..old.clone() };
        change.put("revoke", Some(&old), new, json!({})).await
    }

    /// Makes a key that replaces another one. The old key stays valid for `grace_ms` milliseconds, so that
    /// clients can switch. Returns the new key and its secret.
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
        let mut change = self.change(by).await?;
        let old: ApiKey = change.known(id, expected).await?;
        if !old.is_good(change.at_ms) {
            return Err(state(id, "is revoked or expired"));
        }
        let successor = NewKey {
            tenant: old.tenant.clone(),
            label: old.label.clone(),
            scopes: old.scopes,
            expires_ms: old.expires_ms,
        };
        let (key, secret) = change.new_key(&successor, Some(id));
        change.write(None, &key).await?;
        let end = change.at_ms.saturating_add(grace_ms.max(0));
        let expires_ms = Some(old.expires_ms.map_or(end, |at| at.min(end)));
        let ending = ApiKey { revision: old.revision + 1, expires_ms, ..old.clone() };
        change.put("rotate", Some(&old), ending, json!({ "new": key.id })).await?;
        Ok((key, secret))
    }

    /// Writes when keys were last used. This is no change of settings: no audit row, no new generation.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
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
    /// Makes a key, without writing it yet.
    fn new_key(&self, new: &NewKey, rotated_from: Option<&str>) -> (ApiKey, KeySecret) {
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
        (key, secret)
    }
}

impl Recorded for ApiKey {
    const NAME: &'static str = "key";
    const KIND: &'static str = "key";
    const READ: &'static Statement = &sql::KEY;
    const ADD: &'static Statement = &sql::KEY_ADD;
    const CHANGE: &'static Statement = &sql::KEY_CHANGE;

    fn read(row: &Row) -> Result<ApiKey, StoreError> {
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

    fn id(&self) -> &str {
        &self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn added(&self) -> Vec<Arg<'_>> {
        vec![
            (&self.id).into(),
            self.revision.into(),
            (&self.tenant).into(),
            (&self.label).into(),
            (&self.hash).into(),
            self.scopes.to_string().into(),
            self.created_ms.into(),
            (&self.created_by).into(),
            self.expires_ms.into(),
            self.revoked_ms.into(),
            self.last_used_ms.into(),
            self.rotated_from.as_deref().into(),
        ]
    }

    /// Without `last_used_ms`, which is written outside of changes.
    fn changed(&self) -> Vec<Arg<'_>> {
        vec![
            (&self.id).into(),
            self.revision.into(),
            (&self.label).into(),
            self.scopes.to_string().into(),
            self.expires_ms.into(),
            self.revoked_ms.into(),
        ]
    }

    fn fields(&self) -> Fields {
        let scopes: Vec<&str> = self.scopes.iter().map(|scope| scope.as_str()).collect();
        fields(json!({
            "tenant": self.tenant,
            "label": self.label,
            "scopes": scopes,
            "expires_ms": self.expires_ms,
            "revoked_ms": self.revoked_ms,
            "rotated_from": self.rotated_from,
        }))
    }
}

fn state(id: &str, why: &'static str) -> StoreError {
    StoreError::State { what: ApiKey::NAME, id: id.to_owned(), why }
}

/// Returns a key as the command line prints it, without secret and hash.
#[must_use]
pub fn key_json(key: &ApiKey) -> Value {
    let mut json = Value::Object(key.fields());
    json["id"] = json!(key.id);
    json["created_ms"] = json!(key.created_ms);
    json["created_by"] = json!(key.created_by);
    json["last_used_ms"] = json!(key.last_used_ms);
    json
}
