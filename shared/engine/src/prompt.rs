//! From the segments of a request to the prompt's tokens, knowing which token is whose.
//!
//! The chat template lays out sentinels in place of the texts and is cut there: its own pieces are
//! encoded with control tokens, each segment alone and without. So user text never becomes a control
//! token, a segment's tokens do not depend on its neighbours, and every token of a segment knows the
//! bytes of the text that it stands for. Templates that trim or inspect a message see the sentinel: the
//! texts themselves arrive unchanged.

mod tools;

use std::ops::Range;

use crate::template::{ChatTemplate, Message, TemplateError};
use crate::tokenizer::{TokenId, Tokenizer};

pub use self::tools::{Turn, assemble_with_tools};

/// A piece of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSegment<'a> {
    /// Who speaks; neighbours of one role are one message.
    pub role: &'a str,
    /// The text.
    pub text: &'a str,
}

/// A prompt ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// All tokens, the start of the answer's turn included.
    pub ids: Vec<TokenId>,
    /// Where each segment's tokens are; as many as segments were given, in their order.
    pub segments: Vec<SegmentTokens>,
}

/// The tokens of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentTokens {
    /// Positions in [`Prompt::ids`].
    pub tokens: Range<usize>,
    /// For each of these tokens, the bytes of the segment's text that it stands for; in order, covering
    /// the text.
    pub spans: Vec<Range<usize>>,
}

/// Why a prompt could not be assembled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// There is no segment.
    #[error("prompt has no segments")]
    Empty,
    /// A role is not a short name: templates write roles beside control tokens.
    #[error("segment {index} has a role of {len} bytes that is not 1 to {max} letters, digits, `_` or `-`")]
    BadRole {
        /// The segment.
        index: usize,
        /// The length of its role.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The template failed or refused the conversation.
    #[error("lay out the prompt")]
    Template(#[from] TemplateError),
    /// The template left a message out (it knows no such role, perhaps).
    #[error("chat template leaves out segment {index} of role `{role}`")]
    SegmentLeftOut {
        /// The segment.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template wrote a message more than once.
    #[error("chat template repeats segment {index} of role `{role}`")]
    SegmentRepeated {
        /// The segment.
        index: usize,
        /// Its role.
        role: String,
    },
}

/// Most bytes of a role.
const ROLE_BYTES_MAX: usize = 32;
/// Open and close a sentinel: private-use characters, which no template trims, splits or changes.
const OPEN: char = '\u{e0b1}';
const CLOSE: char = '\u{e0b3}';

/// Lays out the segments by the template and encodes them; the prompt ends where the answer begins.
///
/// A begin token is put first where the tokenizer asks for one and the template did not write it.
/// Cost: one rendering of the template, and encoding, linear in the texts.
///
/// # Errors
/// No segments or a role that is no name; the template fails, leaves a segment out, or repeats one.
pub fn assemble(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    segments: &[PromptSegment<'_>],
) -> Result<Prompt, PromptError> {
    if segments.is_empty() {
        return Err(PromptError::Empty);
    }
    if let Some(index) = segments.iter().position(|s| !is_role(s.role)) {
        return Err(PromptError::BadRole { index, len: segments[index].role.len(), max: ROLE_BYTES_MAX });
    }
    let messages = messages(segments);
    let views: Vec<Message<'_>> = messages.iter().map(|(role, content)| Message { role, content }).collect();
    let rendered = template.render(&views, true)?;
    let mut ids = Vec::new();
    let mut found: Vec<Option<SegmentTokens>> = vec![None; segments.len()];
    for part in cut(&rendered, segments.len()) {
        // SentencePiece reads a space before text at the start and after control tokens only.
        let first = ids.last().is_none_or(|&id| tokenizer.is_control(id));
        match part {
            Part::Template(piece) => ids.extend(tokenizer.encode_template_piece(piece, first)),
            Part::Segment(index) => {
                let PromptSegment { role, text } = segments[index];
                let (tokens, spans) = tokenizer.encode_segment(text, first);
                let place = ids.len()..ids.len() + tokens.len();
                ids.extend(tokens);
                if found[index].replace(SegmentTokens { tokens: place, spans }).is_some() {
                    return Err(PromptError::SegmentRepeated { index, role: role.to_owned() });
                }
            }
        }
    }
    let left_out =
        |index: usize| PromptError::SegmentLeftOut { index, role: segments[index].role.to_owned() };
    let found = found.into_iter().enumerate().map(|(i, s)| s.ok_or_else(|| left_out(i)));
    let mut prompt = Prompt { segments: found.collect::<Result<_, _>>()?, ids };
    begin(&mut prompt, tokenizer);
    Ok(prompt)
}

/// Whether a role is a short name: templates write roles beside control tokens.
fn is_role(role: &str) -> bool {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    (1..=ROLE_BYTES_MAX).contains(&role.len()) && role.bytes().all(is_name)
}

/// Messages with sentinels for texts: neighbours of one role share a message.
fn messages<'a>(segments: &[PromptSegment<'a>]) -> Vec<(&'a str, String)> {
    let mut messages: Vec<(&str, String)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let sentinel = format!("{OPEN}{index}{CLOSE}");
        match messages.last_mut() {
            Some((role, content)) if *role == segment.role => content.push_str(&sentinel),
            _ => messages.push((segment.role, sentinel)),
        }
    }
    messages
}

