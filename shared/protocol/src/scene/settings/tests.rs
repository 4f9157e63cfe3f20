//! Tests of settings: bounds, the table against the struct, JSON of other versions, differences.

use serde_json::json;

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
    check(|s| s.system = "a\0b".into(), Some("field `system` must not hold the character U+0000"));
    check(
        |s| s.question_prefix = "\0".into(),
        Some("field `question_prefix` must not hold the character U+0000"),
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
    check(|s| s.tau_ms = f32::NAN, Some("field `tau_ms` is NaN, must be 1 to 60000"));
    check(|s| s.tolerance = 1.5, Some("field `tolerance` is 1.5, must be 0 to 1"));
    check(|s| s.least_value = Some(1.5), Some("field `least_value` is 1.5, must be 0 to 1"));
    check(|s| s.model = Some(String::new()), Some("model `` must be 1 to 128 visible ASCII characters"));
    check(
        |s| s.adapter = Some("a b".into()),
        Some("adapter `a b` must be 1 to 128 visible ASCII characters"),
    );
    check(|s| (s.model, s.adapter) = (Some("m".repeat(128)), Some("law@2".into())), None);
    check(
        |s| s.system = "x".repeat(SCENE_TEXT_BYTES_MAX + 1),
        Some("field `system` has 65537 bytes, the limit is 65536"),
    );
}

#[test]
fn the_setting_at_fault_is_told() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut SceneSettings), want: &str) {
        let mut settings = SceneSettings::with_system("s");
        change(&mut settings);
        assert_eq!(settings.check().unwrap_err().field(), want);
    }
    check(|s| s.xi = 0.0, "xi");
    check(|s| s.ratio = Some(0.1), "ratio");
    check(|s| (s.refine, s.ratio) = (false, Some(0.5)), "ratio");
    check(|s| s.assist_tokens = Some(1), "assist_tokens");
    check(|s| s.assist_max = 1, "assist_max");
    check(|s| s.tau_ms = f32::NAN, "tau_ms");
    check(|s| s.adapter = Some(String::new()), "adapter");
    check(|s| s.system = "x".repeat(65_537), "system");
    check(|s| s.question_prefix = "x".repeat(65_537), "question_prefix");
}

/// Returns settings that all have a value.
fn full() -> SceneSettings {
    SceneSettings {
        ratio: Some(0.3),
        assist_tokens: Some(9),
        least_value: Some(0.2),
        kv: Some(KvEncoding::Q8),
        model: Some("m".into()),
        adapter: Some("law".into()),
        ..SceneSettings::with_system("s")
    }
}

#[test]
fn the_table_describes_the_type() {
    let settings = full();
    let json = serde_json::to_value(&settings).unwrap();
    let names: Vec<&str> = SceneSettings::FIELDS.iter().map(|field| field.name).collect();
    assert_eq!(json.as_object().unwrap().len(), names.len());
    assert!(names.iter().all(|name| json.get(name).is_some()), "{json}");
    for (field, value) in settings.fields() {
        let fits = match field.kind {
            Kind::Text { .. } | Kind::Word(_) | Kind::Mode | Kind::Model | Kind::Adapter => value.is_string(),
            Kind::Number(_) => value.is_f64(),
            Kind::Whole(_) => value.is_u64(),
            Kind::Flag => value.is_boolean(),
        };
        assert!(fits && !field.title.is_empty() && !field.help.is_empty(), "{field:?}: {value}");
        let without = settings.with([(field, Value::Null)]);
        assert_eq!(without.is_ok(), field.absent.is_some(), "{}", field.name);
    }
    for group in Group::ALL {
        let own = SceneSettings::FIELDS.iter().filter(|field| field.group == group);
        assert!(own.count() > 0 && !group.title().is_empty(), "{group:?}");
    }
}

#[test]
fn settings_are_json_and_back() {
    let text = serde_json::to_string(&full()).unwrap();
    assert!(text.contains("\"ratio\":0.3,"), "{text}");
    assert_eq!(serde_json::from_str::<SceneSettings>(&text).unwrap(), full());
    let strict = |change: fn(&mut Map<String, Value>)| {
        let mut map: Map<String, Value> = serde_json::from_str(&text).unwrap();
        change(&mut map);
        serde_json::from_value::<SceneSettings>(Value::Object(map)).is_ok()
    };
    assert!(strict(|map| map.retain(|name, _| name != "model")), "no model is the default one");
    assert!(!strict(|map| map.retain(|name, _| name != "xi")), "it must be there");
    assert!(!strict(|map| map.extend([("colour".to_owned(), json!(1))])), "it is unknown");
}

#[test]
fn another_versions_settings_are_read() {
    let mut map: Map<String, Value> = serde_json::from_str(&serde_json::to_string(&full()).unwrap()).unwrap();
    map.remove("tau_ms");
    map.insert("colour".to_owned(), json!("red"));
    assert_eq!(SceneSettings::read(map.clone()).unwrap(), full(), "the default tau, and no colour");
    map.insert("xi".to_owned(), json!("small"));
    assert!(SceneSettings::read(map).is_err());
}

#[test]
fn exactly_the_settings_that_differ_are_named() {
    let old = SceneSettings::with_system("a");
    assert_eq!(old.diff(&old), []);
    let new = SceneSettings {
        xi: 0.3,
        ratio: Some(0.5),
        corrector: Corrector::Device,
        adapter: Some("law".into()),
        ..old.clone()
    };
    let changes = old.diff(&new);
    let named: Vec<String> =
        changes.iter().map(|c| format!("{} {} {}", c.field.name, c.from, c.to)).collect();
    let want = ["ratio null 0.5", "xi 0.25 0.3", "corrector \"cloud\" \"device\"", "adapter null \"law\""];
    assert_eq!(named, want);
    let changed = old.with(changes.into_iter().map(|change| (change.field, change.to)));
    assert_eq!(changed.unwrap(), new);
}
