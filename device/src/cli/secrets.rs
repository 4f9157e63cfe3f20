//! The options that say where secrets come from, and `baton passphrase`.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Context as _;
use baton_terminal::outln;
use clap::Args;

use super::heading;
use crate::secrets::{KEY_FILES, KeyFile, Keys, SecretSource};
use crate::settings::Settings;

/// Text below the options.
pub(super) const HELP: &str = "\
Keys are encrypted at their next use if a passphrase is given, as in
  baton config set passphrase-command 'secret-tool lookup service baton'
To change the passphrase: `baton passphrase --remove` with the old one, then the next command with the new one.";

/// `baton passphrase`.
#[derive(Debug, Args)]
pub(super) struct PassphraseCommandArgs {
    /// Write the encrypted keys as plain files of this user alone; without this, say how they are
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// Folder for settings [default: the platform's]
    #[arg(long, env = crate::settings::CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
}

/// Runs `baton passphrase`.
///
/// # Errors
/// Fails if a key cannot be read, does not open with the passphrase, or cannot be written.
pub(super) fn run(args: PassphraseCommandArgs) -> anyhow::Result<()> {
    let settings = Settings::open(args.config_dir);
    let keys = args.passphrase.keys(&settings).context("no folder for settings: pass --config-dir")?;
    for name in KEY_FILES {
        if args.remove {
            keys.unseal(name)?;
        }
        outln!(
            "{name}: {}",
            match keys.look(name)? {
                KeyFile::Missing => "not made yet",
                KeyFile::Plain => "a plain file that only this user can read",
                KeyFile::Sealed => "encrypted",
            }
        )?;
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    /// Key for the cloud service
    #[arg(long, env = "BATON_CLOUD_KEY", value_name = "KEY", hide_env_values = true, help_heading = heading::CLOUD)]
    cloud_key: Option<String>,
    /// Command that prints the key for the cloud service, such as one of the system's key store
    ///
    /// It runs if the cloud is used and no key is given. Examples: `pass show baton`; on Linux
    /// `secret-tool lookup service baton`; on macOS `security find-generic-password -s baton -w`.
    #[arg(long, env = "BATON_CLOUD_KEY_COMMAND", value_name = "COMMAND", hide_short_help = true, help_heading = heading::CLOUD)]
    cloud_key_command: Option<String>,
    #[arg(skip)]
    cloud_key_read: OnceLock<String>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// Where the passphrase comes from that encrypts the keys of this device.
#[derive(Debug, Clone, Args)]
pub(super) struct PassphraseArgs {
    /// Command that prints the passphrase for the keys of this device, such as one of the system's key store
    ///
    /// The keys in the settings folder are then encrypted with it; without it they are in files that only
    /// this user can read. It runs once, if a key is needed. `baton passphrase --remove` ends that.
    #[arg(long, global = true, env = "BATON_PASSPHRASE_COMMAND", value_name = "COMMAND", conflicts_with = "passphrase_file", hide_short_help = true, help_heading = heading::MODEL)]
    passphrase_command: Option<String>,
    /// File whose first line is that passphrase
    #[arg(long, global = true, env = "BATON_PASSPHRASE_FILE", value_name = "FILE", hide_short_help = true, help_heading = heading::MODEL)]
    passphrase_file: Option<PathBuf>,
    #[arg(skip)]
    keys: OnceLock<Keys>,
}

impl SecretArgs {
    /// Returns the key for the cloud, if there is one. Its command runs once.
    ///
    /// # Errors
    /// Fails if the command gives none.
    pub(super) fn cloud_key(&self) -> anyhow::Result<Option<&str>> {
        let (None, Some(command)) = (&self.cloud_key, &self.cloud_key_command) else {
            return Ok(self.cloud_key.as_deref());
        };
        if self.cloud_key_read.get().is_none() {
            let key = SecretSource::Command(command.clone()).read();
            let key = key.context("get the key for the cloud by --cloud-key-command")?;
            // Nothing reads it beside this.
            drop(self.cloud_key_read.set(key));
        }
        Ok(self.cloud_key_read.get().map(String::as_str))
    }

    /// Returns the keys of this device; `None` if there is no folder for settings.
    pub(super) fn keys(&self, settings: &Settings) -> Option<Keys> {
        self.passphrase.keys(settings)
    }
}

impl PassphraseArgs {
    /// Returns the keys of this device; `None` if there is no folder for settings. All share one passphrase,
    /// which is read once.
    pub(super) fn keys(&self, settings: &Settings) -> Option<Keys> {
        let folder = settings.folder()?;
        let make = || {
            let command = self.passphrase_command.clone().map(SecretSource::Command);
            let source = command.or_else(|| self.passphrase_file.clone().map(SecretSource::File));
            Keys::new(folder, source)
        };
        Some(self.keys.get_or_init(make).clone())
    }
}
