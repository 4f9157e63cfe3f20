//! The settings of a scene. Each is written once: field, default, texts and range.
//!
//! Never: knows which modes the refiner has, or which models a service has; here they are only names. Always:
//! the struct, its default and the table [`SceneSettings::FIELDS`] come from the same rows, so a new setting
//! is one new row.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Corrector;
use super::field::{
    Absent, SCENE_TEXT_BYTES_MAX, Setting, SettingField, SettingGroup as Group, SettingKind as Kind,
};
use crate::kv::KvEncoding;
use crate::range::{NumberRange, OutOfRange};
use crate::request::limits::{self, NAME_BYTES_MAX};
use crate::verify::VerifyPolicy;

/// The name of the mode by which a new scene ranks sentences.
pub const DEFAULT_MODE: &str = "attention";

/// Range of the tolerated loss, as a share of the score.
const TOLERANCE: NumberRange = NumberRange::new(0.0, 1.0);
/// Range of the smallest value of a kept sentence.
const LEAST_VALUE: NumberRange = NumberRange::new(0.0, 1.0);
const NO_LIMIT: Absent = Absent { word: "none", meaning: "as many as r allows" };
const AUTOMATIC: Absent = Absent { word: "auto", meaning: "automatic" };
const ANY_MODEL: Absent = Absent { word: "default", meaning: "the service's default" };
const NO_KV: Absent = Absent { word: "off", meaning: "never: devices prefill the text" };
const NO_ADAPTER: Absent = Absent { word: "none", meaning: "none" };

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $(#[serde($given:meta)])? $name:ident: $type:ty = $default:expr, $field:expr;)+) => {
        /// The settings of one version of a scene. A version never changes.
        ///
        /// In JSON, every setting that always has a value must be there, and unknown ones are refused.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct SceneSettings {
            $($(#[doc = $help])+ $(#[serde($given)])? pub $name: $type,)+
        }

        impl Default for SceneSettings {
            /// The defaults of the paper: the optimizer chooses r over xi 0.25 and L, tau is 100 ms.
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        impl SceneSettings {
            /// The description of each setting, in the order in which people read them.
            pub const FIELDS: &'static [SettingField] = &[$(SettingField {
                name: stringify!($name),
                help: concat!($($help),+).trim_ascii(),
                ..$field
            }),+];

            /// Returns each setting with its field, in the order of [`SceneSettings::FIELDS`].
            fn each(&self) -> impl Iterator<Item = (&'static SettingField, &dyn Setting)> {
                Self::FIELDS.iter().zip([$(&self.$name as &dyn Setting),+])
            }
        }
    };
}

