//! A text completion request, read and checked.
//!
//! Always: what it shares with a chat request is read and refused by the same code.

use serde_json::Value;

use super::{ChatRequest, Prompt, options, parsed, unsupported};
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::wire::{TextCompletionRequest, TextPrompt};

/// `max_tokens` of a request that does not set it: OpenAI's.
const TOKENS_DEFAULT: usize = 16;
/// The largest `logprobs`.
const LOGPROBS_MAX: u64 = 20;

/// Reads and checks a text completion request.
///
/// Memory: as [`super::parse`].
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn parse_text(json: &[u8], can: &Capabilities) -> Result<ChatRequest, FieldError> {
    let (mut wire, mut ignored) = parsed::<TextCompletionRequest>(json)?;
    refuse(&wire)?;
    let echo = wire.echo.unwrap_or(false);
    let suffix = wire.suffix.take();
    let (prompt, mut common) = wire.into_parts();
    unsupported::settle(&mut common, can, &mut ignored)?;
    let text = text(prompt)?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    let can = Capabilities { tokens_default: Some(TOKENS_DEFAULT), ..*can };
    options(common, Prompt::Text { text, suffix, echo }, &can, ignored)
}

fn refuse(wire: &TextCompletionRequest) -> Result<(), FieldError> {
    let few = wire.logprobs.is_none_or(|top| top <= LOGPROBS_MAX);
    let rules = [
        ("best_of", wire.best_of.is_none_or(|n| n == 1), "only 1 is supported"),
        ("logprobs", few, "must be 0 to 20"),
        (
            "echo",
            wire.logprobs.is_none() || wire.echo != Some(true),
            "is not supported together with `logprobs`: there are none of the prompt's tokens",
        ),
        (
            "echo",
            wire.echo != Some(true) || wire.suffix.as_ref().is_none_or(String::is_empty),
            "is not supported together with `suffix`",
        ),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((field, _, message)) => Err(FieldError::new(field, message)),
        None => Ok(()),
    }
}

fn text(prompt: TextPrompt) -> Result<String, FieldError> {
    let mut items = match prompt {
        TextPrompt::Text(text) => return Ok(text),
        TextPrompt::Many(items) => items,
    };
    match (items.pop(), items.is_empty()) {
        (Some(Value::String(text)), true) => Ok(text),
        (Some(Value::String(_)), false) => {
            Err(FieldError::new("prompt", "only one text is supported; send one request for each"))
        }
        (Some(_), _) => Err(FieldError::new("prompt", "token ids are not supported; send the text")),
        (None, _) => Err(FieldError::new("prompt", "is an empty list; send a text")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(extra: Value, can: &Capabilities) -> Result<ChatRequest, FieldError> {
        let mut body = json!({ "model": "m", "prompt": "Once" });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse_text(body.to_string().as_bytes(), can)
    }

    #[test]
    fn a_text_is_taken_as_it_is() {
        for can in [Capabilities::CLOUD, Capabilities::DEVICE] {
            let plain = read(json!({}), &can).unwrap();
            assert_eq!(plain.prompt, Prompt::Text { text: "Once".into(), suffix: None, echo: false });
            assert_eq!((plain.max_tokens, plain.sampling.temperature, plain.stream), (Some(16), 1.0, false));
            let many = json!({ "prompt": [" Once\n"], "echo": true, "max_tokens": 3, "n": 1, "best_of": 1,
                "suffix": "", "logit_bias": {}, "stop": "\n", "stream": true,
                "stream_options": { "include_usage": true } });
            let many = read(many, &can).unwrap();
            assert_eq!(many.prompt, Prompt::Text { text: " Once\n".into(), suffix: None, echo: true });
            assert_eq!((many.max_tokens, many.stream, many.include_usage), (Some(3), true, true));
            assert_eq!(many.sampling.stop, ["\n"]);
        }
        let logprobs =
            |count: u64| read(json!({ "logprobs": count }), &Capabilities::CLOUD).unwrap().logprobs;
        assert_eq!((logprobs(0), logprobs(5)), (Some(0), Some(5)));
    }

    #[test]
    fn a_text_that_follows_is_laid_out_by_the_models_tokens() {
        let text = |suffix: Option<&str>| Prompt::Text {
            text: "a(".into(),
            suffix: suffix.map(str::to_owned),
            echo: false,
        };
        let mut prompt = text(Some(")"));
        assert!(prompt.fill_in(|token| token.starts_with("<fim_")));
        let want = "<fim_prefix>a(<fim_suffix>)<fim_middle>";
        assert_eq!(prompt, Prompt::Text { text: want.into(), suffix: None, echo: false });
        assert!(!text(Some(")")).fill_in(|token| token != "<fim_middle>" && token.starts_with("<fim_")));
        let mut plain = text(None);
        assert!(plain.fill_in(|_| false) && plain == text(None));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (extra, field, words) in [
            (json!({ "prompt": ["a", "b"] }), "prompt", "one request for each"),
            (json!({ "prompt": [1, 2] }), "prompt", "token ids are not supported"),
            (json!({ "prompt": [[1, 2]] }), "prompt", "token ids are not supported"),
            (json!({ "prompt": [] }), "prompt", "empty list"),
            (json!({ "prompt": null }), "prompt", "text"),
            (json!({ "prompt": 7 }), "prompt", "text"),
            (json!({ "best_of": 2 }), "best_of", "only 1"),
            (json!({ "n": 2 }), "n", "only 1"),
            (json!({ "logprobs": 21 }), "logprobs", "0 to 20"),
            (json!({ "logprobs": 1, "echo": true }), "echo", "together with `logprobs`"),
            (json!({ "suffix": "a", "echo": true }), "echo", "together with `suffix`"),
            (json!({ "max_tokens": 0 }), "max_tokens", "at least 1"),
            (json!({ "temperature": 3 }), "temperature", "must be 0 to 2"),
        ] {
            let err = read(extra.clone(), &Capabilities::CLOUD).unwrap_err();
            assert_eq!(err.param(), Some(field), "{extra}: {err}");
            assert!(err.to_string().contains(words), "{extra}: {err}");
        }
        let scored = read(json!({ "logprobs": 1, "suffix": "end" }), &Capabilities::DEVICE).unwrap();
        assert_eq!((scored.logprobs, scored.ignored.header().as_deref()), (None, Some("logprobs")));
        let filled = Prompt::Text { text: "Once".into(), suffix: Some("end".into()), echo: false };
        assert_eq!(scored.prompt, filled);
        let missing = parse_text(b"{\"model\": \"m\"}", &Capabilities::CLOUD).unwrap_err();
        assert_eq!(missing.param(), Some("prompt"));
    }
}
