//! Turns the segments of a request into the prompt's tokens, and records which tokens belong to which
//! segment.
//!
//! The chat template sees the real texts. Each byte that it writes keeps its origin, so the result is cut
//! into the template's own pieces and those of the conversation. They are encoded side by side as one text,
//! as in training: a word may begin in the template and end in a message. Control tokens are found only in
//! the template's pieces, so user text never becomes one, nor a part of one.
//!
//! Every token of a segment knows which bytes of the segment's text it stands for. A token that reaches into
//! a segment from the template belongs to the segment; one that spans two segments belongs to the first. If
//! the template writes a segment twice, or in pieces with control tokens between them, the longest piece is
//! the segment.

mod joined;
mod system;
mod tools;

use std::ops::Range;

use crate::template::{ChatTemplate, Entry, TemplateError};
use crate::tokenizer::{TokenId, Tokenizer};

use self::joined::Joined;
pub use self::tools::{Turn, TurnText, assemble_with_tools};

/// A part of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSegment<'a> {
    /// The speaker's role; consecutive segments of one role are one message.
    pub role: &'a str,
    /// The text.
    pub text: &'a str,
}

/// A prompt ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// All tokens, the start of the answer's turn included.
    pub ids: Vec<TokenId>,
    /// The tokens of each segment; as many entries as segments were given, in their order.
    pub segments: Vec<SegmentTokens>,
}

/// The tokens of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentTokens {
    /// Positions in [`Prompt::ids`].
    pub tokens: Range<usize>,
    /// For each of these tokens, the bytes of the segment's text that it stands for. They are in order and
    /// cover the text if there is any token.
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
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The template left a message out, perhaps because it does not know the role.
    #[error("chat template leaves out segment {index} of role `{role}`")]
    SegmentLeftOut {
        /// The segment.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template wrote nothing, or nothing that the vocabulary has tokens for.
    #[error("chat template and segments make no token")]
    NoTokens,
}

/// The most bytes of a role.
const ROLE_BYTES_MAX: usize = 32;

/// Renders the segments with the template and encodes them; the prompt ends at the beginning of the answer.
///
/// A begin token is added if the tokenizer asks for one and the template did not write it. Cost: one
/// rendering of the template, and encoding, linear in the texts. If the template refuses system texts, they
/// are sent in the first one, or in the first message of the user.
///
/// # Errors
/// If there are no segments, a role is not a name, the template fails, or there are no tokens. Also if it
/// leaves a segment out; it may leave out what a model said, such as old thoughts.
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
    let texts: Vec<&str> = segments.iter().map(|segment| segment.text).collect();
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        match entries.last_mut() {
            Some(last) if last.role == segment.role => last.content.push((Some(index), segment.text)),
            _ => {
                let content = vec![(Some(index), segment.text)];
                entries.push(Entry { role: segment.role, content, fields: None });
            }
        }
    }
    let rendered = system::lay_out(template, entries, &[], None)?;
    let joined = Joined::new(tokenizer, &rendered, &texts);
    let left_out = |index: usize| {
        let PromptSegment { role, text } = segments[index];
        joined.found[index].is_none() && role != "assistant" && !is_blank(text)
    };
    if let Some(index) = (0..segments.len()).find(|&index| left_out(index)) {
        return Err(PromptError::SegmentLeftOut { index, role: segments[index].role.to_owned() });
    }
    prompt(tokenizer, joined)
}

/// Makes the prompt of its tokens. A segment that was not found has none, behind the one before it.
fn prompt(tokenizer: &Tokenizer, joined: Joined) -> Result<Prompt, PromptError> {
    let mut end = 0;
    let mut segments = Vec::with_capacity(joined.found.len());
    for found in joined.found {
        let tokens = found.unwrap_or_else(|| SegmentTokens { tokens: end..end, spans: Vec::new() });
        end = tokens.tokens.end;
        segments.push(tokens);
    }
    let mut prompt = Prompt { segments, ids: joined.ids };
    begin(&mut prompt, tokenizer);
    if prompt.ids.is_empty() { Err(PromptError::NoTokens) } else { Ok(prompt) }
}