settings! {
    /// System message in front of the content
    system: String = String::new(),
        SettingField::new("System message", Group::Texts, Kind::Text { lines: 4 });
    /// Text between the content and the question
    question_prefix: String = String::new(),
        SettingField::new("Between content and question", Group::Texts, Kind::Text { lines: 3 });
    /// Share r of the content that is kept, from xi to 1
    ratio: Option<f32> = None,
        SettingField::new("r", Group::Ratio, Kind::Number(limits::RATIO)).or(AUTOMATIC);
    /// Smallest r that the scene's quality allows; 1 forbids refinement
    xi: f32 = 0.25,
        SettingField::new("xi, smallest r", Group::Bounds, Kind::Number(limits::RATIO));
    /// Tokens L that the cloud writes
    assist_tokens: Option<u32> = None,
        SettingField::new("L", Group::Assist, Kind::Whole(limits::ASSIST_TOKENS)).or(AUTOMATIC);
    /// Smallest L, also under load
    assist_floor: u32 = 4,
        SettingField::new("Floor of L", Group::Bounds, Kind::Whole(limits::ASSIST_TOKENS));
    /// Largest L, whatever a request asks for
    assist_max: u32 = 4096,
        SettingField::new("Largest L", Group::Bounds, Kind::Whole(limits::ASSIST_TOKENS));
    /// Largest tolerable gap between shown tokens (tau), in milliseconds
    tau_ms: f32 = 100.0,
        SettingField::new("tau (ms)", Group::Bounds, Kind::Number(limits::TAU_MS));
    /// Loss against the full prompt that is tolerated, as a share of the score; fit-xi fits xi to it
    tolerance: f32 = 0.02,
        SettingField::new("Tolerated loss", Group::Bounds, Kind::Number(TOLERANCE)).in_cloud();
    /// Whether the content may be refined
    refine: bool = true,
        SettingField::new("The content may be refined", Group::Refiner, Kind::Flag);
    /// How sentences are ranked if a request does not say
    mode: String = DEFAULT_MODE.to_owned(),
        SettingField::new("Ranked by", Group::Refiner, Kind::Mode).in_cloud();
    /// Smallest value of a kept sentence, as a share of the best sentence's; then r is only the largest share
    least_value: Option<f32> = None,
        SettingField::new("Least value of a sentence", Group::Refiner, Kind::Number(LEAST_VALUE)).or(NO_LIMIT).in_cloud();
    /// Whose token is used if cloud and device disagree
    corrector: Corrector = Corrector::Cloud,
        SettingField::new("Corrector", Group::Refiner, Kind::Word(&Corrector::NAMES));
    /// Whether the cloud checks what the device writes: off, on while the line holds, or strict
    #[serde(default)]
    verify: VerifyPolicy = VerifyPolicy::Off,
        SettingField::new("Verify", Group::Refiner, Kind::Word(&VerifyPolicy::NAMES));
    /// Form in which a device of the same model may take keys and values of the kept sentences
    kv: Option<KvEncoding> = None,
        SettingField::new("Keys and values", Group::Refiner, Kind::Word(&KvEncoding::NAMES)).or(NO_KV);
    /// Model that answers, by its name in the API
    model: Option<String> = None,
        SettingField::new("Model", Group::Model, Kind::Model).or(ANY_MODEL);
    /// Adapter of that model
    adapter: Option<String> = None,
        SettingField::new("Adapter", Group::Model, Kind::Adapter).or(NO_ADAPTER);
}

/// One setting that differs between two versions.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingChange {
    /// Which setting.
    pub field: &'static SettingField,
    /// Its value before.
    pub from: Value,
    /// Its value after.
    pub to: Value,
}

