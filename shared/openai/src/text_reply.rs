//! A text completion, in one piece or as chunks of a stream.
//!
//! Always: the chunks, put together, are the reply in one piece. Both have the same shape: a chunk has the
//! text that it adds.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::logprobs::Place;
use crate::reply::{FinishReason, Head};
use crate::usage::Usage;

/// A text completion, or a chunk of one.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextCompletion {
    /// Id of the completion, the same in every part.
    pub(crate) id: String,
    /// `text_completion`.
    #[schema(value_type = String)]
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Name of the model.
    pub(crate) model: String,
    /// One choice; empty in a chunk with token counts or with progress.
    pub(crate) choices: Vec<TextChoice>,
    /// Number of tokens. In a stream only if they were requested: in the last chunk, and null in all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
    /// Baton's own field: notes from a device agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) baton: Option<Value>,
    /// Progress of the prompt, if `stream_options.include_progress` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) x_progress: Option<Value>,
}

impl TextCompletion {
    /// Makes a part without choices.
    pub(crate) fn bare(head: &Head) -> TextCompletion {
        TextCompletion {
            id: head.id.clone(),
            object: "text_completion",
            created: head.created,
            model: head.model.clone(),
            choices: Vec::new(),
            usage: None,
            baton: None,
            x_progress: None,
        }
    }
}

/// The text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    /// 0.
    index: u32,
    /// The text, or what a chunk adds to it.
    text: String,
    /// Log probabilities, if they were requested.
    logprobs: Option<TextLogprobs>,
    /// Why it ended; null before the last part.
    finish_reason: Option<FinishReason>,
}

impl TextChoice {
    pub(crate) fn new(
        text: String,
        logprobs: Option<TextLogprobs>,
        finish_reason: Option<FinishReason>,
    ) -> TextChoice {
        TextChoice { index: 0, text, logprobs, finish_reason }
    }
}

/// Log probabilities of a text completion: four lists with an entry for each token.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    /// The text of each token; an incomplete character becomes U+FFFD.
    tokens: Vec<String>,
    /// Natural logarithms of their probabilities; -9999 if a probability was 0.
    token_logprobs: Vec<f64>,
    /// The most probable tokens at each position, with the logarithms of their probabilities.
    top_logprobs: Vec<BTreeMap<String, f64>>,
    /// Where each token begins: characters of all tokens before it.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Returns the log probabilities at these positions, or `None` if there are none. `offset` counts the
    /// characters of all tokens so far.
    pub(crate) fn of(places: impl IntoIterator<Item = Place>, offset: &mut usize) -> Option<TextLogprobs> {
        let mut body = TextLogprobs::default();
        for place in places {
            let (token, logprob) = place.chosen();
            body.text_offset.push(*offset);
            *offset += token.chars().count();
            body.tokens.push(token.into_owned());
            body.token_logprobs.push(logprob);
            body.top_logprobs
                .push(place.top().map(|(token, logprob)| (token.into_owned(), logprob)).collect());
        }
        (!body.tokens.is_empty()).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logprobs::tests::place;
    use crate::reply::{Ending, Message, Piece};
    use crate::stream::{ChunkWriter, StreamWishes};
    use crate::writer::AnswerWriter;

    fn pieces() -> Vec<Piece> {
        let scored = |text: &str| Piece::Text { text: text.to_owned(), logprobs: Some(place(&[0, 1])) };
        vec![scored(" a"), Piece::text("b"), scored("c")]
    }

    fn ending() -> Ending {
        let usage = baton_protocol::Usage { prompt_tokens: 3, cached_prefix_tokens: 0, completion_tokens: 2 };
        Ending::new(FinishReason::Length, usage)
    }

    #[test]
    fn a_stream_put_together_is_the_whole_completion() {
        let mut message = Message::default();
        message.take(pieces());
        let whole = serde_json::to_value(message.into_completion(Head::text("m"), ending())).unwrap();
        assert_eq!((&whole["object"], &whole["model"]), (&json!("text_completion"), &json!("m")));
        assert!(whole["id"].as_str().unwrap().starts_with("cmpl-"));
        let logprobs = json!({ "tokens": ["a", "a"], "token_logprobs": [-0.5, -0.5], "text_offset": [0, 1],
            "top_logprobs": [{ "a": -0.5, "\u{fffd}": -0.5 }, { "a": -0.5, "\u{fffd}": -0.5 }] });
        let choice = json!({ "index": 0, "text": " abc", "logprobs": logprobs, "finish_reason": "length" });
        assert_eq!(whole["choices"], json!([choice]));
        assert_eq!(whole["usage"]["total_tokens"], 5);

        let mut writer =
            ChunkWriter::new(Head::text("m"), StreamWishes { usage: true, progress: false }, false);
        let mut out = String::new();
        writer.begin(None, &mut out);
        assert_eq!(out, "", "there is no role to tell");
        for piece in pieces() {
            writer.piece(piece, &mut out);
        }
        writer.end(ending(), &mut out);
        writer.done(&mut out);
        let frames: Vec<&str> = out.split_terminator("\n\n").map(|frame| &frame["data: ".len()..]).collect();
        assert_eq!(frames.last(), Some(&"[DONE]"));
        let chunks: Vec<Value> =
            frames[..frames.len() - 1].iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
        let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, " abc");
        let offsets: Vec<&Value> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
            .flatten()
            .collect();
        assert_eq!(offsets, [&json!(0), &json!(1)]);
        let [.., last, counts] = &chunks[..] else { panic!("{chunks:?}") };
        assert_eq!((&last["choices"][0]["finish_reason"], &last["usage"]), (&json!("length"), &Value::Null));
        assert_eq!((&counts["choices"], &counts["usage"]["prompt_tokens"]), (&json!([]), &json!(3)));
        assert!(
            chunks.iter().all(|chunk| chunk["object"] == "text_completion" && chunk.get("usage").is_some())
        );
    }
}
