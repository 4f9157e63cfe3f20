//! Scenes: what one kind of question may cost. Text around the question, r, xi, L, tau, corrector.
//!
//! Never: reads a database or a file; this is the checked type that both the store and the API speak.
//! Always: a [`Scene`] is within its bounds (`0 < xi <= ratio <= 1`, floor <= L <= [`ASSIST_TOKENS_MAX`], a finite tau).

use baton_protocol::{Corrector, SceneInfo};

/// The largest L that a scene may fix.
pub const ASSIST_TOKENS_MAX: u32 = 4096;
/// The largest gap between two shown tokens that a scene may tolerate, in milliseconds.
pub const TAU_MS_MAX: f32 = 60_000.0;
/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest system text or question prefix, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// One immutable version of a scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Its name in requests.
    pub id: String,
    /// Starts at 1, one more for every change.
    pub version: u64,
    /// What it says and allows.
    pub settings: SceneSettings,
}

/// What a scene says and allows; new versions are made of these.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneSettings {
    /// The system message in front of the content.
    pub system: String,
    /// What stands between the content and the question.
    pub question_prefix: String,
    /// The share r of the refinable content that is kept; none: the optimizer answers.
    pub ratio: Option<f32>,
    /// The smallest r that the scene's quality allows; 1 forbids refinement.
    pub xi: f32,
    /// The tokens L that the cloud writes; none: the optimizer answers.
    pub assist_tokens: Option<u32>,
    /// The smallest L, also under load.
    pub assist_floor: u32,
    /// The largest tolerable gap between shown tokens, in milliseconds.
    pub tau_ms: f32,
    /// Who is right where cloud and device disagree.
    pub corrector: Corrector,
    /// Whether the content may be refined.
    pub refine: bool,
}

/// A setting that is out of its bounds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SceneError {
    /// The id cannot stand in a path.
    #[error("scene id `{0}` must be 1 to {ID_BYTES_MAX} letters, digits, `-` or `_`")]
    Id(String),
    /// xi is not a share.
    #[error("xi {0} must be over 0 and at most 1")]
    Xi(f32),
    /// r is below xi or not a share.
    #[error("ratio {ratio} must be at least xi {xi} and at most 1")]
    Ratio {
        /// The ratio asked for.
        ratio: f32,
        /// The scene's smallest.
        xi: f32,
    },
    /// A ratio below 1 in a scene that does not refine.
    #[error("ratio {0} needs a scene that allows refinement")]
    NotRefined(f32),
    /// L is out of its bounds.
    #[error("assist tokens {tokens} must be at least {floor} and at most {ASSIST_TOKENS_MAX}")]
    AssistTokens {
        /// The tokens asked for.
        tokens: u32,
        /// The scene's floor.
        floor: u32,
    },
    /// The floor of L is out of its bounds.
    #[error("assist floor {0} must be at least 1 and at most {ASSIST_TOKENS_MAX}")]
    Floor(u32),
    /// tau is not a time a person could wait.
    #[error("tau {0} ms must be over 0 and at most {TAU_MS_MAX}")]
    Tau(f32),
    /// A text is too long.
    #[error("{name} has {bytes} bytes, the limit is {TEXT_BYTES_MAX}")]
    Text {
        /// Which text.
        name: &'static str,
        /// Its length.
        bytes: usize,
    },
}

