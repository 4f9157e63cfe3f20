//! OpenAPI schemas of a scene's settings. Pure. Always: made from [`SceneSettings::FIELDS`], so that the
//! schema lists exactly the settings that exist.

use baton_protocol::{SCENE_TEXT_BYTES_MAX, SettingField, SettingKind, limits};
use baton_refine::Mode;
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::SceneSettings;

/// The schema of [`SceneSettings`]: all settings and no other property.
#[derive(Debug)]
pub enum Settings {}

impl PartialSchema for Settings {
    fn schema() -> RefOr<Schema> {
        let settings = with_settings(ObjectBuilder::new(), SceneSettings::FIELDS.iter());
        settings
            .description(Some("What a scene says and allows."))
            .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
            .into()
    }
}

impl ToSchema for Settings {}

/// The schema of [`baton_protocol::SceneInfo`]: one version of a scene, as devices receive it.
#[derive(Debug, Serialize)]
pub enum SceneBody {}

impl PartialSchema for SceneBody {
    fn schema() -> RefOr<Schema> {
        let scene = ObjectBuilder::new()
            .description(Some("One version of a scene, as devices are told it."))
            .property("id", described(Type::String, false, "Scene id."))
            .required("id")
            .property("version", described(Type::Integer, false, "Version; a change is a new version."))
            .required("version");
        let told = SceneSettings::FIELDS.iter().filter(|field| field.on_device);
        let digest = described(Type::String, true, "Digest of the cloud model's tokenizer.");
        let calls = described(Type::String, true, "How the cloud's model writes calls: `tagged` or `bare`.");
        let tokens = described(Type::Integer, true, "Most tokens of a prompt that the cloud takes.");
        with_settings(scene, told)
            .property("tokenizer_sha256", digest)
            .property("prompt_tokens_max", tokens)
            .property("call_markup", calls)
            .into()
    }
}

impl ToSchema for SceneBody {}

/// Adds these settings to the object as properties. Those that always have a value are required.
fn with_settings(
    object: ObjectBuilder,
    fields: impl Iterator<Item = &'static SettingField>,
) -> ObjectBuilder {
    fields.fold(object, |object, field| {
        let object = object.property(field.name, property(field));
        if field.absent.is_some() { object } else { object.required(field.name) }
    })
}

fn described(kind: Type, may_be_null: bool, help: &str) -> ObjectBuilder {
    let kinds = if may_be_null { SchemaType::Array(vec![kind, Type::Null]) } else { SchemaType::Type(kind) };
    ObjectBuilder::new().schema_type(kinds).description(Some(help))
}

fn property(field: &SettingField) -> ObjectBuilder {
    let of = |kind: Type| match field.absent {
        Some(absent) => described(kind, true, &format!("{}; null: {}.", field.help, absent.meaning)),
        None => described(kind, false, &format!("{}.", field.help)),
    };
    match field.kind {
        SettingKind::Text { .. } => of(Type::String).max_length(Some(SCENE_TEXT_BYTES_MAX)),
        SettingKind::Number(range) => of(Type::Number).minimum(Some(range.min)).maximum(Some(range.max)),
        SettingKind::Whole(range) => {
            of(Type::Integer).minimum(Some(range.min as u32)).maximum(Some(range.max as u32))
        }
        SettingKind::Flag => of(Type::Boolean),
        SettingKind::Word(words) => {
            let none = field.absent.map(|_| Value::Null);
            of(Type::String).enum_values(Some(words.iter().map(|word| Value::from(*word)).chain(none)))
        }
        SettingKind::Mode => of(Type::String).enum_values(Some(Mode::ALL.map(Mode::as_str))),
        SettingKind::Model | SettingKind::Adapter => {
            of(Type::String).min_length(Some(1)).max_length(Some(limits::NAME_BYTES_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described() {
        let schema = serde_json::to_value(Settings::schema()).unwrap();
        assert_eq!(Settings::name(), "Settings");
        assert_eq!(schema["additionalProperties"], false, "{schema}");
        let required = schema["required"].as_array().unwrap();
        for field in SceneSettings::FIELDS {
            let property = &schema["properties"][field.name];
            assert!(property["description"].as_str().unwrap().starts_with(field.help), "{property}");
            assert_eq!(required.iter().any(|name| name == field.name), field.absent.is_none(), "{schema}");
            match field.kind {
                SettingKind::Number(range) => assert_eq!(property["maximum"], range.max, "{property}"),
                SettingKind::Word(words) => {
                    let mut want = serde_json::json!(words);
                    want.as_array_mut().unwrap().extend(field.absent.map(|_| Value::Null));
                    assert_eq!(property["enum"], want);
                }
                _ => {}
            }
        }
    }
}
