//! What the device remembers between runs: consent to use the cloud, scenes with their tags, profiles of itself.
//!
//! Small JSON files in one folder, written whole and renamed into place; a broken or missing file means "not known".
//! Never holds user text or keys.

use baton_protocol::SceneInfo;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Environment variable that names the folder.
pub const CONFIG_DIR_ENV: &str = "BATON_CONFIG_DIR";
const CONSENT_FILE: &str = "consent.json";
/// Files over this many bytes are not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why something was not remembered.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No home folder and no folder given.
    #[error("no folder for settings: pass --config-dir or set {CONFIG_DIR_ENV}")]
    NoFolder,
    /// A file could not be written.
    #[error("write `{path}`")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct Consent {
    cloud_allowed: bool,
}

/// A scene as fetched last time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedScene {
    /// The cloud it came from.
    pub cloud: String,
    /// Its entity tag.
    pub etag: Option<String>,
    /// The scene.
    pub scene: SceneInfo,
}

/// The settings folder; without one nothing is known, and nothing can be remembered.
#[derive(Debug, Clone)]
pub struct Settings {
    folder: Option<PathBuf>,
}

/// The platform's folder for settings, by its usual environment variables.
pub(crate) fn platform_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        return var("APPDATA").map(|dir| dir.join("baton"));
    }
    if cfg!(target_os = "macos") {
        return var("HOME").map(|home| home.join("Library/Application Support/baton"));
    }
    var("XDG_CONFIG_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".config")))
        .map(|dir| dir.join("baton"))
}

impl Settings {
    /// The folder given, or the platform's if it has one.
    pub fn open(folder: Option<PathBuf>) -> Self {
        Self { folder: folder.or_else(platform_folder) }
    }

    /// Whether the cloud may be used; `None` if nobody was asked.
    pub fn cloud_allowed(&self) -> Option<bool> {
        self.read::<Consent>(Path::new(CONSENT_FILE)).map(|c| c.cloud_allowed)
    }

    /// Remembers whether the cloud may be used.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn allow_cloud(&self, cloud_allowed: bool) -> Result<(), SettingsError> {
        self.write(Path::new(CONSENT_FILE), &Consent { cloud_allowed })
    }

    /// The scene as it was last fetched from this cloud.
    pub fn scene(&self, cloud: &str, id: &str) -> Option<CachedScene> {
        let cached: CachedScene = self.read(&scene_file(id)?)?;
        (cached.cloud == cloud && cached.scene.id == id && cached.scene.check().is_ok()).then_some(cached)
    }

    /// Remembers a scene.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn remember_scene(&self, scene: &CachedScene) -> Result<(), SettingsError> {
        match scene_file(&scene.scene.id) {
            Some(file) => self.write(&file, scene),
            None => Ok(()),
        }
    }

    /// What is kept of a profile of this device in a file of this plain name.
    pub(crate) fn profile<T: for<'a> Deserialize<'a>>(&self, file: &str) -> Option<T> {
        self.read(&Path::new("profiles").join(file))
    }

    /// Keeps a profile of this device.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub(crate) fn remember_profile<T: Serialize>(
        &self,
        file: &str,
        profile: &T,
    ) -> Result<(), SettingsError> {
        self.write(&Path::new("profiles").join(file), profile)
    }

    fn read<T: for<'a> Deserialize<'a>>(&self, file: &Path) -> Option<T> {
        let path = self.folder.as_ref()?.join(file);
        if std::fs::metadata(&path).ok()?.len() > FILE_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(&std::fs::read(&path).ok()?).ok()
    }

    fn write<T: Serialize>(&self, file: &Path, value: &T) -> Result<(), SettingsError> {
        let path = self.folder.as_ref().ok_or(SettingsError::NoFolder)?.join(file);
        let write = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            // Named after the process, so that two programs never write one temporary file.
            let partial = path.with_extension(format!("{}.partial", std::process::id()));
            let written = std::fs::File::create(&partial)
                .and_then(|mut out| {
                    out.write_all(&serde_json::to_vec_pretty(value)?)?;
                    out.sync_all()
                })
                .and_then(|()| std::fs::rename(&partial, &path));
            if written.is_err() {
                // A full disk must not be filled further; what cannot be removed either is found by its name.
                drop(std::fs::remove_file(&partial));
            }
            written
        };
        write().map_err(|err| SettingsError::Write { path: path.clone(), err })
    }
}

/// The file of a scene; `None` for an id that is no plain file name.
fn scene_file(id: &str) -> Option<PathBuf> {
    let plain = !id.is_empty()
        && id.len() <= 64
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    plain.then(|| Path::new("scenes").join(format!("{id}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_and_scenes_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().join("deep/er")));
        assert_eq!(settings.cloud_allowed(), None);
        settings.allow_cloud(true).unwrap();
        assert_eq!(settings.cloud_allowed(), Some(true));
        settings.allow_cloud(false).unwrap();
        assert_eq!(settings.cloud_allowed(), Some(false));
        let cached = CachedScene {
            cloud: "http://a".into(),
            etag: Some("\"1\"".into()),
            scene: crate::scene::built_in("doc-qa"),
        };
        settings.remember_scene(&cached).unwrap();
        assert_eq!(settings.scene("http://a", "doc-qa"), Some(cached));
        assert_eq!(settings.scene("http://b", "doc-qa"), None);
        std::fs::write(dir.path().join("deep/er/scenes/doc-qa.json"), b"{broken").unwrap();
        assert_eq!(settings.scene("http://a", "doc-qa"), None);
        assert_eq!(scene_file("../x"), None);
    }

    #[test]
    fn without_a_folder_nothing_is_known_and_a_failed_write_leaves_nothing() {
        let none = Settings { folder: None };
        assert_eq!(none.cloud_allowed(), None);
        assert!(matches!(none.allow_cloud(true), Err(SettingsError::NoFolder)));
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        // Nothing can be renamed over a folder.
        std::fs::create_dir_all(dir.path().join(CONSENT_FILE).join("in the way")).unwrap();
        assert!(matches!(settings.allow_cloud(true), Err(SettingsError::Write { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
    }
}
