//! Descriptions of a scene's settings: name, texts for people, and the values that each takes.
//!
//! Pure data. Never: holds a value of a scene. Always: forms, command line options, schemas and messages are
//! made from these fields, so that a setting has one name and one range everywhere.

use serde_json::Value;

use super::Corrector;
use crate::kv::KvEncoding;
use crate::range::{Bounded, NumberRange, OutOfRange};
use crate::verify::VerifyPolicy;

/// The longest text of a scene, in bytes.
pub const SCENE_TEXT_BYTES_MAX: usize = 64 * 1024;

/// The description of one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SettingField {
    /// Its name in JSON, forms and messages.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it means, in one clause.
    pub help: &'static str,
    /// The group of a form that shows it.
    pub group: SettingGroup,
    /// Which values it takes.
    pub kind: SettingKind,
    /// How a missing value is written; `None` if the setting always has a value.
    pub absent: Option<Absent>,
    /// Whether devices receive its value.
    pub on_device: bool,
}

impl SettingField {
    /// Makes a field that always has a value and that devices receive. The table adds its name and help.
    pub(super) const fn new(title: &'static str, group: SettingGroup, kind: SettingKind) -> Self {
        Self { name: "", title, help: "", group, kind, absent: None, on_device: true }
    }

    /// Allows the setting to have no value.
    pub(super) const fn or(self, absent: Absent) -> Self {
        Self { absent: Some(absent), ..self }
    }

    /// Keeps the setting in the cloud: devices do not receive it.
    pub(super) const fn in_cloud(self) -> Self {
        Self { on_device: false, ..self }
    }

    /// Returns whether the setting is a number that may have no value, such as one that the optimizer
    /// chooses.
    pub fn may_be_automatic(&self) -> bool {
        self.absent.is_some() && matches!(self.kind, SettingKind::Number(_) | SettingKind::Whole(_))
    }
}

/// Which values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SettingKind {
    /// A text of at most [`SCENE_TEXT_BYTES_MAX`] bytes.
    Text {
        /// Height of its field in a form, in lines.
        lines: u8,
    },
    /// A number in this range.
    Number(NumberRange),
    /// A whole number in this range.
    Whole(NumberRange),
    /// Yes or no.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// The name of a refiner mode. This package does not know which exist.
    Mode,
    /// The name of a model.
    Model,
    /// The name of an adapter of the model.
    Adapter,
}

/// How a setting without a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absent {
    /// The word on the command line.
    pub word: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
}

/// Settings that a form shows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingGroup {
    /// r.
    Ratio,
    /// L.
    Assist,
    /// Bounds of r, L and gaps.
    Bounds,
    /// How sentences are ranked, and whose tokens are used.
    Refiner,
    /// Which model answers.
    Model,
    /// Texts of the prompt.
    Texts,
}

impl SettingGroup {
    /// Every group, in the order of a form.
    pub const ALL: [Self; 6] =
        [Self::Ratio, Self::Assist, Self::Bounds, Self::Refiner, Self::Model, Self::Texts];

    /// Returns its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ratio => "r, share of the content that is kept",
            Self::Assist => "L, tokens that the cloud writes",
            Self::Bounds => "Bounds",
            Self::Refiner => "Refiner and corrector",
            Self::Model => "Model and adapter",
            Self::Texts => "Texts",
        }
    }
}

/// A type that the value of a setting can have.
pub(super) trait Setting {
    /// Returns the value as JSON. A number has the fewest digits that identify it in its type.
    fn value(&self) -> Value;

    /// Checks that a number is in the field's range. Always succeeds for other types.
    fn check_range(&self, _field: &SettingField) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Returns the value if it is a text.
    fn text(&self) -> Option<&str> {
        None
    }
}

impl Setting for f32 {
    fn value(&self) -> Value {
        self.shown().into()
    }

    fn check_range(&self, field: &SettingField) -> Result<(), OutOfRange> {
        field.kind.check(field.name, *self)
    }
}

impl Setting for u32 {
    fn value(&self) -> Value {
        (*self).into()
    }

    fn check_range(&self, field: &SettingField) -> Result<(), OutOfRange> {
        field.kind.check(field.name, *self)
    }
}

impl Setting for bool {
    fn value(&self) -> Value {
        (*self).into()
    }
}

impl Setting for Corrector {
    fn value(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for VerifyPolicy {
    fn value(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for KvEncoding {
    fn value(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for String {
    fn value(&self) -> Value {
        self.as_str().into()
    }

    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl<T: Setting> Setting for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::value)
    }

    fn check_range(&self, field: &SettingField) -> Result<(), OutOfRange> {
        self.as_ref().map_or(Ok(()), |value| value.check_range(field))
    }

    fn text(&self) -> Option<&str> {
        self.as_ref().and_then(T::text)
    }
}

impl SettingKind {
    /// Checks that a number is in the range, if this kind has one.
    fn check<N: Bounded>(self, name: &str, value: N) -> Result<(), OutOfRange> {
        match self {
            Self::Number(range) | Self::Whole(range) => range.check(name, value),
            _ => Ok(()),
        }
    }
}