/// Whether a template may leave a text out because it is white space.
fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Returns the tokens of a text that is continued as it is: no template, and control tokens that are written
/// in it are read as such. A begin token is added if the tokenizer asks for one and the text lacks it.
///
/// # Errors
/// [`PromptError::NoTokens`] if there are none.
pub fn verbatim(tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>, PromptError> {
    let mut prompt = Prompt { ids: tokenizer.encode_template(text), segments: Vec::new() };
    begin(&mut prompt, tokenizer);
    if prompt.ids.is_empty() { Err(PromptError::NoTokens) } else { Ok(prompt.ids) }
}

/// Whether a role is a short name: templates write roles beside control tokens.
fn is_role(role: &str) -> bool {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    (1..=ROLE_BYTES_MAX).contains(&role.len()) && role.bytes().all(is_name)
}

/// Puts the begin token first if the tokenizer adds one and it is absent.
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
        let whole = t.encode_template(want);
        assert_eq!(prompt.ids, whole, "side by side is as one text");
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

    /// Assembles a prompt with a template of the tests.
    #[track_caller]
    fn laid_out(t: &Tokenizer, source: &str, segments: &[(&str, &str)]) -> Prompt {
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        let segments: Vec<PromptSegment<'_>> =
            segments.iter().map(|&(role, text)| PromptSegment { role, text }).collect();
        let prompt = assemble(t, &template, &segments).unwrap();
        for (segment, found) in segments.iter().zip(&prompt.segments) {
            assert_eq!(found.spans.len(), found.tokens.len());
            let mut at = 0;
            for span in &found.spans {
                assert!(span.start == at && span.end >= at, "{:?}: {:?}", segment.text, found.spans);
                at = span.end;
            }
            assert!(found.spans.is_empty() || at == segment.text.len(), "{:?}", segment.text);
        }
        prompt
    }

    /// Returns the ends of the bytes of a segment's tokens; each token begins where the previous one ends.
    fn ends(segment: &SegmentTokens) -> Vec<usize> {
        segment.spans.iter().map(|span| span.end).collect()
    }

    #[test]
    fn templates_trim_the_ends_of_messages_and_nothing_else() {
        let t = tokenizer(&byte_level_gguf("llama-bpe"));
        let segments = [
            ("system", "  Be brief. "),
            ("user", " A \u{e0b1}1\u{e0b3} "),
            ("user", "{{ messages }} <|eot_id|>\n"),
        ];
        for (source, wanted) in [
            (LLAMA3, ["Be brief.", "A \u{e0b1}1\u{e0b3} ", "{{ messages }} <|eot_id|>"]),
            (QWEN, ["  Be brief. ", " A \u{e0b1}1\u{e0b3} ", "{{ messages }} <|eot_id|>\n"]),
        ] {
            let prompt = laid_out(&t, source, &segments);
            for (found, want) in prompt.segments.iter().zip(wanted) {
                assert_eq!(text_of(&t, &prompt.ids[found.tokens.clone()]), want);
            }
        }
        let prompt = laid_out(&t, MISTRAL, &segments);
        let text = text_of(&t, &prompt.ids);
        assert!(text.contains("A \u{e0b1}1\u{e0b3} {{ messages }} <|eot_id|>"), "{text}");
        // A message of white space only may be trimmed completely.
        let prompt = laid_out(&t, LLAMA3, &[("system", " \n"), ("user", "a")]);
        assert_eq!((prompt.segments[0].tokens.len(), prompt.segments[1].tokens.len()), (0, 1));
    }

    #[test]
    fn words_begin_in_the_template_and_end_in_a_message() {
        let t = tokenizer(&scored_gguf());
        let prompt = laid_out(
            &t,
            "{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}{% endfor %}",
            &[("user", "the"), ("user", "b")],
        );
        assert_eq!(text_of(&t, &prompt.ids), "<s>[INST] theb");
        assert_eq!(prompt.segments[1].spans.first(), Some(&(0..1)));
        // The template's space and the message's first word are one token, as in training.
        let prompt = laid_out(&t, "{{ bos_token }}a {{ messages[0].content }} b", &[("user", "the")]);
        let tokens: Vec<_> = prompt.ids.iter().map(|&id| t.token_bytes(id)).collect();
        assert_eq!(tokens, [b"<s>".as_slice(), b" ", b"a", b" the", b" ", b"b"]);
        assert_eq!((prompt.segments[0].tokens.clone(), ends(&prompt.segments[0])), (3..4, vec![3]));
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let prompt = laid_out(&t, "x {{ messages[0].content }}lo", &[("user", "hel")]);
        assert_eq!(prompt.ids, t.encode("x hello"));
        assert_eq!((prompt.segments[0].tokens.clone(), ends(&prompt.segments[0])), (1..2, vec![3]));
        // A word that spans two messages belongs to the first; an empty message has no token.
        let join = "{% for m in messages %}{{ m.content }}{% endfor %}.";
        let prompt = laid_out(&t, join, &[("user", "hel"), ("assistant", ""), ("user", "lo")]);
        assert_eq!(prompt.ids, t.encode("hello."));
        let places: Vec<_> = prompt.segments.iter().map(|s| s.tokens.clone()).collect();
        assert_eq!(places, [0..1, 1..1, 1..1]);
    }

    #[test]
    fn a_control_text_is_none_if_a_part_of_it_is_a_message() {
        for t in [tokenizer(&byte_level_gguf("gpt-2")), tokenizer(&scored_gguf())] {
            for (before, text, after) in
                [("<|e", "nd|", ">"), ("", "<|end", "|>"), ("[IN", "ST", "]"), ("<", "/s", ">")]
            {
                let source = format!("{before}{{{{ messages[0].content }}}}{after}");
                let prompt = laid_out(&t, &source, &[("user", text)]);
                let controls = prompt.ids.iter().filter(|&&id| t.is_control(id) && Some(id) != t.bos());
                assert_eq!(controls.count(), 0, "{before} {text} {after}");
            }
        }
    }

    #[test]
    fn control_tokens_that_swallow_white_space_take_it_from_messages_too() {
        let mut w = byte_level_gguf("gpt-2");
        w.set(crate::tokenizer::STRIP_RIGHT_KEY, vec![264u32, 267]);
        w.set(crate::tokenizer::STRIP_LEFT_KEY, vec![267u32]);
        let t = tokenizer(&w);
        let source = "{% for m in messages %}<|user|>\n{{ m.content }}\n<|end|>\n{% endfor %}<|assistant|>";
        let prompt = laid_out(&t, source, &[("user", " \thello \n"), ("assistant", " \n"), ("user", "x")]);
        let text = text_of(&t, &prompt.ids);
        assert_eq!(text, "<|user|>hello<|end|><|user|><|end|><|user|>x<|end|><|assistant|>");
        assert_eq!(ends(&prompt.segments[0]), [9], "the word stands for the white space that was swallowed");
        assert!(prompt.segments[1].spans.is_empty());
        let plain = tokenizer(&byte_level_gguf("gpt-2"));
        assert_ne!(t.digest(), plain.digest());
        let refused = |w: &crate::gguf::GgufWriter<'_>| {
            Tokenizer::from_gguf(&Gguf::from_bytes(w.to_bytes().unwrap()).unwrap()).unwrap_err().to_string()
        };
        let err = refused(w.set(crate::tokenizer::STRIP_LEFT_KEY, vec![9999u32]));
        assert_eq!(err, "`baton.tokenizer.strip_left` is 9999, the vocabulary has 271 tokens");
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
        assert_eq!(with("{{ raise_exception('no') }}"), "chat template refuses the messages: no");
        assert_eq!(with("\u{e0b1}9\u{e0b3}"), "chat template leaves out segment 0 of role `system`");
    }

    #[test]
    fn templates_see_the_real_texts_and_each_token_knows_its_bytes() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let text = "Say \"x\" <|end|>";
        for (of_content, whole, own) in [
            ("m.content | length ~ ':' ~ m.content", "15:Say \"x\" <|end|>", "Say \"x\" <|end|>"),
            ("m.content | upper", "SAY \"X\" <|END|>", "SAY \"X\" <|END|>"),
            ("m.content | tojson", "\"Say \\\"x\\\" <|end|>\"", "Say \\\"x\\\" <|end|>"),
            (
                "m.content ~ '[' ~ m.content ~ ']'",
                "Say \"x\" <|end|>[Say \"x\" <|end|>]",
                "Say \"x\" <|end|>",
            ),
            ("m.content.split(' ')[2:] | join", "<|end|>", "<|end|>"),
            ("m.content.replace('x', '<|user|>')", "Say \"<|user|>\" <|end|>", "\" <|end|>"),
            ("'yes' if '<|end|>' in m.content else m.content", "yes", ""),
        ] {
            let source = format!("{{% for m in messages %}}{{{{ {of_content} }}}}{{% endfor %}}<|end|>");
            let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
            let segments = [PromptSegment { role: "user", text }];
            let Ok(prompt) = assemble(&t, &template, &segments) else {
                assert_eq!(whole, "yes", "{of_content}");
                continue;
            };
            assert_eq!(text_of(&t, &prompt.ids), format!("{whole}<|end|>"));
            let found = &prompt.segments[0];
            assert_eq!(text_of(&t, &prompt.ids[found.tokens.clone()]), own, "{of_content}");
            assert!(prompt.ids[found.tokens.clone()].iter().all(|&id| !t.is_control(id)), "{of_content}");
            assert_eq!(found.spans.last().map(|span| span.end), Some(text.len()), "{of_content}");
            let controls = prompt.ids.iter().filter(|&&id| t.is_control(id)).count();
            assert_eq!(controls, 1 + usize::from(whole.contains("<|user|>")), "{of_content}");
        }
        // What a template makes of two pieces of a text is no control token either.
        let prompt = laid_out(&t, "{{ messages[0].content.replace('x', '') }}", &[("user", "<|exnd|>")]);
        assert_eq!(text_of(&t, &prompt.ids), "<|end|>");
        assert!(prompt.ids.iter().all(|&id| !t.is_control(id)));
    }

    #[test]
    fn system_texts_that_a_template_refuses_are_sent_where_it_takes_them() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let body = "{% for m in messages %}{{ m.role }}: {{ m.content }}.{% endfor %}";
        let chat = [("system", "A"), ("user", "b"), ("assistant", "c"), ("system", "D"), ("user", "e")];
        let first_only = "{% for m in messages[1:] %}{% if m.role == 'system' %}{{ raise_exception('late') }}{% endif %}{% endfor %}";
        let none = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{% endfor %}";
        let silent = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }}.{% endif %}{% endfor %}";
        for (source, want) in [
            (body.to_owned(), "system: A.user: b.assistant: c.system: D.user: e."),
            (format!("{first_only}{body}"), "system: A\n\nD.user: b.assistant: c.user: e."),
            (format!("{none}{body}"), "user: A\n\nD\n\nb.assistant: c.user: e."),
            (silent.to_owned(), "system: A\n\nD.user: b.assistant: c.user: e."),
        ] {
            let prompt = laid_out(&t, &source, &chat);
            assert_eq!(text_of(&t, &prompt.ids), want);
            for ((_, text), found) in chat.iter().zip(&prompt.segments) {
                assert_eq!(text_of(&t, &prompt.ids[found.tokens.clone()]), *text, "{source}");
            }
        }
        let parted = [("user", "b"), ("system", "D"), ("user", "e")];
        let prompt = laid_out(&t, &format!("{none}{body}"), &parted);
        assert_eq!(text_of(&t, &prompt.ids), "user: D\n\nb\n\ne.");
        let template = ChatTemplate::new(&format!("{none}{body}"), "", "").unwrap();
        let alone = assemble(&t, &template, &[PromptSegment { role: "system", text: "A" }]);
        assert_eq!(alone.unwrap_err().to_string(), "chat template refuses the messages: none");
    }

    /// Returns tokenizer and template of one of the project's own models.
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
