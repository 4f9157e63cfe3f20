//! `users list|add|set|login-code`: manages users of the admin console.

use std::io::Write;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::bootstrap::{PasswordArgs, print_password};
use super::columns::{self, Side};
use super::{DatabaseArgs, nothing_named};
use crate::access::{Actor, Role, User};
use crate::store::{Expected, LOGIN_CODE_MS, StoreError, UserChange, user_json};

/// `users`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud users add ben --role editor              a generated password, printed once\n  \
    baton-cloud users set ben --role viewer\n  \
    baton-cloud users set ben --new-password             ends ben's sessions\n  \
    baton-cloud users set ben --disabled true\n  \
    baton-cloud users login-code ann                     a way in if others' failed log-ins keep ann out\n\n\
    viewer: see settings; editor: change scenes and device classes; admin: change tenants, keys and users too.\n\
    `baton-cloud bootstrap` makes the first admin. The last admin cannot be disabled or get a lower role.")]
pub struct UsersCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: UserCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `users`.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// List every user
    List,
    /// Add a user
    Add {
        /// Name to log in with
        name: String,
        /// viewer, editor or admin
        #[arg(long, default_value = "viewer")]
        role: Role,
        /// The password.
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Change a user; settings that are not named stay
    Set {
        /// Name to log in with
        name: String,
        /// viewer, editor or admin
        #[arg(long)]
        role: Option<Role>,
        /// Whether the user may not log in; `true` ends their sessions
        #[arg(long)]
        disabled: Option<bool>,
        /// Generate a new password, or read it if --password-file is given
        #[arg(long)]
        new_password: bool,
        /// The password.
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Print a code for one log-in, with the password, however many log-ins have failed; good for 10 minutes
    LoginCode {
        /// Name to log in with
        name: String,
    },
}

pub(super) async fn run(command: UsersCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let json = command.database.json;
    let by = Actor::cli();
    let store = command.database.open().await?;
    let shown = match command.command {
        UserCommand::List => store.users().await,
        UserCommand::Add { name, role, password } => {
            let chosen = password.choose()?;
            let added = store.add_user(&name, role, &chosen.password, &by).await;
            store.close().await;
            let user = added.map_err(|err| match err {
                StoreError::Conflict { .. } => anyhow!("user `{name}` exists: change it by `users set`"),
                err => err.into(),
            })?;
            return print_password(&user.name, user.role.as_str(), &chosen, json, out).context("print");
        }
        UserCommand::Set { name, role, disabled, new_password, password } => {
            let wants = new_password || password.password_file.is_some();
            if role.is_none() && disabled.is_none() && !wants {
                return Err(nothing_named());
            }
            let chosen = if wants { Some(password.choose()?) } else { None };
            let change = UserChange {
                role,
                disabled,
                password: chosen.as_ref().map(|chosen| chosen.password.clone()),
            };
            let user = store.change_user(&name, &change, Expected::Any, &by).await?;
            if let Some(chosen) = &chosen {
                store.close().await;
                return print_password(&user.name, user.role.as_str(), chosen, json, out).context("print");
            }
            Ok(vec![user])
        }
        UserCommand::LoginCode { name } => {
            let code = store.add_login_code(&name, &by).await;
            store.close().await;
            return print_code(&name, &code?, json, out).context("print");
        }
    };
    store.close().await;
    print(&shown?, json, out).context("print")
}

fn print_code(name: &str, code: &str, json: bool, out: &mut impl Write) -> std::io::Result<()> {
    let minutes = LOGIN_CODE_MS / 60_000;
    if json {
        return writeln!(out, "{}", json!({ "name": name, "code": code, "minutes": minutes }));
    }
    writeln!(out, "code {code}   for one log-in of `{name}` within {minutes} minutes, with the password")
}

fn print(users: &[User], json: bool, out: &mut impl Write) -> std::io::Result<()> {
    if json {
        let value: Value = users.iter().map(user_json).collect();
        return writeln!(out, "{value}");
    }
    let cells = |user: &User| {
        let state = if user.disabled { "disabled" } else { "good" };
        [user.name.clone(), user.role.as_str().to_owned(), state.to_owned()]
    };
    let titles = ["user", "role", "state"];
    columns::write(titles.map(|title| (title, Side::Left)), users.iter().map(cells), out)
}
