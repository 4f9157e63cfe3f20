//! Log probabilities of an answer's tokens, as OpenAI writes them.
//!
//! Always: they become JSON text only when they are sent. As JSON values they would take a hundred times as
//! much memory.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

/// Log probability that stands for a probability of 0. JSON has no infinity, and other services send this
/// value.
const IMPOSSIBLE: f64 = -9999.0;

/// The part of a vocabulary that log probabilities need.
pub trait TokenBytes: fmt::Debug + Send + Sync {
    /// Returns the bytes of a token; empty for unknown ids.
    fn token_bytes(&self, id: u32) -> &[u8];
}

/// Log probability of a token: the natural logarithm of its probability under the model's own logits, before
/// any filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its log probability; minus infinity if its probability was 0.
    pub logprob: f32,
}

/// Log probabilities at one position of the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaceLogprobs {
    /// The token that was sampled.
    pub chosen: TokenLogprob,
    /// The most probable tokens, in descending order.
    pub top: Vec<TokenLogprob>,
}

/// Log probabilities at one position, and the vocabulary that gives the bytes of its tokens.
#[derive(Debug, Clone)]
pub struct Place {
    vocabulary: Arc<dyn TokenBytes>,
    logprobs: PlaceLogprobs,
}

impl Place {
    /// Makes a position with tokens from this vocabulary.
    pub fn new(vocabulary: Arc<dyn TokenBytes>, logprobs: PlaceLogprobs) -> Place {
        Place { vocabulary, logprobs }
    }
}

impl Place {
    /// Returns the text and the log probability of the token that was sampled.
    pub(crate) fn chosen(&self) -> (Cow<'_, str>, f64) {
        let written = WrittenToken::new(self.vocabulary.as_ref(), self.logprobs.chosen);
        (written.token, written.logprob)
    }

    /// Returns the texts and the log probabilities of the most probable tokens.
    pub(crate) fn top(&self) -> impl Iterator<Item = (Cow<'_, str>, f64)> {
        let written = |&token: &TokenLogprob| WrittenToken::new(self.vocabulary.as_ref(), token);
        self.logprobs.top.iter().map(written).map(|written| (written.token, written.logprob))
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = |&token: &TokenLogprob| WrittenToken::new(self.vocabulary.as_ref(), token);
        let mut place = serializer.serialize_struct("Place", 4)?;
        let WrittenToken { token, logprob, bytes } = written(&self.logprobs.chosen);
        place.serialize_field("token", &token)?;
        place.serialize_field("logprob", &logprob)?;
        place.serialize_field("bytes", bytes)?;
        let top: Vec<WrittenToken<'_>> = self.logprobs.top.iter().map(written).collect();
        place.serialize_field("top_logprobs", &top)?;
        place.end()
    }
}

/// A token as OpenAI writes it.
#[derive(Debug, Serialize)]
struct WrittenToken<'a> {
    token: Cow<'a, str>,
    logprob: f64,
    bytes: &'a [u8],
}

impl<'a> WrittenToken<'a> {
    fn new(vocabulary: &'a dyn TokenBytes, TokenLogprob { id, logprob }: TokenLogprob) -> WrittenToken<'a> {
        let bytes = vocabulary.token_bytes(id);
        let logprob = if logprob.is_finite() { f64::from(logprob) } else { IMPOSSIBLE };
        WrittenToken { token: String::from_utf8_lossy(bytes), logprob, bytes }
    }
}

/// Log probabilities of an answer or a chunk.
#[derive(Debug, Serialize, ToSchema)]
pub struct LogprobsBody {
    /// One entry for each token.
    #[schema(value_type = Vec<PlaceBody>)]
    content: Vec<Place>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    refusal: (),
}

impl LogprobsBody {
    /// Returns the log probabilities at these positions, or `None` if there are no positions.
    pub(crate) fn of(content: Vec<Place>) -> Option<LogprobsBody> {
        (!content.is_empty()).then_some(LogprobsBody { content, refusal: () })
    }
}

/// A token, and the most probable tokens at its position.
///
/// Describes the JSON of a [`Place`] for the API document. It is never sent.
#[derive(Debug, Serialize, ToSchema)]
pub struct PlaceBody {
    /// Its text; an incomplete character becomes U+FFFD.
    token: String,
    /// Natural logarithm of its probability; -9999 if the probability was 0.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
    /// The most probable tokens at this position.
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Value>,
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Three tokens: a letter, a byte of an incomplete character, and an empty one.
    #[derive(Debug)]
    struct Three;

    impl TokenBytes for Three {
        fn token_bytes(&self, id: u32) -> &[u8] {
            [&b"a"[..], b"\xc3", b""][id as usize]
        }
    }

    /// Makes a position with these tokens, all equally likely.
    pub(crate) fn place(ids: &[u32]) -> Place {
        let token = |&id: &u32| TokenLogprob { id, logprob: -0.5 };
        let logprobs = PlaceLogprobs { chosen: token(&ids[0]), top: ids.iter().map(token).collect() };
        Place::new(Arc::new(Three), logprobs)
    }

    #[test]
    fn a_place_is_written_with_bytes_and_text() {
        let written = |id: u32| {
            let (token, bytes) = [("a", &b"a"[..]), ("\u{fffd}", b"\xc3"), ("", b"")][id as usize];
            json!({ "token": token, "logprob": -0.5, "bytes": bytes })
        };
        let mut want = written(1);
        want["top_logprobs"] = json!([written(1), written(0), written(2)]);
        assert_eq!(serde_json::to_value(place(&[1, 0, 2])).unwrap(), want);
        let never = TokenLogprob { id: 0, logprob: f32::NEG_INFINITY };
        let place = Place::new(Arc::new(Three), PlaceLogprobs { chosen: never, top: Vec::new() });
        assert_eq!(serde_json::to_value(place).unwrap()["logprob"], -9999.0);
    }
}