impl SceneSettings {
    /// A scene with the defaults of the paper: r chosen by the optimizer over xi 0.25, tau 100 ms, corrector cloud.
    pub fn with_system(system: impl Into<String>) -> SceneSettings {
        SceneSettings {
            system: system.into(),
            question_prefix: String::new(),
            ratio: None,
            xi: 0.25,
            assist_tokens: None,
            assist_floor: 4,
            tau_ms: 100.0,
            corrector: Corrector::Cloud,
            refine: true,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first setting that is out of its bounds, with the limit.
    pub fn check(&self) -> Result<(), SceneError> {
        let share = |value: f32| value > 0.0 && value <= 1.0;
        if !share(self.xi) {
            return Err(SceneError::Xi(self.xi));
        }
        if let Some(ratio) = self.ratio {
            if !share(ratio) || ratio < self.xi {
                return Err(SceneError::Ratio { ratio, xi: self.xi });
            }
            if ratio < 1.0 && !self.refine {
                return Err(SceneError::NotRefined(ratio));
            }
        }
        if !(1..=ASSIST_TOKENS_MAX).contains(&self.assist_floor) {
            return Err(SceneError::Floor(self.assist_floor));
        }
        if let Some(tokens) = self.assist_tokens
            && !(self.assist_floor..=ASSIST_TOKENS_MAX).contains(&tokens)
        {
            return Err(SceneError::AssistTokens { tokens, floor: self.assist_floor });
        }
        if !(self.tau_ms > 0.0 && self.tau_ms <= TAU_MS_MAX) {
            return Err(SceneError::Tau(self.tau_ms));
        }
        for (name, text) in [("system text", &self.system), ("question prefix", &self.question_prefix)] {
            if text.len() > TEXT_BYTES_MAX {
                return Err(SceneError::Text { name, bytes: text.len() });
            }
        }
        Ok(())
    }
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
    /// What a device is told about this scene; `model` is the name of the model that serves it.
    pub fn info(&self, model: &str) -> SceneInfo {
        let settings = &self.settings;
        SceneInfo {
            id: self.id.clone(),
            version: self.version,
            system: settings.system.clone(),
            question_prefix: settings.question_prefix.clone(),
            ratio: settings.ratio,
            xi: settings.xi,
            assist_tokens: settings.assist_tokens,
            assist_floor: settings.assist_floor,
            tau_ms: settings.tau_ms,
            corrector: settings.corrector,
            refine: settings.refine,
            model: model.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut SceneSettings), want: Option<&str>) {
        let mut settings = SceneSettings::with_system("s");
        change(&mut settings);
        assert_eq!(settings.check().err().map(|err| err.to_string()).as_deref(), want);
    }

    #[test]
    fn every_bound_is_named() {
        check(|_| (), None);
        check(|s| s.xi = 0.0, Some("xi 0 must be over 0 and at most 1"));
        check(|s| s.xi = f32::NAN, Some("xi NaN must be over 0 and at most 1"));
        check(|s| s.ratio = Some(0.1), Some("ratio 0.1 must be at least xi 0.25 and at most 1"));
        check(|s| s.ratio = Some(1.5), Some("ratio 1.5 must be at least xi 0.25 and at most 1"));
        check(|s| s.ratio = Some(f32::INFINITY), Some("ratio inf must be at least xi 0.25 and at most 1"));
        check(
            |s| (s.ratio, s.refine) = (Some(0.5), false),
            Some("ratio 0.5 needs a scene that allows refinement"),
        );
        check(|s| s.assist_tokens = Some(3), Some("assist tokens 3 must be at least 4 and at most 4096"));
        check(|s| s.assist_tokens = Some(5000), Some("assist tokens 5000 must be at least 4 and at most 4096"));
        check(|s| s.assist_floor = 0, Some("assist floor 0 must be at least 1 and at most 4096"));
        check(|s| s.tau_ms = -1.0, Some("tau -1 ms must be over 0 and at most 60000"));
        check(|s| s.tau_ms = f32::NAN, Some("tau NaN ms must be over 0 and at most 60000"));
        check(
            |s| s.system = "x".repeat(TEXT_BYTES_MAX + 1),
            Some("system text has 65537 bytes, the limit is 65536"),
        );
    }

    #[test]
    fn ids_fit_into_a_path() {
        for id in ["doc-qa", "a", "A_9"] {
            assert_eq!(check_id(id), Ok(()));
        }
        for id in ["", "a/b", "..", "a b", "ü", &"x".repeat(65)] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }
}
