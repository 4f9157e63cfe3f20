//! The list of models.

use serde::Serialize;
use utoipa::ToSchema;

/// The models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    #[schema(value_type = String)]
    object: &'static str,
    /// The models.
    data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCard {
    /// Its name.
    id: String,
    /// Always `model`.
    #[schema(value_type = String)]
    object: &'static str,
    /// Always 0.
    created: u64,
    /// Always `baton`.
    #[schema(value_type = String)]
    owned_by: &'static str,
    /// Tokens of prompt and answer together; null if this program has no model of its own.
    context_length: Option<u64>,
    /// SHA-256 digest of its tokenizer, in hexadecimal.
    tokenizer_sha256: String,
    /// Names of its adapters that scenes may use.
    adapters: Vec<String>,
}

impl ModelList {
    /// Makes a list of these models.
    pub fn new(models: impl IntoIterator<Item = ModelCard>) -> ModelList {
        ModelList { object: "list", data: models.into_iter().collect() }
    }
}

impl ModelCard {
    /// Makes the entry of a model; `context_length` is in tokens.
    pub fn new(
        id: impl Into<String>,
        context_length: Option<usize>,
        tokenizer_sha256: impl Into<String>,
    ) -> ModelCard {
        ModelCard {
            id: id.into(),
            object: "model",
            created: 0,
            owned_by: "baton",
            context_length: context_length.map(|tokens| tokens as u64),
            tokenizer_sha256: tokenizer_sha256.into(),
            adapters: Vec::new(),
        }
    }

    /// Sets the names of its adapters.
    #[must_use]
    pub fn with_adapters<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> ModelCard {
        self.adapters = names.into_iter().map(str::to_owned).collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_has_openais_fields_and_ours() {
        let card = ModelCard::new("m", Some(2048), "ab").with_adapters(["law"]);
        let want = json!({ "id": "m", "object": "model", "created": 0, "owned_by": "baton",
            "context_length": 2048, "tokenizer_sha256": "ab", "adapters": ["law"] });
        assert_eq!(serde_json::to_value(&card).unwrap(), want);
        let list = serde_json::to_value(ModelList::new([card])).unwrap();
        assert_eq!(list, json!({ "object": "list", "data": [want] }));
    }
}
