//! What the device must know about a scene before it asks: `GET /v1/scenes/{id}`.

use serde::{Deserialize, Serialize};

use crate::range::OutOfRange;
use crate::request::limits;

/// Whose token counts where cloud and device differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Corrector {
    /// The cloud's tokens are the truth.
    #[default]
    Cloud,
    /// The device's own choice counts at indices that are not shown yet.
    Device,
}

impl Corrector {
    /// The corrector as on the wire.
    pub fn as_str(self) -> &'static str {
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

/// Not the name of a corrector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown corrector `{0}`, must be `cloud` or `device`")]
pub struct UnknownCorrector(String);

/// One immutable version of a scene's settings, as the device sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SceneInfo {
    /// Scene id.
    pub id: String,
    /// Version; a change is a new version.
    pub version: u32,
    /// System text, the fixed prefix of every prompt.
    pub system: String,
    /// What stands between the content and the question, e.g. `"\n\nQuestion: "`.
    pub question_prefix: String,
    /// Share of the content to keep (r); `None`: the optimizer decides.
    pub ratio: Option<f32>,
    /// Smallest share that the scene's quality allows (xi); 1 forbids refinement.
    pub xi: f32,
    /// Tokens the cloud writes (L); `None`: the optimizer decides.
    pub assist_tokens: Option<u32>,
    /// Fewest tokens the cloud writes, also under load.
    pub assist_floor: u32,
    /// Most tokens the cloud writes, whatever a request asks for.
    #[serde(default = "any_length")]
    pub assist_max: u32,
    /// Largest tolerable gap between shown tokens, in milliseconds.
    pub tau_ms: f32,
    /// Whose token counts where cloud and device differ.
    #[serde(default)]
    pub corrector: Corrector,
    /// Refinement is allowed.
    pub refine: bool,
    /// Model that serves the scene.
    pub model: String,
    /// Adapter on that model, if the scene has one.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Digest of the cloud model's tokenizer, if the service says it here.
    #[serde(default)]
    pub tokenizer_sha256: Option<String>,
    /// Most tokens of a prompt that the cloud takes, by its own tokenizer, if the service says it here.
    #[serde(default)]
    pub prompt_tokens_max: Option<u32>,
}

/// A service that says nothing bounds L by its model's context alone.
fn any_length() -> u32 {
    limits::ASSIST_TOKENS.max as u32
}

impl SceneInfo {
    /// Checks the ranges of all numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] naming the field.
    pub fn check(&self) -> Result<(), OutOfRange> {
        limits::RATIO.check_opt("ratio", self.ratio)?;
        limits::RATIO.check("xi", self.xi)?;
        limits::ASSIST_TOKENS.check_opt("assist_tokens", self.assist_tokens)?;
        limits::ASSIST_TOKENS.check("assist_floor", self.assist_floor)?;
        limits::ASSIST_TOKENS.check("assist_max", self.assist_max)?;
        limits::TAU_MS.check("tau_ms", self.tau_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> SceneInfo {
        SceneInfo {
            id: "doc-qa".to_owned(),
            version: 7,
            system: "You answer from the document.".to_owned(),
            question_prefix: "\n\nQuestion: ".to_owned(),
            ratio: Some(0.25),
            xi: 0.1,
            assist_tokens: None,
            assist_floor: 4,
            assist_max: 4096,
            tau_ms: 100.0,
            corrector: Corrector::Device,
            refine: true,
            model: "demo-cloud".to_owned(),
            adapter: None,
            tokenizer_sha256: None,
            prompt_tokens_max: Some(8191),
        }
    }

    #[test]
    fn a_scene_reads_back_and_a_newer_field_is_ignored() {
        let mut json = serde_json::to_value(scene()).unwrap();
        assert_eq!(json["ratio"], 0.25);
        json["brand_new"] = serde_json::json!([1, 2]);
        assert_eq!(serde_json::from_value::<SceneInfo>(json.clone()).unwrap(), scene());
        json.as_object_mut().unwrap().remove("assist_max");
        assert_eq!(serde_json::from_value::<SceneInfo>(json).unwrap().assist_max, 65_536, "an older service");
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        #[track_caller]
        fn check(field: &str, change: impl Fn(&mut SceneInfo)) {
            let mut scene = scene();
            change(&mut scene);
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
        }
        assert!("both".parse::<Corrector>().is_err());
    }
}
