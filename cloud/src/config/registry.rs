//! Options of the registry of models for devices: `--registry` and related ones.
//!
//! Never: reads the registry.

use std::path::PathBuf;

use baton_registry::envelope::PublicKey;
use baton_registry::layout::Location;
use clap::Args;

use super::{ConfigError, secret_in};
use crate::fleet::source::RegistrySource;

/// Options about the registry, as written.
#[derive(Debug, Clone, Args)]
pub struct RegistryArgs {
    /// Registry of the models that devices should have: a folder, https://HOST/PATH, s3://BUCKET/PATH or
    /// oci://HOST/NAME
    ///
    /// `baton-cloud registry publish` makes a folder, and this service gives its files to devices. A web
    /// server or bucket may have a copy of it; for a bucket the variables of AWS's tools count.
    /// `baton-cloud rollouts` says which devices should have what.
    #[arg(long, value_name = "FOLDER|URL", env = "BATON_REGISTRY")]
    pub registry: Option<String>,
    /// Public key that signs the registry's versions; may be given several times. Others are not used
    #[arg(long, value_name = "KEY", env = "BATON_REGISTRY_KEY", value_delimiter = ' ')]
    pub registry_key: Vec<PublicKey>,
    /// Another place where devices find the registry's bytes, tried first; may be given several times
    #[arg(long, value_name = "URL")]
    pub registry_mirror: Vec<Location>,
    /// File with a bearer token for the registry; devices do not get it
    #[arg(long, value_name = "FILE", env = "BATON_REGISTRY_TOKEN_FILE")]
    pub registry_token_file: Option<PathBuf>,
}

/// Options about the registry, as checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Where it is.
    pub source: RegistrySource,
    /// Keys that are trusted; at least one.
    pub keys: Vec<PublicKey>,
    /// Where devices find its bytes as well.
    pub mirrors: Vec<Location>,
    /// A bearer token for it.
    pub token: Option<String>,
}

impl RegistryArgs {
    /// Checks the options.
    pub(super) fn check(&self) -> Result<Option<RegistryConfig>, ConfigError> {
        let Some(registry) = &self.registry else {
            let idle = [!self.registry_key.is_empty(), !self.registry_mirror.is_empty()];
            return if idle.contains(&true) { Err(ConfigError::NoRegistry) } else { Ok(None) };
        };
        if self.registry_key.is_empty() {
            return Err(ConfigError::RegistryKey);
        }
        let token = self.registry_token_file.as_deref();
        Ok(Some(RegistryConfig {
            source: registry.parse().map_err(ConfigError::Registry)?,
            keys: self.registry_key.clone(),
            mirrors: self.registry_mirror.clone(),
            token: token.map(|path| secret_in("--registry-token-file", path)).transpose()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: RegistryArgs,
    }

    fn check(words: &[&str]) -> Result<Option<RegistryConfig>, String> {
        let line = Line::try_parse_from([&["x"], words].concat()).map_err(|err| err.to_string())?;
        line.options.check().map_err(|err| err.to_string())
    }

    #[test]
    fn a_registry_has_a_place_and_a_key() {
        let key = "ab".repeat(32);
        assert_eq!(check(&[]), Ok(None));
        let folder = check(&["--registry", "/srv/models", "--registry-key", &key]).unwrap().unwrap();
        assert!(matches!(folder.source, RegistrySource::Folder(_)));
        let words = ["--registry", "oci://r/m", "--registry-key", &key, "--registry-mirror", "https://a/b"];
        let remote = check(&words).unwrap().unwrap();
        assert_eq!(
            (remote.source.to_string(), remote.mirrors[0].to_string()),
            ("oci://r/m".into(), "https://a/b".into())
        );
        let refused = |words: &[&str], want: &str| {
            let why = check(words).unwrap_err();
            assert!(why.contains(want), "{why}");
        };
        refused(&["--registry", "/srv/models"], "--registry-key");
        refused(&["--registry-key", &key], "--registry");
        refused(&["--registry", "ftp://a", "--registry-key", &key], "ftp://a");
        refused(&["--registry", "a", "--registry-key", "00"], "64 hex digits");
        refused(&["--registry", "a", "--registry-key", &key, "--registry-mirror", "b"], "`b` is no address");
    }
}
