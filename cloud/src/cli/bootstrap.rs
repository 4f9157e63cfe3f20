//! `bootstrap`: makes the first admin. There is no default password.

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
    baton-cloud bootstrap ann                              a generated password, printed once\n  \
    baton-cloud bootstrap ann --password-file secret.txt   the password in the first line of a file\n  \
    echo \"$PASSWORD\" | baton-cloud bootstrap ann --password-file -\n\n\
    Fails if an admin exists: add further users by `baton-cloud users add` or in the console at /admin.")]
pub struct BootstrapCommand {
    /// Name to log in with
    pub name: String,
    /// The password.
    #[command(flatten)]
    pub password: PasswordArgs,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The source of a password.
#[derive(Debug, Clone, Default, Args)]
pub struct PasswordArgs {
    /// Read the password from the first line of this file, or of standard input for `-`; without this option
    /// a password is generated and printed once
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// A password, and whether it must be printed.
pub(super) struct ChosenPassword {
    pub(super) password: String,
    pub(super) generated: bool,
}

impl PasswordArgs {
    /// Reads the password, or generates one.
    pub(super) fn choose(&self) -> anyhow::Result<ChosenPassword> {
        let Some(path) = &self.password_file else {
            return Ok(ChosenPassword { password: generate_password(), generated: true });
        };
        let mut line = String::new();
        if path == Path::new("-") {
            let input = std::io::stdin();
            if input.is_terminal() {
                return Ok(ChosenPassword { password: typed()?, generated: false });
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
        Ok(ChosenPassword { password, generated: false })
    }
}

/// Reads a password that the user types twice, without showing it.
fn typed() -> anyhow::Result<String> {
    let ask = |what: &str| {
        // Hidden before the question is shown, so that fast typing is not shown either.
        let _hidden = HiddenInput::begin().context("hide what is typed")?;
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

/// Keeps the terminal from showing what is typed, until it is dropped.
struct HiddenInput(#[cfg(unix)] rustix::termios::Termios);

impl HiddenInput {
    #[cfg(unix)]
    fn begin() -> std::io::Result<HiddenInput> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // The end of the line is shown, so that the next question is on a new line.
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(HiddenInput(before))
    }

    #[cfg(not(unix))]
    fn begin() -> std::io::Result<HiddenInput> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "pass the password in a file"))
    }
}

#[cfg(unix)]
impl Drop for HiddenInput {
    fn drop(&mut self) {
        // If the terminal is gone, nothing has to be restored.
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

/// Prints the user, and the password if it was generated.
pub(super) fn print_password(
    name: &str,
    role: &str,
    chosen: &ChosenPassword,
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
        writeln!(out, "password {}   shown only once: keep it now", chosen.password)?;
    }
    Ok(())
}
