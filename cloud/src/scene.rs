//! Scenes: what one kind of question may cost. Text around the question, r, xi, L, tau, corrector.
//!
//! Never: reads a database or a file; this is the checked type that both the store and the API speak.
//! Always: a [`Scene`] is within the ranges of the protocol, with `xi <= ratio` and floor <= L <= max.

pub mod diff;

use baton_protocol::{Corrector, NumberRange, OutOfRange, SceneInfo, limits};
use baton_refine::Mode;

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest system text or question prefix, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// The longest name of a model or adapter, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// The largest L of a scene that does not say: far more than a relay needs, and enough for a whole answer.
pub const ASSIST_MAX_DEFAULT: u32 = 4096;
/// What answers may lose, as a share of the score.
const TOLERANCE: NumberRange = NumberRange::new(0.0, 1.0);

/// One immutable version of a scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Its name in requests.
    pub id: String,
    /// Starts at 1, one more for every change.
    pub version: u32,
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
    /// The largest L, whatever a request asks for.
    pub assist_max: u32,
    /// The largest tolerable gap between shown tokens, in milliseconds.
    pub tau_ms: f32,
    /// Who is right where cloud and device disagree.
    pub corrector: Corrector,
    /// Whether the content may be refined.
    pub refine: bool,
    /// How sentences are ranked where a request does not say.
    pub mode: Mode,
    /// What answers may lose against the full prompt, as a share of the score: xi is fitted to an evaluation by it.
    pub tolerance: f32,
    /// The model that answers; none: the service's default.
    pub model: Option<String>,
    /// The adapter of that model; none: the model alone.
    pub adapter: Option<String>,
}

/// A setting that is out of its bounds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SceneError {
    /// The id cannot stand in a path.
    #[error("scene id `{0}` must be 1 to {ID_BYTES_MAX} letters, digits, `-` or `_`")]
    Id(String),
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// r is below xi.
    #[error("ratio {ratio} must be at least xi {xi}")]
    Ratio {
        /// The ratio asked for.
        ratio: f32,
        /// The scene's smallest.
        xi: f32,
    },
    /// A ratio below 1 in a scene that does not refine.
    #[error("ratio {0} needs a scene that allows refinement")]
    NotRefined(f32),
    /// A mode that no service can rank by.
    #[error(transparent)]
    Mode(#[from] NotServed),
    /// L is below its floor.
    #[error("assist tokens {tokens} must be at least the floor {floor}")]
    AssistTokens {
        /// The tokens asked for.
        tokens: u32,
        /// The scene's floor.
        floor: u32,
    },
    /// L or its floor is above its bound.
    #[error("assist max {max} must be at least {tokens}, the scene's L or its floor")]
    AssistMax {
        /// L, or its floor where the optimizer answers L.
        tokens: u32,
        /// The scene's bound.
        max: u32,
    },
    /// The name of a model or adapter that no service can have.
    #[error("{field} `{name}` must be 1 to {NAME_BYTES_MAX} visible ASCII characters")]
    Name {
        /// Which setting.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// A text is too long.
    #[error("{name} has {bytes} bytes, the limit is {TEXT_BYTES_MAX}")]
    Text {
        /// Which text.
        name: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A text holds NUL.
    #[error("{name} must not hold the character U+0000")]
    Nul {
        /// Which text.
        name: &'static str,
    },
}

/// A mode of the refiner that asks for what this service does not compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "mode `{0}` needs the log-probability of every prompt token, which prefill does not compute; it is for evaluation"
)]
pub struct NotServed(Mode);

/// Checks that a mode ranks by what prefill gives in passing.
///
/// # Errors
/// [`NotServed`] for `perplexity`: logits of every prompt token cost as much as some layers, and prompts whose beginning is
/// cached have none.
pub fn check_mode(mode: Mode) -> Result<Mode, NotServed> {
    match mode {
        Mode::Perplexity => Err(NotServed(mode)),
        Mode::Attention
        | Mode::Paper
        | Mode::Tokens
        | Mode::GemFilter
        | Mode::Chunk
        | Mode::Bm25
        | Mode::Streaming
        | Mode::Random { .. }
        | Mode::None => Ok(mode),
    }
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
            assist_max: ASSIST_MAX_DEFAULT,
            tau_ms: 100.0,
            corrector: Corrector::Cloud,
            refine: true,
            mode: Mode::Attention,
            tolerance: 0.02,
            model: None,
            adapter: None,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first setting that is out of its bounds, with the limit.
    pub fn check(&self) -> Result<(), SceneError> {
        limits::RATIO.check("xi", self.xi)?;
        limits::RATIO.check_opt("ratio", self.ratio)?;
        limits::ASSIST_TOKENS.check("assist_floor", self.assist_floor)?;
        limits::ASSIST_TOKENS.check("assist_max", self.assist_max)?;
        limits::ASSIST_TOKENS.check_opt("assist_tokens", self.assist_tokens)?;
        limits::TAU_MS.check("tau_ms", self.tau_ms)?;
        TOLERANCE.check("tolerance", self.tolerance)?;
        if let Some(ratio) = self.ratio {
            if ratio < self.xi {
                return Err(SceneError::Ratio { ratio, xi: self.xi });
            }
            if ratio < 1.0 && !self.refine {
                return Err(SceneError::NotRefined(ratio));
            }
        }
        if let Some(tokens) = self.assist_tokens.filter(|&tokens| tokens < self.assist_floor) {
            return Err(SceneError::AssistTokens { tokens, floor: self.assist_floor });
        }
        let (tokens, max) = (self.assist_tokens.unwrap_or(self.assist_floor), self.assist_max);
        if tokens > max {
            return Err(SceneError::AssistMax { tokens, max });
        }
        check_mode(self.mode)?;
        for (field, name) in [("model", &self.model), ("adapter", &self.adapter)] {
            if let Some(name) = name.as_deref().filter(|name| !is_name(name)) {
                return Err(SceneError::Name { field, name: name.chars().take(NAME_BYTES_MAX).collect() });
            }
        }
        for (name, text) in [("system text", &self.system), ("question prefix", &self.question_prefix)] {
            if text.len() > TEXT_BYTES_MAX {
                return Err(SceneError::Text { name, bytes: text.len() });
            }
            if text.contains('\0') {
                return Err(SceneError::Nul { name });
            }
        }
        Ok(())
    }
}

