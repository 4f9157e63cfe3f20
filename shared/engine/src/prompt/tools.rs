//! Prompts of conversations with tools: definitions of tools, calls, and their results.
//!
//! As in [`super`], texts are replaced by sentinels. Definitions of tools and arguments of calls are JSON
//! that the template writes by itself. Of these, only strings that hold the text of a control token are
//! replaced.

use serde_json::{Map, Value};

use super::{
    CLOSE, Framed, Joined, OPEN, Prompt, PromptError, ROLE_BYTES_MAX, SegmentTokens, begin, is_role, sentinel,
};
use crate::template::{ChatTemplate, ToolChat};
use crate::tokenizer::Tokenizer;

/// One message of a conversation with tools.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Turn {
    /// The speaker's role.
    pub role: String,
    /// The parts of its text, in order; all may be empty if the message is a call.
    pub texts: Vec<TurnText>,
    /// Further fields for the template: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Map<String, Value>,
}

/// A part of a message's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnText {
    /// The text.
    pub text: String,
    /// Whether it is a segment of the prompt, whose tokens are wanted.
    pub is_segment: bool,
}

impl Turn {
    /// Returns a message that is only the text of one segment.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Turn {
        let texts = vec![TurnText { text: text.into(), is_segment: true }];
        Turn { role: role.into(), texts, fields: Map::new() }
    }

    /// Appends text that is no segment.
    pub fn push(&mut self, text: impl Into<String>) {
        self.texts.push(TurnText { text: text.into(), is_segment: false });
    }
}

/// Returns the prompt of a conversation with tools; it ends at the beginning of the answer.
///
/// Unlike in [`super::assemble`], consecutive messages of one role stay separate: each result of a tool is
/// one. A segment that is empty, or that the template has left out, has no tokens.
///
/// # Errors
/// As [`super::assemble`]. The template may leave out text next to calls, but no other text.
pub fn assemble_with_tools(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    turns: &[Turn],
    tools: &[Value],
) -> Result<Prompt, PromptError> {
    if turns.is_empty() {
        return Err(PromptError::Empty);
    }
    if let Some(index) = turns.iter().position(|turn| !is_role(&turn.role)) {
        return Err(PromptError::BadRole { index, len: turns[index].role.len(), max: ROLE_BYTES_MAX });
    }
    let parts: Vec<(usize, &TurnText)> = turns
        .iter()
        .enumerate()
        .flat_map(|(turn, of)| of.texts.iter().map(move |text| (turn, text)))
        .collect();
    let mut texts: Vec<String> = parts.iter().map(|(_, part)| part.text.clone()).collect();
    let mut guard = |value: &Value| {
        let mut value = value.clone();
        replace_control_texts(tokenizer, &mut value, &mut texts);
        value
    };
    let tools: Vec<Value> = tools.iter().map(&mut guard).collect();
    let mut first = 0;
    let mut messages = Vec::with_capacity(turns.len());
    for turn in turns {
        messages.push(message(first, turn, &mut guard));
        first += turn.texts.len();
    }
    let rendered = template.render_with_tools(ToolChat { messages: &messages, tools: &tools }, true)?;
    let mut framed: Vec<Framed<'_>> = turns.iter().flat_map(|turn| frames(&turn.texts)).collect();
    framed.extend(texts[parts.len()..].iter().map(|text| Framed::whole(text)));
    let joined = Joined::new(tokenizer, &rendered, &framed);
    let mut found: Vec<Option<SegmentTokens>> = vec![None; framed.len()];
    for (at, tokens) in joined.segments(tokenizer, &framed) {
        if let (Some(_), Some((index, _))) = (found[at].replace(tokens), parts.get(at)) {
            return Err(PromptError::SegmentRepeated { index: *index, role: turns[*index].role.clone() });
        }
    }
    let mut prompt = Prompt { ids: joined.ids(), segments: Vec::new() };
    let mut end = 0;
    for ((index, part), tokens) in parts.into_iter().zip(found) {
        let turn = &turns[index];
        if tokens.is_none() && !part.text.is_empty() && !turn.fields.contains_key("tool_calls") {
            return Err(PromptError::SegmentLeftOut { index, role: turn.role.clone() });
        }
        let tokens = tokens.unwrap_or_else(|| SegmentTokens { tokens: end..end, spans: Vec::new() });
        end = tokens.tokens.end;
        prompt.segments.extend(part.is_segment.then_some(tokens));
    }
    begin(&mut prompt, tokenizer);
    if prompt.ids.is_empty() { Err(PromptError::NoTokens) } else { Ok(prompt) }
}

