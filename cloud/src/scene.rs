//! Scenes: settings for one kind of question, such as the text around it, r, xi, L, tau and the corrector.
//!
//! The protocol defines the settings ([`SceneSettings`]). This module adds an id and a version, and checks
//! that the refiner knows the mode. Never: reads a database or a file. Always: a checked scene is within the
//! ranges of the protocol, with `xi <= ratio` and floor <= L <= max.

pub mod book;
pub mod schema;

use baton_protocol::{SceneInfo, SettingsError};
use baton_refine::{Mode, UnknownMode};

pub use baton_protocol::SceneSettings;

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;

/// One immutable version of a scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Its name in requests.
    pub id: String,
    /// Starts at 1, one more for every change.
    pub version: u32,
    /// Its settings.
    pub settings: SceneSettings,
}

/// A scene that is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SceneError {
    /// The id cannot be part of a path.
    #[error("scene id `{0}` must be 1 to {ID_BYTES_MAX} letters, digits, `-` or `_`")]
    Id(String),
    /// A setting is out of its bounds.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The refiner has no such mode.
    #[error(transparent)]
    Mode(#[from] UnknownMode),
}

impl SceneError {
    /// Returns the name of the field that is wrong: `id` or a setting.
    pub fn field(&self) -> &str {
        match self {
            SceneError::Id(_) => "id",
            SceneError::Settings(err) => err.field(),
            SceneError::Mode(_) => "mode",
        }
    }
}

/// Checks every setting.
///
/// # Errors
/// [`SceneError`] for the first setting that is out of its bounds, with the limit.
pub fn check(settings: &SceneSettings) -> Result<(), SceneError> {
    settings.check()?;
    settings.mode.parse::<Mode>()?;
    Ok(())
}

/// Checks the name of a scene.
///
/// # Errors
/// [`SceneError::Id`] if it is empty, too long, or holds anything but ASCII letters, digits, `-` and `_`.
pub fn check_id(id: &str) -> Result<(), SceneError> {
    let fits = (1..=ID_BYTES_MAX).contains(&id.len());
    if fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
        return Ok(());
    }
    Err(SceneError::Id(id.chars().take(ID_BYTES_MAX).collect()))
}

impl Scene {
    /// Returns the description of this scene that devices receive. `model` and `tokenizer_sha256` are those
    /// of the model that serves it.
    pub fn info(&self, model: &str, tokenizer_sha256: Option<&str>) -> SceneInfo {
        SceneInfo {
            id: self.id.clone(),
            version: self.version,
            settings: SceneSettings { model: Some(model.to_owned()), ..self.settings.clone() },
            tokenizer_sha256: tokenizer_sha256.map(str::to_owned),
            prompt_tokens_max: None,
            call_markup: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::DEFAULT_MODE;

    #[test]
    fn modes_are_those_of_the_refiner() {
        assert_eq!(DEFAULT_MODE, Mode::default().to_string());
        for known in Mode::ALL {
            let settings = SceneSettings { mode: known.to_string(), ..SceneSettings::with_system("s") };
            assert_eq!(check(&settings), Ok(()));
        }
        let err = check(&SceneSettings { mode: "best".into(), ..SceneSettings::default() }).unwrap_err();
        assert!(err.to_string().starts_with("unknown refiner mode `best`"), "{err}");
        assert_eq!(err.field(), "mode");
        let err = check(&SceneSettings { xi: 0.0, ..SceneSettings::default() }).unwrap_err();
        assert_eq!(err.field(), "xi");
    }

    #[test]
    fn ids_fit_into_a_path() {
        for id in ["doc-qa", "a", "A_9"] {
            assert_eq!(check_id(id), Ok(()));
        }
        for id in ["", "a/b", "..", "a b", "ü", &"x".repeat(65)] {
            assert_eq!(check_id(id).unwrap_err().field(), "id", "{id}");
        }
    }
}