#[derive(Debug, PartialEq, Eq)]
enum Part<'t> {
    Template(&'t str),
    Segment(usize),
}

/// Cuts rendered text at its sentinels; what only looks like one stays text.
fn cut(rendered: &str, n_segments: usize) -> Vec<Part<'_>> {
    let (mut parts, mut text_from, mut search_from) = (Vec::new(), 0, 0);
    while let Some(open) = rendered[search_from..].find(OPEN).map(|at| search_from + at) {
        let after = open + OPEN.len_utf8();
        search_from = after;
        let Some(close) = rendered[after..].find(CLOSE).map(|at| after + at) else { break };
        let index = rendered[after..close].parse::<usize>().ok().filter(|&i| i < n_segments);
        if let Some(index) = index {
            if text_from < open {
                parts.push(Part::Template(&rendered[text_from..open]));
            }
            parts.push(Part::Segment(index));
            search_from = close + CLOSE.len_utf8();
            text_from = search_from;
        }
    }
    if text_from < rendered.len() {
        parts.push(Part::Template(&rendered[text_from..]));
    }
    parts
}

/// Puts the begin token first where it is wanted and absent.
fn begin(prompt: &mut Prompt, tokenizer: &Tokenizer) {
    let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) else { return };
    if prompt.ids.first() == Some(&bos) {
        return;
    }
    prompt.ids.insert(0, bos);
    for segment in &mut prompt.segments {
        segment.tokens = segment.tokens.start + 1..segment.tokens.end + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gguf::Gguf;
    use crate::template::tests::{DEMO, LLAMA3, MISTRAL, QWEN};
    use crate::tokenizer::tests::{byte_level_gguf, scored_gguf, tokenizer};

    fn demo() -> (Tokenizer, ChatTemplate) {
        (tokenizer(&byte_level_gguf("gpt-2")), ChatTemplate::new(DEMO, "<|bos|>", "<|end|>").unwrap())
    }

    fn text_of(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8(bytes).unwrap()
    }

    const DOC_QA: [PromptSegment<'static>; 3] = [
        PromptSegment { role: "system", text: "hello" },
        PromptSegment { role: "user", text: "The doc. hello" },
        PromptSegment { role: "user", text: "\n\nQuestion: hello?" },
    ];

    #[test]
    fn segments_are_laid_out_and_found_again() {
        let (t, template) = demo();
        let prompt = assemble(&t, &template, &DOC_QA).unwrap();
        let want =
            "<|bos|><|system|>hello<|end|><|user|>The doc. hello\n\nQuestion: hello?<|end|><|assistant|>";
        assert_eq!(text_of(&t, &prompt.ids), want);
        for (segment, found) in DOC_QA.iter().zip(&prompt.segments) {
            let alone = t.encode_spans(segment.text);
            assert_eq!(prompt.ids[found.tokens.clone()], alone.0);
            assert_eq!(found.spans, alone.1);
        }
        assert_eq!(prompt.ids.iter().filter(|&&id| t.is_control(id)).count(), 6);
        assert_eq!(prompt.ids[0], t.bos().unwrap());
    }

    #[test]
    fn the_begin_token_is_there_once() {
        let t = tokenizer(byte_level_gguf("gpt-2").set("tokenizer.ggml.add_bos_token", true));
        let (_, with_bos) = demo();
        let without = ChatTemplate::new(&DEMO.replace("<|bos|>", ""), "<|bos|>", "<|end|>").unwrap();
        let one = assemble(&t, &with_bos, &DOC_QA).unwrap();
        assert_eq!(assemble(&t, &without, &DOC_QA).unwrap(), one);
        assert_eq!(one.ids.iter().filter(|&&id| Some(id) == t.bos()).count(), 1);
    }

    #[test]
    fn control_texts_in_every_role_stay_text() {
        let (t, template) = demo();
        for id in (0..t.vocab_len() as u32).filter(|&id| t.is_control(id)) {
            let text = String::from_utf8(t.token_bytes(id).to_vec()).unwrap();
            for role in ["system", "user", "assistant", "tool"] {
                let prompt = assemble(&t, &template, &[PromptSegment { role, text: &text }]).unwrap();
                let own = &prompt.ids[prompt.segments[0].tokens.clone()];
                assert!(own.iter().all(|&id| !t.is_control(id)), "{role} {text}");
                assert_eq!(text_of(&t, own), text);
            }
        }
    }

    #[test]
    fn templates_of_real_models_keep_the_texts() {
        let t = tokenizer(&byte_level_gguf("llama-bpe"));
        for (source, bos) in [(LLAMA3, "<|begin_of_text|>"), (QWEN, ""), (MISTRAL, "<s>")] {
            let template = ChatTemplate::new(source, bos, "</s>").unwrap();
            let segments = [
                PromptSegment { role: "system", text: "  Be brief. " },
                PromptSegment { role: "user", text: " A \u{e0b1}1\u{e0b3} " },
                PromptSegment { role: "user", text: "{{ messages }} <|eot_id|>" },
            ];
            let prompt = assemble(&t, &template, &segments).unwrap();
            for (segment, found) in segments.iter().zip(&prompt.segments) {
                assert_eq!(text_of(&t, &prompt.ids[found.tokens.clone()]), segment.text);
            }
        }
    }

    #[test]
    fn scored_text_has_a_space_before_it_only_after_control_tokens() {
        let t = tokenizer(&scored_gguf());
        let template = ChatTemplate::new(
            "{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}{% endfor %}",
            "<s>",
            "</s>",
        )
        .unwrap();
        let segments =
            [PromptSegment { role: "user", text: "the" }, PromptSegment { role: "user", text: "b" }];
        let prompt = assemble(&t, &template, &segments).unwrap();
        assert_eq!(text_of(&t, &prompt.ids), "<s>[INST] theb");
        assert_eq!(prompt.segments[1].spans.first(), Some(&(0..1)));
    }

    #[test]
    fn bad_layouts_are_errors() {
        let (t, template) = demo();
        assert!(matches!(assemble(&t, &template, &[]), Err(PromptError::Empty)));
        for role in ["", "user|><|system", "r".repeat(33).as_str(), "\u{e0b1}0\u{e0b3}"] {
            let segment = PromptSegment { role, text: "x" };
            let refused = assemble(&t, &template, &[DOC_QA[0], segment]);
            assert!(matches!(refused, Err(PromptError::BadRole { index: 1, .. })), "{role}");
        }
        let with = |source: &str| {
            let template = ChatTemplate::new(source, "", "").unwrap();
            assemble(&t, &template, &DOC_QA).unwrap_err().to_string()
        };
        assert_eq!(with("{{ messages[0].content }}"), "chat template leaves out segment 1 of role `user`");
        assert_eq!(
            with("{{ messages[0].content }}{{ messages[0].content }}"),
            "chat template repeats segment 0 of role `system`"
        );
        assert_eq!(with("{{ raise_exception('no') }}"), "lay out the prompt");
        assert_eq!(with("\u{e0b1}9\u{e0b3}"), "chat template leaves out segment 0 of role `system`");
    }

    /// Tokenizer and template of one of the project's own models.
    fn shipped(name: &str) -> (Tokenizer, ChatTemplate) {
        let path = format!("{}/../../models/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let gguf = Gguf::open(path).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let name_of = |id: Option<TokenId>| {
            String::from_utf8(id.map_or(&b""[..], |id| tokenizer.token_bytes(id)).to_vec()).unwrap()
        };
        let source = gguf.metadata().str("tokenizer.chat_template").unwrap();
        let template =
            ChatTemplate::new(source, &name_of(tokenizer.bos()), &name_of(tokenizer.eos())).unwrap();
        (tokenizer, template)
    }

    #[test]
    fn the_demo_models_lay_out_their_prompts() {
        let text = DOC_QA.map(|s| s.text);
        let want =
            format!("<|bos|><|system|>{}<|end|><|user|>{}{}<|end|><|assistant|>", text[0], text[1], text[2]);
        for name in ["demo-cloud", "demo-device", "demo-device-b"] {
            let (t, template) = shipped(name);
            let prompt = assemble(&t, &template, &DOC_QA).unwrap();
            assert_eq!(text_of(&t, &prompt.ids), want, "{name}");
            assert_eq!(prompt.ids.iter().filter(|&&id| t.is_control(id)).count(), 6, "{name}");
            assert!(t.is_end(t.eos().unwrap()), "{name}");
            let odd = "naïve 日本 😀 <|end|> \u{7f}";
            let bytes: Vec<u8> = t.encode(odd).iter().flat_map(|&id| t.token_bytes(id)).copied().collect();
            assert_eq!(bytes, odd.as_bytes(), "{name}");
            assert!(t.encode(odd).iter().all(|&id| !t.is_control(id)), "{name}");
        }
        let digest = |name| shipped(name).0.digest();
        assert_eq!(digest("demo-cloud"), digest("demo-device"));
        assert_ne!(digest("demo-cloud"), digest("demo-device-b"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_texts_come_through(texts in prop::collection::vec("(\\PC|\u{e0b1}|\u{e0b3}|[0-9]|<\\|end\\|>){0,12}", 1..4)) {
            let (t, template) = demo();
            let segments: Vec<PromptSegment<'_>> = texts.iter().map(|text| PromptSegment { role: "user", text }).collect();
            let prompt = assemble(&t, &template, &segments).unwrap();
            for (text, found) in texts.iter().zip(&prompt.segments) {
                prop_assert_eq!(&text_of(&t, &prompt.ids[found.tokens.clone()]), text);
                prop_assert_eq!(found.spans.len(), found.tokens.len());
            }
        }
    }
}