/// Frames the parts of a message. Templates see the white space at the ends of its text.
fn frames(parts: &[TurnText]) -> Vec<Framed<'_>> {
    let mut frames: Vec<Framed<'_>> = parts.iter().map(|part| Framed::whole(&part.text)).collect();
    if let Some(first) = frames.first_mut() {
        first.open_start();
    }
    if let Some(last) = frames.last_mut() {
        last.open_end();
    }
    frames
}

/// Returns a message as the template sees it; `first` is the index of its first part. An empty text stays
/// empty, so that templates can test for it.
fn message(first: usize, turn: &Turn, guard: &mut impl FnMut(&Value) -> Value) -> Value {
    let mut content = String::new();
    for (at, (framed, part)) in (first..).zip(frames(&turn.texts).iter().zip(&turn.texts)) {
        if !part.text.is_empty() {
            framed.write(at, &mut content);
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), turn.role.as_str().into());
    message.insert("content".to_owned(), content.into());
    for (name, value) in &turn.fields {
        message.insert(name.clone(), guard(value));
    }
    Value::Object(message)
}

/// Replaces strings and field names that a template must not write as they are by sentinels.
///
/// A sentinel stands for the string as it is inside JSON's quotes, since templates write such values with
/// `tojson`.
fn replace_control_texts(tokenizer: &Tokenizer, value: &mut Value, texts: &mut Vec<String>) {
    let is_unsafe = |text: &str| {
        text.contains([OPEN, CLOSE])
            || tokenizer.encode_template(text).iter().any(|&id| tokenizer.is_control(id))
    };
    let replaced = |text: &str, texts: &mut Vec<String>| {
        let quoted = Value::from(text).to_string();
        texts.push(quoted[1..quoted.len() - 1].to_owned());
        sentinel(texts.len() - 1)
    };
    match value {
        Value::String(text) if is_unsafe(text) => *text = replaced(text, texts),
        Value::Array(items) => {
            items.iter_mut().for_each(|item| replace_control_texts(tokenizer, item, texts))
        }
        Value::Object(fields) => {
            let held = std::mem::take(fields);
            for (name, mut value) in held {
                replace_control_texts(tokenizer, &mut value, texts);
                let name = if is_unsafe(&name) { replaced(&name, texts) } else { name };
                fields.insert(name, value);
            }
        }
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::tests::QWEN;
    use crate::tokenizer::TokenId;
    use crate::tokenizer::tests::{byte_level_gguf, tokenizer};

    /// A template that lists tools and writes calls, similar to that of Qwen 2.5.
    const TOOLS: &str = "{{ '<|bos|>' }}{% if tools %}{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% endif %}\
        {% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.content %}{{ m.content }}{% endif %}\
        {% if m.tool_calls %}{% for call in m.tool_calls %}{{ call.function.name }}={{ call.function.arguments | tojson }}\
        {% endfor %}{% endif %}{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

    fn text_of(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8(bytes).unwrap()
    }

    fn conversation(city: &str) -> Vec<Turn> {
        let calls =
            json!([{ "type": "function", "function": { "name": "weather", "arguments": { "city": city } } }]);
        let mut call = Turn::new("assistant", "");
        call.fields.insert("tool_calls".to_owned(), calls);
        vec![Turn::new("user", "Sun?"), call, Turn::new("tool", "rain"), Turn::new("tool", "wind")]
    }

    #[test]
    fn tools_calls_and_results_are_laid_out_in_the_order_of_their_fields() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(TOOLS, "<|bos|>", "<|end|>").unwrap();
        let tools = [json!({ "type": "function", "function": { "name": "weather", "description": "d" } })];
        let ids = assemble_with_tools(&t, &template, &conversation("Ulm"), &tools).unwrap().ids;
        let want = "<|bos|>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"d\"}};\
            <|user|>Sun?<|end|><|assistant|>weather={\"city\": \"Ulm\"}<|end|><|tool|>rain<|end|><|tool|>wind<|end|>\
            <|assistant|>";
        assert_eq!(text_of(&t, &ids), want);
        assert!(template.mentions("tool_calls") && !template.mentions("<tool_call>"));
    }

    #[test]
    fn segments_are_found_between_text_that_is_none() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(TOOLS, "<|bos|>", "<|end|>").unwrap();
        let mut turns = conversation("Ulm");
        turns[0].push("<note>");
        turns[0].texts.extend(Turn::new("", " And the wind? ").texts);
        let prompt = assemble_with_tools(&t, &template, &turns, &[]).unwrap();
        let texts: Vec<String> =
            prompt.segments.iter().map(|found| text_of(&t, &prompt.ids[found.tokens.clone()])).collect();
        assert_eq!(texts, ["Sun?", " And the wind? ", "", "rain", "wind"]);
        assert!(text_of(&t, &prompt.ids).contains("<|user|>Sun?<note> And the wind? <|end|>"));
    }

    #[test]
    fn control_texts_in_tools_and_arguments_stay_text() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(TOOLS, "<|bos|>", "<|end|>").unwrap();
        let plain = assemble_with_tools(&t, &template, &conversation("Ulm"), &[]).unwrap().ids;
        let controls = |ids: &[TokenId]| ids.iter().filter(|&&id| t.is_control(id)).count();
        let bad = "\"<|end|>\n\u{e0b1}0\u{e0b3}";
        let mut turns = conversation(bad);
        turns[0] = Turn::new("user", "<|end|>");
        let tools = [json!({ "type": "function", "function": { "name": "w", "description": bad, bad: 1 } })];
        let ids = assemble_with_tools(&t, &template, &turns, &tools).unwrap().ids;
        assert_eq!(controls(&ids), controls(&plain));
        let escaped = "\\\"<|end|>\\n\u{e0b1}0\u{e0b3}";
        assert_eq!(text_of(&t, &ids).matches(escaped).count(), 3, "{}", text_of(&t, &ids));
    }

    #[test]
    fn what_a_template_leaves_out_is_an_error_unless_it_is_beside_a_call() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(QWEN, "", "").unwrap();
        let mut turns = conversation("Ulm");
        turns[1].texts = Turn::new("", "Let me look.").texts;
        let ids = assemble_with_tools(&t, &template, &turns, &[]).unwrap().ids;
        let text = text_of(&t, &ids);
        assert!(text.contains("<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind"), "{text}");
        let lost = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
        let err = assemble_with_tools(&t, &lost, &turns, &[]).unwrap_err().to_string();
        assert_eq!(err, "chat template leaves out segment 2 of role `tool`");
        let twice = ChatTemplate::new("{{ messages[0].content }}{{ messages[0].content }}", "", "").unwrap();
        let err = assemble_with_tools(&t, &twice, &turns[..1], &[]).unwrap_err().to_string();
        assert_eq!(err, "chat template repeats segment 0 of role `user`");
        assert!(matches!(assemble_with_tools(&t, &lost, &[], &[]), Err(PromptError::Empty)));
        let role = [Turn::new("user|>", "x")];
        assert!(matches!(assemble_with_tools(&t, &lost, &role, &[]), Err(PromptError::BadRole { .. })));
    }
}
