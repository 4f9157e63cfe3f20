//! Options of the console, as written and as checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{ConfigError, listen_address};

/// Options of the console.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Console")]
pub struct AdminOptions {
    /// Address of the console and its API (/admin), if it is not that of /v1; port 0 takes a free port and
    /// prints it
    #[arg(long, value_name = "ADDRESS")]
    pub admin_listen: Option<String>,
    /// A proxy in front of this service ends TLS for the console: its cookies are sent over TLS only
    #[arg(long)]
    pub admin_behind_tls: bool,
    /// Quality curves of an evaluation, shown next to predictions; the default is MODEL with .curves.json in
    /// place of .gguf, if that file exists
    #[arg(long, value_name = "FILE")]
    pub quality_curves: Option<PathBuf>,
}

/// Options of the console, as checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address of the console, or `None` for that of the service.
    pub listen: Option<SocketAddr>,
    /// Whether cookies are sent over TLS only, even if this service itself has no TLS.
    pub behind_tls: bool,
    /// Quality curves.
    pub quality_curves: Option<PathBuf>,
}

impl AdminOptions {
    /// Checks the options. `beside` is the default file of quality curves, next to the model.
    ///
    /// # Errors
    /// [`ConfigError::Listen`] if the address is not valid.
    pub(super) fn check(self, beside: PathBuf) -> Result<AdminConfig, ConfigError> {
        Ok(AdminConfig {
            listen: self.admin_listen.as_deref().map(listen_address).transpose()?,
            behind_tls: self.admin_behind_tls,
            quality_curves: self.quality_curves.or_else(|| beside.is_file().then_some(beside)),
        })
    }
}