/// Whether a model or adapter may have this name.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
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

/// The shortest decimal of an f32 as f64, so that 0.3 stays 0.3 in the database and against other figures.
pub(crate) fn decimal(value: f32) -> f64 {
    value.to_string().parse().expect("an f32 prints as a number")
}

impl Scene {
    /// What a device is told about this scene; `model` and `tokenizer_sha256` are those of the model that serves it.
    pub fn info(&self, model: &str, tokenizer_sha256: Option<&str>) -> SceneInfo {
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
            assist_max: settings.assist_max,
            tau_ms: settings.tau_ms,
            corrector: settings.corrector,
            refine: settings.refine,
            model: model.to_owned(),
            adapter: settings.adapter.clone(),
            tokenizer_sha256: tokenizer_sha256.map(str::to_owned),
            prompt_tokens_max: None,
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
        check(|s| s.system = "a\0b".into(), Some("system text must not hold the character U+0000"));
        check(
            |s| s.question_prefix = "\0".into(),
            Some("question prefix must not hold the character U+0000"),
        );
        check(|s| s.xi = 0.0, Some("field `xi` is 0, must be 0.01 to 1"));
        check(|s| s.xi = f32::NAN, Some("field `xi` is NaN, must be 0.01 to 1"));
        check(|s| s.ratio = Some(0.125), Some("ratio 0.125 must be at least xi 0.25"));
        check(|s| s.ratio = Some(1.5), Some("field `ratio` is 1.5, must be 0.01 to 1"));
        check(|s| s.ratio = Some(f32::INFINITY), Some("field `ratio` is inf, must be 0.01 to 1"));
        check(
            |s| (s.ratio, s.refine) = (Some(0.5), false),
            Some("ratio 0.5 needs a scene that allows refinement"),
        );
        check(|s| s.assist_tokens = Some(3), Some("assist tokens 3 must be at least the floor 4"));
        check(|s| s.assist_tokens = Some(0), Some("field `assist_tokens` is 0, must be 1 to 65536"));
        check(|s| s.assist_tokens = Some(70_000), Some("field `assist_tokens` is 70000, must be 1 to 65536"));
        check(|s| s.assist_max = 70_000, Some("field `assist_max` is 70000, must be 1 to 65536"));
        check(|s| s.assist_max = 3, Some("assist max 3 must be at least 4, the scene's L or its floor"));
        check(
            |s| (s.assist_tokens, s.assist_max) = (Some(65), 64),
            Some("assist max 64 must be at least 65, the scene's L or its floor"),
        );
        check(|s| (s.assist_tokens, s.assist_max) = (Some(64), 64), None);
        check(|s| s.assist_floor = 0, Some("field `assist_floor` is 0, must be 1 to 65536"));
        check(|s| s.tau_ms = -1.0, Some("field `tau_ms` is -1, must be 1 to 60000"));
        check(|s| s.tolerance = 1.5, Some("field `tolerance` is 1.5, must be 0 to 1"));
        check(|s| s.model = Some(String::new()), Some("model `` must be 1 to 128 visible ASCII characters"));
        check(
            |s| s.adapter = Some("a b".into()),
            Some("adapter `a b` must be 1 to 128 visible ASCII characters"),
        );
        check(|s| (s.model, s.adapter) = (Some("m".repeat(128)), Some("law@2".into())), None);
        check(|s| s.tau_ms = f32::NAN, Some("field `tau_ms` is NaN, must be 1 to 60000"));
        check(
            |s| s.mode = Mode::Perplexity,
            Some(
                "mode `perplexity` needs the log-probability of every prompt token, which prefill does not compute; it \
                 is for evaluation",
            ),
        );
        for mode in Mode::ALL.into_iter().filter(|&mode| mode != Mode::Perplexity) {
            check(|s| s.mode = mode, None);
        }
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
