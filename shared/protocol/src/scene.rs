//! Scenes: their settings, and what a device fetches before it asks (`GET /v1/scenes/{id}`).

mod field;
mod settings;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::range::OutOfRange;
use crate::request::limits;
use crate::tools::Markup;

pub use self::field::{Absent, SCENE_TEXT_BYTES_MAX, SettingField, SettingGroup, SettingKind};
pub use self::settings::{DEFAULT_MODE, SceneSettings, SettingChange, SettingsError, is_model_name};

/// Whose token is used if cloud and device differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Corrector {
    /// The cloud's tokens are used.
    #[default]
    Cloud,
    /// The device's own tokens are used at indices that are not shown yet.
    Device,
}

impl Corrector {
    /// The names of all correctors on the wire.
    pub const NAMES: [&'static str; 2] = [Self::Cloud.as_str(), Self::Device.as_str()];

    /// Returns the corrector's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Device => "device",
        }
    }
}

impl std::str::FromStr for Corrector {
    type Err = UnknownCorrector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cloud" => Ok(Self::Cloud),
            "device" => Ok(Self::Device),
            _ => Err(UnknownCorrector(text.to_owned())),
        }
    }
}

/// A text that names no corrector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown corrector `{0}`, must be `cloud` or `device`")]
pub struct UnknownCorrector(String);

/// One immutable version of a scene, as devices receive it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SceneInfo {
    /// Scene id.
    pub id: String,
    /// Version; a change is a new version.
    pub version: u32,
    /// Its settings, as fields beside `id`. `model` names the model that serves the scene. Settings that
    /// devices do not receive have their default after reading.
    #[serde(flatten, serialize_with = "told", deserialize_with = "read_told")]
    pub settings: SceneSettings,
    /// Digest of the cloud model's tokenizer, if the service sends it.
    #[serde(default)]
    pub tokenizer_sha256: Option<String>,
    /// The most prompt tokens that the cloud accepts, by its own tokenizer, if the service sends it.
    #[serde(default)]
    pub prompt_tokens_max: Option<u32>,
    /// How the cloud's model writes calls, if the service takes tools and forms of answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_markup: Option<Markup>,
}

/// Writes the settings that devices receive.
fn told<S: Serializer>(settings: &SceneSettings, serializer: S) -> Result<S::Ok, S::Error> {
    let told = settings.fields().filter(|(field, _)| field.on_device);
    serializer.collect_map(told.map(|(field, value)| (field.name, value)))
}

/// Reads the settings that a service sends. It may be older or newer than this program.
fn read_told<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SceneSettings, D::Error> {
    let mut told = Map::<String, Value>::deserialize(deserializer)?;
    // A service that does not send it limits L only by its model's context.
    told.entry("assist_max").or_insert_with(|| (limits::ASSIST_TOKENS.max as u32).into());
    SceneSettings::read(told).map_err(D::Error::custom)
}

impl SceneInfo {
    /// Checks the ranges of all numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first number that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.settings.check_ranges()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> SceneInfo {
        SceneInfo {
            id: "doc-qa".to_owned(),
            version: 7,
            settings: SceneSettings {
                question_prefix: "\n\nQuestion: ".to_owned(),
                ratio: Some(0.3),
                xi: 0.1,
                corrector: Corrector::Device,
                model: Some("demo-cloud".to_owned()),
                ..SceneSettings::with_system("You answer from the document.")
            },
            tokenizer_sha256: None,
            prompt_tokens_max: Some(8191),
            call_markup: None,
        }
    }

    #[test]
    fn devices_are_told_the_same_fields_as_ever() {
        let text = [
            r#"{"id":"doc-qa","version":7,"system":"You answer from the document.","#,
            r#""question_prefix":"\n\nQuestion: ","ratio":0.3,"xi":0.1,"assist_tokens":null,"#,
            r#""assist_floor":4,"assist_max":4096,"tau_ms":100.0,"refine":true,"corrector":"device","#,
            r#""verify":"off","kv":null,"model":"demo-cloud","adapter":null,"tokenizer_sha256":null,"prompt_tokens_max":8191}"#,
        ]
        .concat();
        assert_eq!(serde_json::to_string(&scene()).unwrap(), text);
        assert_eq!(serde_json::from_str::<SceneInfo>(&text).unwrap(), scene());
        let hidden = SceneSettings { tolerance: 0.5, mode: "other".to_owned(), ..scene().settings };
        let scene = SceneInfo { settings: hidden, ..scene() };
        assert_eq!(serde_json::to_string(&scene).unwrap(), text, "a device needs neither");
    }

    #[test]
    fn older_and_newer_services_are_understood() {
        let mut json = serde_json::to_value(scene()).unwrap();
        json["brand_new"] = serde_json::json!([1, 2]);
        assert_eq!(serde_json::from_value::<SceneInfo>(json.clone()).unwrap(), scene());
        let fields = json.as_object_mut().unwrap();
        fields.remove("assist_max");
        fields.remove("corrector");
        let older = serde_json::from_value::<SceneInfo>(json.clone()).unwrap().settings;
        assert_eq!((older.assist_max, older.corrector), (65_536, Corrector::Cloud));
        json["xi"] = serde_json::json!("small");
        assert!(serde_json::from_value::<SceneInfo>(json.clone()).is_err());
        json.as_object_mut().unwrap().remove("id");
        assert!(serde_json::from_value::<SceneInfo>(json).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        #[track_caller]
        fn check(field: &str, change: impl Fn(&mut SceneSettings)) {
            let mut scene = scene();
            change(&mut scene.settings);
            assert_eq!(scene.check().unwrap_err().field, field);
        }
        assert!(scene().check().is_ok());
        check("ratio", |s| s.ratio = Some(0.0));
        check("ratio", |s| s.ratio = Some(f32::NAN));
        check("xi", |s| s.xi = 1.5);
        check("assist_tokens", |s| s.assist_tokens = Some(0));
        check("assist_floor", |s| s.assist_floor = 0);
        check("assist_max", |s| s.assist_max = 0);
        check("tau_ms", |s| s.tau_ms = f32::INFINITY);
    }

    #[test]
    fn correctors_have_names() {
        for corrector in [Corrector::Cloud, Corrector::Device] {
            assert_eq!(corrector.as_str().parse(), Ok(corrector));
            assert_eq!(serde_json::to_value(corrector).unwrap(), corrector.as_str());
        }
        assert!("both".parse::<Corrector>().is_err());
    }
}
