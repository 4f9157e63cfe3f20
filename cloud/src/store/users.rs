//! Users: adding and changing them, and making the first admin.

use serde_json::{Value, json};

use super::change::{Change, Expected, Fields, Recorded, fields};
use super::db::{Arg, Row, Statement, args};
use super::{Store, StoreError, sql};
use crate::access::{AccessError, Actor, Role, User, check_name};

/// A user with the hash of the password.
struct Account {
    user: User,
    password_hash: String,
}

/// Changes of a user. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserChange {
    /// The new role.
    pub role: Option<Role>,
    /// The new password. It ends every session of the user and forgets every known device.
    pub password: Option<String>,
    /// Whether the user may not log in. Disabling ends every session and forgets every known device.
    pub disabled: Option<bool>,
}

impl Store {
    /// Returns every user, by name.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn users(&self) -> Result<Vec<User>, StoreError> {
        self.pool.rows(&sql::USERS, args![]).await?.iter().map(user).collect()
    }

    /// Returns one user.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such user, or as for [`Store::users`].
    pub async fn user(&self, name: &str) -> Result<User, StoreError> {
        Ok(self.one::<Account>(name).await?.user)
    }

    /// Returns whether there is an admin who may log in.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn has_admin(&self) -> Result<bool, StoreError> {
        let row = self.pool.row(&sql::ADMINS, args![]).await?;
        Ok(row.map(|row| row.count("n")).transpose()?.unwrap_or(0) > 0)
    }

    /// Makes the first admin. Fails if there is one.
    ///
    /// # Errors
    /// [`StoreError::State`] if an admin exists, [`StoreError::Conflict`] if a user of this name exists,
    /// [`StoreError::Access`] if name or password are not valid, [`StoreError::Query`] if the database does
    /// not answer.
    pub async fn bootstrap(&self, name: &str, password: &str, by: &Actor) -> Result<User, StoreError> {
        let password_hash = self.checked_hash(name, password).await?;
        let mut change = self.change(by).await?;
        if change.admins().await? > 0 {
            return Err(StoreError::State {
                what: "an admin",
                id: name.to_owned(),
                why: "cannot be made: there is one already",
            });
        }
        let account = change.new_account(name, Role::Admin, password_hash).await?;
        Ok(change.put("bootstrap", None, account, json!({})).await?.user)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if a user of this name exists, or as for [`Store::bootstrap`].
    pub async fn add_user(
        &self,
        name: &str,
        role: Role,
        password: &str,
        by: &Actor,
    ) -> Result<User, StoreError> {
        let password_hash = self.checked_hash(name, password).await?;
        let mut change = self.change(by).await?;
        let account = change.new_account(name, role, password_hash).await?;
        Ok(change.put("add", None, account, json!({})).await?.user)
    }

    /// Changes a user. The last admin cannot be disabled or get a lower role.
    ///
    /// # Errors
    /// [`StoreError::State`] for the last admin, [`StoreError::Conflict`] if the user is at another revision,
    /// or as for [`Store::bootstrap`].
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
        let mut change = self.change(by).await?;
        let old: Account = change.known(name, expected).await?;
        let new_password = new_hash.is_some();
        let new = Account {
            user: User {
                revision: old.user.revision + 1,
                role: to.role.unwrap_or(old.user.role),
                disabled: to.disabled.unwrap_or(old.user.disabled),
                updated_ms: change.at_ms,
                updated_by: change.by.clone(),
                ..old.user.clone()
            },
            password_hash: new_hash.unwrap_or_else(|| old.password_hash.clone()),
        };
        change.write(Some(&old), &new).await?;
        let was_admin = old.user.role == Role::Admin && !old.user.disabled;
        if was_admin && change.admins().await? == 0 {
            let why = "is the last admin";
            return Err(StoreError::State { what: Account::NAME, id: name.to_owned(), why });
        }
        if new_password || new.user.disabled {
            change.tx.execute(&sql::SESSIONS_END, args![name]).await?;
            change.tx.execute(&sql::DEVICES_END, args![name]).await?;
        }
        let more = if new_password { json!({ "password": "changed" }) } else { json!({}) };
        change.record::<Account>("change", name, (Some(old.fields()), Some(new.fields())), more).await?;
        Ok(new.user)
    }
}

impl Change {
    async fn admins(&mut self) -> Result<u64, StoreError> {
        let row = self.tx.row(&sql::ADMINS, args![]).await?;
        Ok(row.map(|row| row.count("n")).transpose()?.unwrap_or(0))
    }

    /// Makes an account, without writing it yet.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if a user of this name exists.
    async fn new_account(
        &mut self,
        name: &str,
        role: Role,
        password_hash: String,
    ) -> Result<Account, StoreError> {
        self.find::<Account>(name, Expected::Absent).await?;
        let user = User {
            name: name.to_owned(),
            revision: 1,
            role,
            disabled: false,
            created_ms: self.at_ms,
            updated_ms: self.at_ms,
            updated_by: self.by.clone(),
        };
        Ok(Account { user, password_hash })
    }
}

impl Recorded for Account {
    const NAME: &'static str = "user";
    const KIND: &'static str = "user";
    const READ: &'static Statement = &sql::USER;
    const ADD: &'static Statement = &sql::USER_ADD;
    const CHANGE: &'static Statement = &sql::USER_CHANGE;

    fn read(row: &Row) -> Result<Account, StoreError> {
        Ok(Account { user: user(row)?, password_hash: row.text("password_hash")? })
    }

    fn id(&self) -> &str {
        &self.user.name
    }

    fn revision(&self) -> u64 {
        self.user.revision
    }

    fn added(&self) -> Vec<Arg<'_>> {
        vec![
            (&self.user.name).into(),
            self.user.revision.into(),
            self.user.role.as_str().into(),
            (&self.password_hash).into(),
            self.user.disabled.into(),
            self.user.created_ms.into(),
            self.user.updated_ms.into(),
            (&self.user.updated_by).into(),
        ]
    }

    fn fields(&self) -> Fields {
        fields(json!({ "role": self.user.role.as_str(), "disabled": self.user.disabled }))
    }
}

impl Store {
    /// Checks name and password, and returns the argon2id hash of the password.
    async fn checked_hash(&self, name: &str, password: &str) -> Result<String, StoreError> {
        check_name(Account::NAME, name)?;
        let password = password.to_owned();
        let hashed = self.logins.hashing.wait().await.compute(move |space| space.hash(&password)).await;
        Ok(hashed.map_err(AccessError::from)?)
    }
}

/// Returns a user as the command line prints it.
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
