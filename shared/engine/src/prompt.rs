//! Turns the segments of a request into the prompt's tokens, and records which tokens belong to which
//! segment.
//!
//! The chat template is rendered with sentinels instead of the texts, and the result is cut at them. Its
//! pieces and the texts are then encoded side by side as one text, as in training: a word may begin in the
//! template and end in a message. Control tokens are found only in the template's pieces, so user text never
//! becomes one, nor a part of one.
//!
//! Every token of a segment knows which bytes of the segment's text it stands for. A token that reaches into
//! a segment from the template belongs to the segment; one that spans two segments belongs to the first.
//! Templates that inspect a message see the sentinel between the white space around the text, which they may
//! trim. The rest of a text is always kept.

mod tools;

use std::ops::Range;

use crate::template::{ChatTemplate, Message, TemplateError};
use crate::tokenizer::{Piece, Placed, TokenId, Tokenizer, cover};

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
    #[error("lay out the prompt")]
    Template(#[from] TemplateError),
    /// The template left a message out, perhaps because it does not know the role.
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
    /// The template wrote nothing, or nothing that the vocabulary has tokens for.
    #[error("chat template and segments make no token")]
    NoTokens,
}

/// The most bytes of a role.
const ROLE_BYTES_MAX: usize = 32;
/// Beginning and end of a sentinel: private-use characters, which no template trims, splits or changes.
const OPEN: char = '\u{e0b1}';
const CLOSE: char = '\u{e0b3}';

/// Renders the segments with the template and encodes them; the prompt ends at the beginning of the answer.
///
/// A begin token is added if the tokenizer asks for one and the template did not write it. Cost: one
/// rendering of the template, and encoding, linear in the texts.
///
/// # Errors
/// If there are no segments, a role is not a name, the template fails, leaves a segment out or repeats one,
/// or there are no tokens.
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
    let mut texts: Vec<Framed<'_>> = segments.iter().map(|segment| Framed::whole(segment.text)).collect();
    let messages = messages(segments, &mut texts);
    let views: Vec<Message<'_>> = messages.iter().map(|(role, content)| Message { role, content }).collect();
    let rendered = template.render(&views, true)?;
    let joined = Joined::new(tokenizer, &rendered, &texts);
    let mut found: Vec<Option<SegmentTokens>> = vec![None; segments.len()];
    for (index, tokens) in joined.segments(tokenizer, &texts) {
        if found[index].replace(tokens).is_some() {
            return Err(PromptError::SegmentRepeated { index, role: segments[index].role.to_owned() });
        }
    }
    let left_out =
        |index: usize| PromptError::SegmentLeftOut { index, role: segments[index].role.to_owned() };
    let found = found.into_iter().enumerate().map(|(i, s)| s.ok_or_else(|| left_out(i)));
    let mut prompt = Prompt { segments: found.collect::<Result<_, _>>()?, ids: joined.ids() };
    begin(&mut prompt, tokenizer);
    if prompt.ids.is_empty() { Err(PromptError::NoTokens) } else { Ok(prompt) }
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

/// A text as templates see it: a sentinel between the white space at its ends.
#[derive(Debug, Clone, Copy)]
struct Framed<'a> {
    before: &'a str,
    core: &'a str,
    after: &'a str,
}

impl<'a> Framed<'a> {
    /// Puts all of the text behind the sentinel.
    fn whole(text: &'a str) -> Framed<'a> {
        Framed { before: "", core: text, after: "" }
    }

    /// Moves white space at the beginning out of the sentinel.
    fn open_start(&mut self) {
        let core = self.core.trim_start();
        self.before = &self.core[..self.core.len() - core.len()];
        self.core = core;
    }

    /// Moves white space at the end out of the sentinel.
    fn open_end(&mut self) {
        let core = self.core.trim_end();
        self.after = &self.core[core.len()..];
        self.core = core;
    }

    fn len(&self) -> usize {
        self.before.len() + self.core.len() + self.after.len()
    }

    fn write(&self, index: usize, content: &mut String) {
        content.push_str(self.before);
        content.push_str(&sentinel(index));
        content.push_str(self.after);
    }
}

fn sentinel(index: usize) -> String {
    format!("{OPEN}{index}{CLOSE}")
}

/// Returns messages with sentinels for texts; consecutive segments of one role share a message.
fn messages<'a>(segments: &[PromptSegment<'a>], texts: &mut [Framed<'a>]) -> Vec<(&'a str, String)> {
    let mut messages: Vec<(&str, String)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let is_first = index == 0 || segments[index - 1].role != segment.role;
        let is_last = segments.get(index + 1).is_none_or(|next| next.role != segment.role);
        if is_first {
            texts[index].open_start();
            messages.push((segment.role, String::new()));
        }
        if is_last {
            texts[index].open_end();
        }
        let (_, content) = messages.last_mut().expect("the first segment began a message");
        texts[index].write(index, content);
    }
    messages
}

