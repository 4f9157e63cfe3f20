//! `bootstrap`: the first admin, without a default password.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use baton_terminal::errln;
use clap::Args;
use serde_json::json;

use super::DatabaseArgs;
use crate::access::Actor;
use crate::access::password::generate_password;
use crate::store::StoreError;

/// `bootstrap`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud bootstrap ann                              a password is made and printed once\n  \
    baton-cloud bootstrap ann --password-file secret.txt   the first line of a file\n  \
    echo \"$PASSWORD\" | baton-cloud bootstrap ann --password-file -\n\n\
    Refused where an admin exists: further users are made by `baton-cloud users add` or in the console at /admin.")]
pub struct BootstrapCommand {
    /// Name to log in by
    pub name: String,
    /// Where the password is read from: the first line of a file, or `-` for standard input
    #[command(flatten)]
    pub password: PasswordArgs,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Where a password comes from.
#[derive(Debug, Clone, Default, Args)]
pub struct PasswordArgs {
    /// Read the password from the first line of this file, or of standard input for `-`; without it one is made and
    /// printed once
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// A password, and whether it must be printed.
pub(super) struct Chosen {
    pub(super) password: String,
    pub(super) generated: bool,
}

impl PasswordArgs {
    /// Reads the password, or makes one.
    pub(super) fn choose(&self) -> anyhow::Result<Chosen> {
        let Some(path) = &self.password_file else {
            return Ok(Chosen { password: generate_password(), generated: true });
        };
        let mut line = String::new();
        if path == Path::new("-") {
            let input = std::io::stdin();
            if input.is_terminal() {
                return Ok(Chosen { password: typed()?, generated: false });
            }
            input.lock().read_line(&mut line).context("read the password from standard input")?;
        } else {
            let text = std::fs::read_to_string(path);
            line = text.with_context(|| format!("read the password from `{}`", path.display()))?;
        }
        let password = line.lines().next().unwrap_or_default().to_owned();
        if password.is_empty() {
            bail!("the password is empty");
        }
        Ok(Chosen { password, generated: false })
    }
}

/// A password that somebody types twice, unseen.
fn typed() -> anyhow::Result<String> {
    let ask = |what: &str| {
        // Hidden first: what is typed as soon as the question is there must not be shown.
        let _unseen = Unseen::begin().context("hide what is typed")?;
        errln!("{what} (it is not shown):");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).context("read the password from the terminal")?;
        anyhow::Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    };
    let password = ask("type the password")?;
    if password.is_empty() {
        bail!("the password is empty");
    }
    if ask("type it again")? != password {
        bail!("the two passwords differ: nothing is changed");
    }
    Ok(password)
}

/// While it lives, the terminal does not show what is typed.
struct Unseen(#[cfg(unix)] rustix::termios::Termios);

impl Unseen {
    #[cfg(unix)]
    fn begin() -> std::io::Result<Unseen> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // The end of a line is shown: the next question stands on a line of its own.
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Unseen(before))
    }

    #[cfg(not(unix))]
    fn begin() -> std::io::Result<Unseen> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "pass the password in a file"))
    }
}

#[cfg(unix)]
impl Drop for Unseen {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing.
        let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, &self.0);
    }
}

pub(super) async fn run(command: BootstrapCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let chosen = command.password.choose()?;
    let store = command.database.open().await?;
    let made = store.bootstrap(&command.name, &chosen.password, &Actor::cli()).await;
    store.close().await;
    let user = made.map_err(|err| match err {
        StoreError::State { .. } => anyhow!("an admin exists: make further users by `baton-cloud users add`"),
        err => anyhow::Error::new(err).context("make the first admin"),
    })?;
    print_password(&user.name, user.role.as_str(), &chosen, command.database.json, out).context("print")
}

/// Says who was made; a password that was made too, this once.
pub(super) fn print_password(
    name: &str,
    role: &str,
    chosen: &Chosen,
    json: bool,
    out: &mut impl Write,
) -> std::io::Result<()> {
    if json {
        let mut value = json!({ "name": name, "role": role });
        if chosen.generated {
            value["password"] = json!(chosen.password);
        }
        return writeln!(out, "{value}");
    }
    writeln!(out, "user `{name}` ({role})")?;
    if chosen.generated {
        writeln!(out, "password {}   shown this once: keep it now", chosen.password)?;
    }
    Ok(())
}
