//! Options of the console, as written and as checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{ConfigError, listen_address};

/// Where the console is, and what it shows besides.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Console")]
pub struct AdminOptions {
    /// Where the console and its API (/admin) are, if not beside /v1; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDRESS")]
    pub admin_listen: Option<String>,
    /// The console is reached over TLS that something in front of this service ends: its cookies go over TLS only
    #[arg(long)]
    pub admin_behind_tls: bool,
    /// Quality curves of an evaluation, shown beside predictions; the default is MODEL with .curves.json in place of
    /// .gguf, where there is one
    #[arg(long, value_name = "FILE")]
    pub quality_curves: Option<PathBuf>,
}

/// The same, as checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where the console listens; none: where the service does.
    pub listen: Option<SocketAddr>,
    /// Cookies go over TLS only, whatever this service speaks itself.
    pub behind_tls: bool,
    /// Quality curves.
    pub quality_curves: Option<PathBuf>,
}

impl AdminOptions {
    /// Checks the options; `beside`: where quality curves lie if nobody says.
    ///
    /// # Errors
    /// [`ConfigError::Listen`] where the address is not one.
    pub(super) fn check(self, beside: PathBuf) -> Result<AdminConfig, ConfigError> {
        Ok(AdminConfig {
            listen: self.admin_listen.as_deref().map(listen_address).transpose()?,
            behind_tls: self.admin_behind_tls,
            quality_curves: self.quality_curves.or_else(|| beside.is_file().then_some(beside)),
        })
    }
}
