//! The options of what is kept of conversations on the disk.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::{Engine, Sequences};
use baton_terminal::{chain, errln};
use clap::Args;

use super::heading;
use crate::models::disk_free_bytes;
use crate::prefix::{Kept, Remembering, Store};
use crate::secrets::Keys;

/// The most bytes that are kept if nothing else is said.
const AUTO_BYTES_MAX: u64 = 4_000_000_000;
/// And the share of the free disk space: one in this many bytes.
const AUTO_SHARE: u64 = 10;

/// The value of `--prefix-memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrefixMemory {
    Auto,
    Off,
    Bytes(u64),
}

impl FromStr for PrefixMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => baton_gpu::bytes_of(text).map(Self::Bytes).ok_or_else(|| {
                format!("`{text}` is no amount of disk space: want auto, off or a size like 4GB or 500MB")
            }),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct PrefixArgs {
    /// Disk space for what the model has read, so that it need not be read again, also after a restart: auto,
    /// off, or a size like 4GB
    ///
    /// Keys and values of prompts and answers are kept in encrypted files. What was used longest ago goes
    /// first. auto keeps up to 4GB, and at most a tenth of the free space. A ring of devices keeps nothing.
    #[arg(long, env = "BATON_PREFIX_MEMORY", default_value = "auto", value_name = "SIZE", help_heading = heading::MODEL)]
    prefix_memory: PrefixMemory,
    /// Folder for that [default: `prefixes` in the given folder for settings, else in the platform's for
    /// caches]
    #[arg(long, env = "BATON_PREFIX_DIR", value_name = "DIR", hide_short_help = true, help_heading = heading::MODEL)]
    prefix_dir: Option<PathBuf>,
}

impl PrefixArgs {
    /// Lets the engine keep prefixes, if that is wanted and possible; `told` then says what is kept. `given`
    /// is the folder for settings that the user chose.
    ///
    /// # Errors
    /// Fails if a size was asked for and nothing can be kept. Otherwise that is a note.
    pub(super) fn engine(
        &self,
        engine: Engine,
        keys: Option<&Keys>,
        given: Option<&Path>,
        told: &Arc<Kept>,
    ) -> anyhow::Result<Box<dyn Sequences>> {
        if self.prefix_memory == PrefixMemory::Off {
            return Ok(Box::new(engine));
        }
        let wanted = matches!(self.prefix_memory, PrefixMemory::Bytes(_));
        if let Err(err) = engine.block_kind() {
            let err = anyhow::Error::from(err).context("nothing can be kept for --prefix-memory");
            return if wanted { Err(err) } else { Ok(Box::new(engine)) };
        }
        match self.store(keys, given) {
            Ok(store) => {
                let remembering = Remembering::new(engine, Arc::new(store), Arc::clone(told));
                Ok(Box::new(remembering.context("start a thread")?))
            }
            Err(err) if wanted => Err(err),
            Err(err) => {
                errln!("note: what is read now is read again after a restart: {}", chain(&*err));
                Ok(Box::new(engine))
            }
        }
    }

    fn store(&self, keys: Option<&Keys>, given: Option<&Path>) -> anyhow::Result<Store> {
        let chosen = self.prefix_dir.clone().or_else(|| given.map(|folder| folder.join("prefixes")));
        let folder =
            chosen.or_else(platform_folder).context("no folder: pass --prefix-dir or --prefix-memory off")?;
        let keys = keys.context("no folder for settings: pass --config-dir")?;
        let capacity = match self.prefix_memory {
            PrefixMemory::Bytes(bytes) => bytes,
            PrefixMemory::Auto | PrefixMemory::Off => {
                let parent = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
                AUTO_BYTES_MAX.min(disk_free_bytes(parent).unwrap_or(u64::MAX) / AUTO_SHARE)
            }
        };
        Ok(Store::open(folder, keys, capacity)?)
    }
}

/// Returns the platform's folder for caches, from its usual environment variables.
fn platform_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = if cfg!(windows) {
        var("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Caches"))
    } else {
        var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))
    };
    cache.map(|cache| cache.join("baton/prefixes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_others_refused() {
        assert_eq!("auto".parse(), Ok(PrefixMemory::Auto));
        assert_eq!("off".parse(), Ok(PrefixMemory::Off));
        assert_eq!("500MB".parse(), Ok(PrefixMemory::Bytes(500_000_000)));
        let err = "much".parse::<PrefixMemory>().unwrap_err();
        assert!(err.contains("want auto, off or a size"), "{err}");
    }
}