/// A prompt's tokens, and the position of the text of each sentinel.
struct Joined {
    tokens: Vec<Placed>,
    /// In the order of the rendered prompt.
    places: Vec<Place>,
}

/// The position of a text in the joined prompt.
#[derive(Debug)]
struct Place {
    /// Index of the text.
    index: usize,
    /// First byte of the text after the white space at its beginning.
    core: usize,
    /// The text, with as much of the white space around it as the template has kept.
    bytes: Range<usize>,
}

impl Joined {
    fn new(tokenizer: &Tokenizer, rendered: &str, texts: &[Framed<'_>]) -> Joined {
        let (mut pieces, mut places, mut at) = (Vec::new(), Vec::new(), 0);
        for part in cut(rendered, texts.len()) {
            let piece = match part {
                Part::Template(text) => Piece { text, is_template: true },
                Part::Segment(index) => Piece { text: texts[index].core, is_template: false },
            };
            let end = at + piece.text.len();
            if let Part::Segment(index) = part {
                places.push(Place { index, core: at, bytes: at..end });
            }
            pieces.push(piece);
            at = end;
        }
        let joined: String = pieces.iter().map(|piece| piece.text).collect();
        let mut last = 0;
        for Place { index, bytes, .. } in &mut places {
            let Framed { before, after, .. } = texts[*index];
            if joined[last..bytes.start.max(last)].ends_with(before) {
                bytes.start -= before.len();
            }
            if joined[bytes.end..].starts_with(after) {
                bytes.end += after.len();
            }
            last = last.max(bytes.end);
        }
        Joined { tokens: tokenizer.encode_pieces(&pieces), places }
    }

    fn ids(&self) -> Vec<TokenId> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// Returns the tokens of each text, in the order of the rendered prompt.
    fn segments(&self, tokenizer: &Tokenizer, texts: &[Framed<'_>]) -> Vec<(usize, SegmentTokens)> {
        let mut next = 0;
        let tokens_of = |place: &Place| {
            let Range { start, end } = place.bytes;
            // SentencePiece's space before a text stands for none of its bytes but belongs to the text. A
            // control token may remove white space of a text but belongs to the template.
            let is_before = |token: &Placed| {
                tokenizer.is_control(token.id) || token.bytes.end <= start && token.bytes != (start..start)
            };
            while self.tokens.get(next).is_some_and(|token| token.bytes.start < end && is_before(token)) {
                next += 1;
            }
            let first = next;
            let is_own =
                |token: &Placed| start < end && token.bytes.start < end && !tokenizer.is_control(token.id);
            while self.tokens.get(next).is_some_and(is_own) {
                next += 1;
            }
            let text = texts[place.index];
            let within = |byte: usize| (byte + text.before.len()).saturating_sub(place.core).min(text.len());
            let mut spans: Vec<Range<usize>> = self.tokens[first..next]
                .iter()
                .map(|token| within(token.bytes.start)..within(token.bytes.end))
                .collect();
            cover(&mut spans, text.len());
            (place.index, SegmentTokens { tokens: first..next, spans })
        };
        self.places.iter().map(tokens_of).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'t> {
    Template(&'t str),
    Segment(usize),
}

/// Cuts rendered text at its sentinels; text that only looks like a sentinel stays text.
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
        assert_eq!(
            with("{{ messages[0].content }}{{ messages[0].content }}"),
            "chat template repeats segment 0 of role `system`"
        );
        assert_eq!(with("{{ raise_exception('no') }}"), "lay out the prompt");
        assert_eq!(with("\u{e0b1}9\u{e0b3}"), "chat template leaves out segment 0 of role `system`");
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
