//! Embeddings: refused by name, because no program has a model for them.

use crate::error::FieldError;

/// Returns the refusal of a request for embeddings.
pub fn refusal() -> FieldError {
    FieldError::new(
        "model",
        "there is no embedding model here; the models that are served write answers, so send embeddings to \
         another service",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_what_is_missing() {
        let refusal = refusal();
        assert_eq!(refusal.param(), Some("model"));
        assert!(refusal.to_string().contains("no embedding model"), "{refusal}");
    }
}
