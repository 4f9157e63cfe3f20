//! Arms and guard rails as people type them, one a line: `NAME WEIGHT [SETTING=VALUE ...]` and
//! `METRIC WORST`.
//!
//! Used by the console and the command line. Always: what is written here is read back as the same arm.

use baton_protocol::{Bounded, SettingField, SettingKind};
use serde_json::{Map, Value};

use super::metric::Metric;
use super::plan::{Arm, Guard, PlanError};
use crate::scene::SceneSettings;

/// Reads an arm.
///
/// # Errors
/// [`PlanError`] if it has no name or weight, or a part is not `SETTING=VALUE`. Whether the arm fits a scene
/// is checked with its plan.
pub fn arm(line: &str) -> Result<Arm, PlanError> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default().to_owned();
    let wrong = |why: &str| PlanError::Value { arm: name.clone(), why: why.to_owned() };
    let weight = words.next().and_then(|word| word.parse().ok());
    let weight = weight.ok_or_else(|| wrong("write NAME WEIGHT [SETTING=VALUE ...], with a whole number"))?;
    let mut overrides = Map::new();
    for word in words {
        let (setting, value) =
            word.split_once('=').ok_or_else(|| wrong(&format!("`{word}` is not SETTING=VALUE")))?;
        overrides.insert(setting.to_owned(), value_of(SceneSettings::field(setting), value));
    }
    Ok(Arm { name, weight, overrides })
}

/// Reads a guard rail.
///
/// # Errors
/// [`PlanError::GuardText`] if it is not a metric and a number.
pub fn guard(line: &str) -> Result<Guard, PlanError> {
    let wrong = |why: String| PlanError::GuardText { line: line.trim().chars().take(80).collect(), why };
    let mut words = line.split_whitespace();
    let metric = words.next().unwrap_or_default().parse::<Metric>().map_err(|err| wrong(err.to_string()))?;
    match (words.next().and_then(|word| word.parse().ok()), words.next()) {
        (Some(worst), None) => Ok(Guard { metric, worst }),
        _ => Err(wrong("write METRIC WORST, with a number".to_owned())),
    }
}

/// Writes an arm.
#[must_use]
pub fn arm_text(arm: &Arm) -> String {
    let words = arm.overrides.iter().map(|(name, value)| format!(" {name}={}", text_of(name, value)));
    format!("{} {}{}", arm.name, arm.weight, words.collect::<String>())
}

/// Writes a guard rail.
#[must_use]
pub fn guard_text(guard: &Guard) -> String {
    format!("{} {}", guard.metric.as_str(), guard.worst)
}

/// Returns the JSON that a word stands for. A word that is no number stays a text, which the check refuses.
fn value_of(field: Option<&SettingField>, word: &str) -> Value {
    let text = || Value::from(word);
    let Some(field) = field else { return text() };
    if field.absent.is_some_and(|absent| absent.word == word) {
        return Value::Null;
    }
    match field.kind {
        SettingKind::Number(_) => word.parse::<f32>().map_or_else(|_| text(), |value| value.shown().into()),
        SettingKind::Whole(_) => word.parse::<u32>().map_or_else(|_| text(), Value::from),
        _ => text(),
    }
}

fn text_of(name: &str, value: &Value) -> String {
    match (SceneSettings::field(name).and_then(|field| field.absent), value) {
        (Some(absent), Value::Null) => absent.word.to_owned(),
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_arm_is_read_back_as_it_was_written() {
        let check = |line: &str, weight: u32, overrides: Value| {
            let arm = arm(line).unwrap_or_else(|err| panic!("{err}"));
            assert_eq!((arm.weight, json!(arm.overrides)), (weight, overrides), "{line}");
            assert_eq!(super::arm(&arm_text(&arm)).unwrap(), arm, "{line}");
        };
        check("control 50", 50, json!({}));
        check("  short  1  assist_tokens=8 ratio=0.3 ", 1, json!({ "assist_tokens": 8, "ratio": 0.3 }));
        check("auto 1 ratio=auto model=default", 1, json!({ "ratio": null, "model": null }));
        check(
            "big 2 model=llama-70b adapter=law@2 mode=bm25",
            2,
            json!({
                "model": "llama-70b", "adapter": "law@2", "mode": "bm25"
            }),
        );
        check("odd 1 ratio=half colour=red", 1, json!({ "ratio": "half", "colour": "red" }));
    }

    #[test]
    fn what_cannot_be_read_is_explained() {
        for line in ["", "short", "short many", "short 1 8"] {
            let err = arm(line).unwrap_err();
            assert_eq!(err.field(), "arms", "{err}");
        }
        let read = guard(" failures 0.02 ").unwrap();
        assert_eq!(read, Guard { metric: Metric::Failures, worst: 0.02 });
        assert_eq!(guard(&guard_text(&read)).unwrap(), read);
        for line in ["", "speed 1", "gap_ms", "gap_ms wide", "gap_ms 0.1 0.2"] {
            let err = guard(line).unwrap_err();
            assert_eq!(err.field(), "guards", "{err}");
        }
    }
}
