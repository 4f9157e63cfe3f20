//! What differs between two versions of a scene, field by field.

use serde_json::{Value, json};

use super::SceneSettings;

/// One field that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldChange {
    /// Its name in the API.
    pub field: &'static str,
    /// What it was.
    pub from: Value,
    /// What it is.
    pub to: Value,
}

impl SceneSettings {
    /// Every setting by its name in the API, in the order in which people read them.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, Value); 14] {
        // The shortest decimal of an f32, not its neighbour in f64.
        let number = |value: f32| json!(super::decimal(value));
        [
            ("system", json!(self.system)),
            ("question_prefix", json!(self.question_prefix)),
            ("ratio", self.ratio.map_or(Value::Null, number)),
            ("xi", number(self.xi)),
            ("assist_tokens", json!(self.assist_tokens)),
            ("assist_floor", json!(self.assist_floor)),
            ("assist_max", json!(self.assist_max)),
            ("tau_ms", number(self.tau_ms)),
            ("tolerance", number(self.tolerance)),
            ("corrector", json!(self.corrector.as_str())),
            ("refine", json!(self.refine)),
            ("mode", json!(self.mode.to_string())),
            ("model", json!(self.model)),
            ("adapter", json!(self.adapter)),
        ]
    }

    /// The fields that differ in `newer`; none where both are equal.
    #[must_use]
    pub fn diff(&self, newer: &SceneSettings) -> Vec<FieldChange> {
        let pairs = self.fields().into_iter().zip(newer.fields());
        pairs
            .filter(|((_, from), (_, to))| from != to)
            .map(|((field, from), (_, to))| FieldChange { field, from, to })
            .collect()
    }
}

/// Changes as JSON: `{"xi": {"from": 0.25, "to": 0.5}}`.
#[must_use]
pub fn changes_json(changes: &[FieldChange]) -> Value {
    let change =
        |change: &FieldChange| (change.field.to_owned(), json!({ "from": change.from, "to": change.to }));
    Value::Object(changes.iter().map(change).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Corrector;

    #[test]
    fn exactly_the_fields_that_differ_are_named() {
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
        let fields: Vec<&str> = changes.iter().map(|change| change.field).collect();
        assert_eq!(fields, ["ratio", "xi", "corrector", "adapter"]);
        assert_eq!(
            changes_json(&changes),
            json!({
                "ratio": { "from": null, "to": 0.5 },
                "xi": { "from": 0.25, "to": 0.3 },
                "corrector": { "from": "cloud", "to": "device" },
                "adapter": { "from": null, "to": "law" },
            })
        );
    }
}
