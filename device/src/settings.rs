//! Settings that the device remembers between runs: consent to use a cloud, scenes with their tags, profiles
//! of the device, and the options that the user wants in every command.
//!
//! They are small JSON files in one folder, written whole and then renamed into place. A broken or missing
//! file means "not known", except the user's own options. They never hold user text or keys. If the system
//! has such rights, files and folders made here belong to the user alone.

use baton_protocol::SceneInfo;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Environment variable that names the folder.
pub const CONFIG_DIR_ENV: &str = "BATON_CONFIG_DIR";
const CONSENT_FILE: &str = "consent.json";
/// The file of options that the user wants in every command.
const CONFIG_FILE: &str = "config.json";
/// Files over this many bytes are not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a setting was not stored.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no home folder, and no folder was given.
    #[error("no folder for settings: pass --config-dir or set {CONFIG_DIR_ENV}")]
    NoFolder,
    /// The user's own file cannot be read. It is not taken for missing: the options in it are wanted.
    #[error("read `{path}`: mend the file, or delete it")]
    Broken {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
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

/// The user's consent for each cloud, by its origin, such as `https://a.example` or `http://10.0.0.1:8300`.
///
/// Earlier versions wrote a file without the cloud's origin (`{"cloud_allowed": true}`). It counts as no
/// consent, so the user is asked again.
#[derive(Default, Serialize, Deserialize)]
struct Consent {
    clouds: BTreeMap<String, bool>,
}

/// A scene as it was last fetched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedScene {
    /// The cloud it came from.
    pub cloud: String,
    /// Its entity tag.
    pub etag: Option<String>,
    /// The scene.
    pub scene: SceneInfo,
}

/// The settings folder. If there is none, nothing is known and nothing can be stored.
#[derive(Debug, Clone)]
pub struct Settings {
    folder: Option<PathBuf>,
}

/// Returns the platform's folder for settings, from its usual environment variables.
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

/// Returns the folder of the ring's state: the given one, or else `ring` in the settings folder that the
/// environment names, or else in the platform's.
pub(crate) fn ring_folder(given: Option<PathBuf>) -> Option<PathBuf> {
    let configured = || std::env::var_os(CONFIG_DIR_ENV).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    given.or_else(|| configured().or_else(platform_folder).map(|folder| folder.join("ring")))
}

impl Settings {
    /// Uses the given folder, or the platform's if it has one.
    pub fn open(folder: Option<PathBuf>) -> Self {
        Self { folder: folder.or_else(platform_folder) }
    }

    /// Returns the folder, if there is one. It may not be made yet.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns whether this cloud may be used; `None` if the user was not asked yet. A cloud is identified by
    /// scheme, host and port.
    pub fn cloud_allowed(&self, cloud: &Url) -> Option<bool> {
        let consent: Consent = self.read(Path::new(CONSENT_FILE))?;
        consent.clouds.get(&origin(cloud)).copied()
    }

    /// Stores whether this cloud may be used; the answers for other clouds stay.
    ///
    /// # Errors
    /// [`SettingsError`] if there is no folder, or the file cannot be written.
    pub fn allow_cloud(&self, cloud: &Url, allowed: bool) -> Result<(), SettingsError> {
        let mut consent: Consent = self.read(Path::new(CONSENT_FILE)).unwrap_or_default();
        consent.clouds.insert(origin(cloud), allowed);
        self.write(Path::new(CONSENT_FILE), &consent)
    }

    /// Returns the path of the consent file. If it is deleted, the user is asked about every cloud again.
    pub fn consent_file(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(CONSENT_FILE))
    }

    /// Returns the options that the user wants in every command, by their long names. None if there is no
    /// file.
    ///
    /// # Errors
    /// [`SettingsError::Broken`] if the file is there, and is not an object in JSON.
    pub fn config(&self) -> Result<BTreeMap<String, Value>, SettingsError> {
        let Some(path) = self.config_file() else { return Ok(BTreeMap::new()) };
        let read = || -> io::Result<BTreeMap<String, Value>> {
            if std::fs::metadata(&path)?.len() > FILE_BYTES_MAX {
                return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
            }
            Ok(serde_json::from_slice(&std::fs::read(&path)?)?)
        };
        match read() {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            read => read.map_err(|err| SettingsError::Broken { path: path.clone(), err }),
        }
    }

    /// Stores the options that the user wants in every command.
    ///
    /// # Errors
    /// [`SettingsError`] if there is no folder, or the file cannot be written.
    pub fn remember_config(&self, config: &BTreeMap<String, Value>) -> Result<(), SettingsError> {
        self.write(Path::new(CONFIG_FILE), config)
    }

    /// Returns the path of the file of [`Self::config`].
    pub fn config_file(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(CONFIG_FILE))
    }

    /// Returns the scene as it was last fetched from this cloud.
    pub fn scene(&self, cloud: &str, id: &str) -> Option<CachedScene> {
        let cached: CachedScene = self.read(&scene_file(id)?)?;
        (cached.cloud == cloud && cached.scene.id == id && cached.scene.check().is_ok()).then_some(cached)
    }

    /// Stores a scene.
    ///
    /// # Errors
    /// [`SettingsError`] if there is no folder, or the file cannot be written.
    pub fn remember_scene(&self, scene: &CachedScene) -> Result<(), SettingsError> {
        match scene_file(&scene.scene.id) {
            Some(file) => self.write(&file, scene),
            None => Ok(()),
        }
    }

    /// Reads a profile of this device from the file of this plain name.
    pub(crate) fn profile<T: for<'a> Deserialize<'a>>(&self, file: &str) -> Option<T> {
        self.read(&Path::new("profiles").join(file))
    }

    /// Reads the profiles of this device from all files whose plain names begin so, in the order of names.
    pub(crate) fn profiles<T: for<'a> Deserialize<'a>>(&self, prefix: &str) -> Vec<T> {
        let folder = self.folder.as_ref().map(|folder| folder.join("profiles"));
        let found = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let names =
            found.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| name.starts_with(prefix) && name.ends_with(".json")).collect();
        names.sort_unstable();
        names.iter().filter_map(|name| self.profile(name)).collect()
    }

    /// Stores a profile of this device.
    ///
    /// # Errors
    /// [`SettingsError`] if there is no folder, or the file cannot be written.
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
                make_private_folder(parent)?;
            }
            // The process id in the name keeps two programs from writing the same temporary file.
            let partial = path.with_extension(format!("{}.partial", std::process::id()));
            let written = create_private(&partial)
                .and_then(|mut out| {
                    out.write_all(&serde_json::to_vec_pretty(value)?)?;
                    out.sync_all()
                })
                .and_then(|()| std::fs::rename(&partial, &path));
            if written.is_err() {
                // A full disk must not be filled further. A file that cannot be removed can be found by its
                // name.
                drop(std::fs::remove_file(&partial));
            }
            written
        };
        write().map_err(|err| SettingsError::Write { path: path.clone(), err })
    }
}

