//! Users: added, changed, and the first admin of all.

use serde_json::{Value, json};

use super::change::{Change, Expected};
use super::db::{Row, args};
use super::{Store, StoreError, sql};
use crate::access::{AccessError, Actor, Role, User, check_name};

const USER: &str = "user";

/// What changes of a user; none: it stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserChange {
    /// Another role.
    pub role: Option<Role>,
    /// Another password. Every session of the user ends, and no device of the user is known any more.
    pub password: Option<String>,
    /// Refused altogether, or again not. Every session of a refused user ends, as with another password.
    pub disabled: Option<bool>,
}

impl Store {
    /// Every user, by name.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn users(&self) -> Result<Vec<User>, StoreError> {
        self.pool.rows(&sql::USERS, args![]).await?.iter().map(user).collect()
    }

    /// One user.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::users`].
    pub async fn user(&self, name: &str) -> Result<User, StoreError> {
        let row = self.pool.row(&sql::USER, args![name]).await?;
        row.as_ref().map(user).transpose()?.ok_or_else(|| unknown(name))
    }

    /// Whether anybody can log in as an admin.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn has_admin(&self) -> Result<bool, StoreError> {
        let row = self.pool.row(&sql::ADMINS, args![]).await?;
        Ok(row.map(|row| row.count("n")).transpose()?.unwrap_or(0) > 0)
    }

    /// Makes the first admin; refused where there is one.
    ///
    /// # Errors
    /// [`StoreError::State`] where an admin exists, [`StoreError::Conflict`] where a user of this name does,
    /// [`StoreError::Access`] where name or password are not taken, [`StoreError::Query`] where the database does not
    /// answer.
    pub async fn bootstrap(&self, name: &str, password: &str, by: &Actor) -> Result<User, StoreError> {
        let hash = self.checked_hash(name, password).await?;
        let mut change = self.change(by, true).await?;
        if change.admins().await? > 0 {
            return Err(StoreError::State {
                what: "an admin",
                id: name.to_owned(),
                why: "cannot be made: there is one",
            });
        }
        let user = change.add_user(name, Role::Admin, &hash).await?;
        change.log("user.bootstrap", &target(name), &user_json(&user)).await?;
        change.commit().await?;
        Ok(user)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] where there is one of this name, or as for [`Store::bootstrap`].
    pub async fn add_user(
        &self,
        name: &str,
        role: Role,
        password: &str,
        by: &Actor,
    ) -> Result<User, StoreError> {
        let hash = self.checked_hash(name, password).await?;
        let mut change = self.change(by, true).await?;
        let user = change.add_user(name, role, &hash).await?;
        change.log("user.add", &target(name), &user_json(&user)).await?;
        change.commit().await?;
        Ok(user)
    }

    /// Changes a user. The last admin can neither be disabled nor become less.
    ///
    /// # Errors
    /// [`StoreError::State`] for the last admin, [`StoreError::Conflict`] where the user is at another revision, or as
    /// for [`Store::bootstrap`].
    pub async fn change_user(
        &self,
        name: &str,
        to: &UserChange,
        expected: Expected,
        by: &Actor,
    ) -> Result<User, StoreError> {
        let new_hash = match &to.password {
            Some(password) => Some(self.checked_hash(name, password).await?),
            None => None,
        };
        let mut change = self.change(by, true).await?;
        let row = change.tx.row(&sql::USER, args![name]).await?.ok_or_else(|| unknown(name))?;
        let (old, old_hash) = (user(&row)?, row.text("password_hash")?);
        expected.check(USER, name, Some(old.revision))?;
        let new = User {
            revision: old.revision + 1,
            role: to.role.unwrap_or(old.role),
            disabled: to.disabled.unwrap_or(old.disabled),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
            ..old.clone()
        };
        let hash = new_hash.as_ref().unwrap_or(&old_hash);
        let values =
            args![name, new.revision, new.role.as_str(), hash, new.disabled, new.updated_ms, &new.updated_by];
        change.tx.execute(&sql::USER_CHANGE, values).await?;
        let was_admin = old.role == Role::Admin && !old.disabled;
        if was_admin && change.admins().await? == 0 {
            return Err(StoreError::State { what: USER, id: name.to_owned(), why: "is the last admin" });
        }
        if new_hash.is_some() || new.disabled {
            change.tx.execute(&sql::SESSIONS_END, args![name]).await?;
            change.tx.execute(&sql::DEVICES_END, args![name]).await?;
        }
        let detail = json!({ "from": user_json(&old), "to": user_json(&new), "password": new_hash.map(|_| "changed") });
        change.log("user.change", &target(name), &detail).await?;
        change.commit().await?;
        Ok(new)
    }
}

impl Change {
    async fn admins(&mut self) -> Result<u64, StoreError> {
        let row = self.tx.row(&sql::ADMINS, args![]).await?;
        Ok(row.map(|row| row.count("n")).transpose()?.unwrap_or(0))
    }

    async fn add_user(&mut self, name: &str, role: Role, hash: &str) -> Result<User, StoreError> {
        let row = self.tx.row(&sql::USER, args![name]).await?;
        let old = row.as_ref().map(user).transpose()?;
        Expected::Absent.check(USER, name, old.map(|user| user.revision))?;
        let user = User {
            name: name.to_owned(),
            revision: 1,
            role,
            disabled: false,
            created_ms: self.at_ms,
            updated_ms: self.at_ms,
            updated_by: self.by.clone(),
        };
        let values = args![
            name,
            user.revision,
            role.as_str(),
            hash,
            user.disabled,
            user.created_ms,
            user.updated_ms,
            &user.updated_by
        ];
        self.tx.execute(&sql::USER_ADD, values).await?;
        Ok(user)
    }
}

impl Store {
    /// argon2id of a password.
    async fn checked_hash(&self, name: &str, password: &str) -> Result<String, StoreError> {
        check_name(USER, name)?;
        let password = password.to_owned();
        let hashed = self.logins.hashing.wait().await.compute(move |space| space.hash(&password)).await;
        Ok(hashed.map_err(AccessError::from)?)
    }
}

fn target(name: &str) -> String {
    format!("user/{name}")
}

fn unknown(name: &str) -> StoreError {
    StoreError::Unknown { what: USER, id: name.chars().take(64).collect() }
}

/// A user as the command line, the API and the audit log have it.
#[must_use]
pub fn user_json(user: &User) -> Value {
    json!({
        "name": user.name,
        "role": user.role.as_str(),
        "disabled": user.disabled,
        "created_ms": user.created_ms,
        "updated_ms": user.updated_ms,
        "updated_by": user.updated_by,
    })
}

pub(super) fn user(row: &Row) -> Result<User, StoreError> {
    Ok(User {
        name: row.text("name")?,
        revision: row.count("revision")?,
        role: row.parsed("role")?,
        disabled: row.flag("disabled")?,
        created_ms: row.int("created_ms")?,
        updated_ms: row.int("updated_ms")?,
        updated_by: row.text("updated_by")?,
    })
}