/// A setting that is out of its bounds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// r is below xi.
    #[error("ratio {ratio} must be at least xi {xi}")]
    Ratio {
        /// The ratio.
        ratio: f32,
        /// The scene's smallest.
        xi: f32,
    },
    /// A ratio below 1 in a scene that does not refine.
    #[error("ratio {0} needs a scene that allows refinement")]
    NotRefined(f32),
    /// L is below its floor.
    #[error("assist tokens {tokens} must be at least the floor {floor}")]
    AssistTokens {
        /// L.
        tokens: u32,
        /// The scene's floor.
        floor: u32,
    },
    /// L or its floor is above the largest L.
    #[error("assist max {max} must be at least {tokens}, the scene's L or its floor")]
    AssistMax {
        /// L, or its floor if the optimizer chooses L.
        tokens: u32,
        /// The scene's largest L.
        max: u32,
    },
    /// The name of a model or an adapter is not valid.
    #[error("{field} `{name}` must be 1 to {NAME_BYTES_MAX} visible ASCII characters")]
    Name {
        /// Which setting.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// A text is too long.
    #[error("field `{field}` has {bytes} bytes, the limit is {SCENE_TEXT_BYTES_MAX}")]
    Text {
        /// Which setting.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A text holds NUL, which PostgreSQL cannot store.
    #[error("field `{field}` must not hold the character U+0000")]
    Nul {
        /// Which setting.
        field: &'static str,
    },
}

impl SettingsError {
    /// Returns the name of the setting that is out of its bounds.
    pub fn field(&self) -> &str {
        match self {
            Self::Range(range) => &range.field,
            Self::Ratio { .. } | Self::NotRefined(_) => "ratio",
            Self::AssistTokens { .. } => "assist_tokens",
            Self::AssistMax { .. } => "assist_max",
            Self::Name { field, .. } | Self::Text { field, .. } | Self::Nul { field } => field,
        }
    }
}

impl SceneSettings {
    /// Returns the defaults with this system message.
    pub fn with_system(system: impl Into<String>) -> Self {
        Self { system: system.into(), ..Self::default() }
    }

    /// Returns the field of the setting of this name, if there is one.
    pub fn field(name: &str) -> Option<&'static SettingField> {
        Self::FIELDS.iter().find(|field| field.name == name)
    }

    /// Returns every setting with its value as JSON, in the order of [`SceneSettings::FIELDS`].
    pub fn fields(&self) -> impl Iterator<Item = (&'static SettingField, Value)> {
        self.each().map(|(field, setting)| (field, setting.value()))
    }

    /// Returns the settings whose values differ in `newer`.
    pub fn diff(&self, newer: &Self) -> Vec<SettingChange> {
        let pairs = self.fields().zip(newer.fields());
        let change = |((field, from), (_, to))| SettingChange { field, from, to };
        pairs.map(change).filter(|change| change.from != change.to).collect()
    }

    /// Returns a copy with these values changed.
    ///
    /// # Errors
    /// The error of `serde_json` if a value does not have the type of its setting.
    pub fn with(
        &self,
        changes: impl IntoIterator<Item = (&'static SettingField, Value)>,
    ) -> serde_json::Result<Self> {
        let values = self.fields().chain(changes);
        let values: Map<String, Value> =
            values.map(|(field, value)| (field.name.to_owned(), value)).collect();
        serde_json::from_value(Value::Object(values))
    }

    /// Reads settings that another version of the program wrote. Unknown settings are ignored, and missing
    /// ones get their default.
    ///
    /// # Errors
    /// The error of `serde_json` if a value does not have the type of its setting.
    pub fn read(mut written: Map<String, Value>) -> serde_json::Result<Self> {
        let fields = Self::FIELDS.iter();
        let known = fields.filter_map(|field| Some((field, written.remove(field.name)?)));
        Self::default().with(known)
    }

    /// Checks the ranges of all numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first number that is out of its range.
    pub fn check_ranges(&self) -> Result<(), OutOfRange> {
        self.each().try_for_each(|(field, setting)| setting.check_range(field))
    }

    /// Checks every bound. Does not check that the mode exists, since only the refiner knows that.
    ///
    /// # Errors
    /// [`SettingsError`] for the first setting that is out of its bounds, with the limit.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.check_ranges()?;
        if let Some(ratio) = self.ratio {
            if ratio < self.xi {
                return Err(SettingsError::Ratio { ratio, xi: self.xi });
            }
            if ratio < 1.0 && !self.refine {
                return Err(SettingsError::NotRefined(ratio));
            }
        }
        if let Some(tokens) = self.assist_tokens.filter(|&tokens| tokens < self.assist_floor) {
            return Err(SettingsError::AssistTokens { tokens, floor: self.assist_floor });
        }
        let (tokens, max) = (self.assist_tokens.unwrap_or(self.assist_floor), self.assist_max);
        if tokens > max {
            return Err(SettingsError::AssistMax { tokens, max });
        }
        let mut texts = self.each().filter_map(|(field, setting)| Some((field, setting.text()?)));
        texts.try_for_each(|(field, text)| check_text(field, text))
    }
}

fn check_text(field: &SettingField, text: &str) -> Result<(), SettingsError> {
    let (field, kind) = (field.name, field.kind);
    match kind {
        Kind::Model | Kind::Adapter if !is_model_name(text) => {
            Err(SettingsError::Name { field, name: text.chars().take(NAME_BYTES_MAX).collect() })
        }
        Kind::Text { .. } if text.len() > SCENE_TEXT_BYTES_MAX => {
            Err(SettingsError::Text { field, bytes: text.len() })
        }
        Kind::Text { .. } if text.contains('\0') => Err(SettingsError::Nul { field }),
        _ => Ok(()),
    }
}

/// Returns whether a model or an adapter may have this name.
pub fn is_model_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests;