/// Returns scheme, host and port of an address in their normal form; the scheme's usual port is left out.
fn origin(cloud: &Url) -> String {
    cloud.origin().ascii_serialization()
}

/// Makes a folder and its parents, for the user alone; an existing folder stays as it is.
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates an empty file for the user alone.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    // A file left by an earlier process with the same id may be open to others.
    drop(std::fs::remove_file(path));
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Returns a plain file name for a cloud: a digest of its address, which may hold characters that files may
/// not have.
pub(crate) fn file_of_cloud(cloud: &str) -> String {
    let origin = Url::parse(cloud).map_or_else(|_| cloud.to_owned(), |url| origin(&url));
    format!("cloud-{}.json", &hex::encode(Sha256::digest(origin))[..16])
}

/// Returns the file of a scene; `None` if its id is not a plain file name.
fn scene_file(id: &str) -> Option<PathBuf> {
    let plain = !id.is_empty()
        && id.len() <= 64
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    plain.then(|| Path::new("scenes").join(format!("{id}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn consent_is_for_one_cloud() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        let (a, b) = (url("https://a.example/baton"), url("http://b.example:8300"));
        assert_eq!(settings.cloud_allowed(&a), None);
        settings.allow_cloud(&a, true).unwrap();
        assert_eq!((settings.cloud_allowed(&a), settings.cloud_allowed(&b)), (Some(true), None));
        settings.allow_cloud(&b, false).unwrap();
        assert_eq!((settings.cloud_allowed(&a), settings.cloud_allowed(&b)), (Some(true), Some(false)));
        // The same cloud spelled differently; another scheme or port is another cloud.
        assert_eq!(settings.cloud_allowed(&url("HTTPS://A.example:443")), Some(true));
        for other in ["http://a.example", "https://a.example:8443", "https://a.example.b.example"] {
            assert_eq!(settings.cloud_allowed(&url(other)), None, "{other}");
        }
        let kept = std::fs::read_to_string(settings.consent_file().unwrap()).unwrap();
        assert!(kept.contains("\"https://a.example\": true"), "{kept}");
        // Consent stored before clouds were told apart names no cloud.
        std::fs::write(settings.consent_file().unwrap(), r#"{"cloud_allowed": true}"#).unwrap();
        assert_eq!(settings.cloud_allowed(&a), None);
    }

    #[cfg(unix)]
    #[test]
    fn files_and_folders_are_the_users_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("deep/er");
        let settings = Settings::open(Some(folder.clone()));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        settings.allow_cloud(&url("https://a.example"), true).unwrap();
        let file = settings.consent_file().unwrap();
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
        // A file with wider rights gets its own rights back when it is written again.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        settings.allow_cloud(&url("https://a.example"), false).unwrap();
        assert_eq!(mode(&file), 0o600);
    }

    #[test]
    fn options_are_remembered_and_a_broken_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        assert_eq!(settings.config().unwrap(), BTreeMap::new());
        let config = BTreeMap::from([("model".to_owned(), Value::from("smollm2"))]);
        settings.remember_config(&config).unwrap();
        assert_eq!(settings.config().unwrap(), config);
        for broken in ["{\"model\": ", "[1]", "\"model\""] {
            std::fs::write(settings.config_file().unwrap(), broken).unwrap();
            let err = settings.config().unwrap_err();
            assert!(matches!(err, SettingsError::Broken { .. }), "{broken}: {err}");
        }
    }

    #[test]
    fn scenes_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().join("deep/er")));
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
        let cloud = url("https://a.example");
        assert_eq!((none.cloud_allowed(&cloud), none.consent_file()), (None, None));
        assert!(matches!(none.allow_cloud(&cloud, true), Err(SettingsError::NoFolder)));
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        // A file cannot be renamed over a folder.
        std::fs::create_dir_all(dir.path().join(CONSENT_FILE).join("in the way")).unwrap();
        assert!(matches!(settings.allow_cloud(&cloud, true), Err(SettingsError::Write { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
    }
}
