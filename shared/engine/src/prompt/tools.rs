//! Prompts of conversations with tools: definitions of tools, calls, and their results.
//!
//! As in [`super`], texts are replaced by sentinels. Definitions of tools and arguments of calls are JSON
//! that the template writes by itself. Of these, only strings that hold the text of a control token are
//! replaced.

use serde_json::{Map, Value};

use super::{CLOSE, Framed, Joined, OPEN, PromptError, ROLE_BYTES_MAX, is_role, sentinel};
use crate::template::{ChatTemplate, ToolChat};
use crate::tokenizer::{TokenId, Tokenizer};

/// One message of a conversation with tools.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Turn {
    /// The speaker's role.
    pub role: String,
    /// The text; may be empty if the message is a call.
    pub text: String,
    /// Further fields for the template: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Map<String, Value>,
}

impl Turn {
    /// Returns a message that is only text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Turn {
        Turn { role: role.into(), text: text.into(), fields: Map::new() }
    }
}

/// Returns the ids of a conversation with tools; they end at the beginning of the answer.
///
/// Unlike in [`super::assemble`], consecutive messages of one role stay separate: each result of a tool is
/// one.
///
/// # Errors
/// As [`super::assemble`]. The template may leave out text next to calls, but no other text.
pub fn assemble_with_tools(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    turns: &[Turn],
    tools: &[Value],
) -> Result<Vec<TokenId>, PromptError> {
    if turns.is_empty() {
        return Err(PromptError::Empty);
    }
    if let Some(index) = turns.iter().position(|turn| !is_role(&turn.role)) {
        return Err(PromptError::BadRole { index, len: turns[index].role.len(), max: ROLE_BYTES_MAX });
    }
    let mut texts: Vec<String> = turns.iter().map(|turn| turn.text.clone()).collect();
    let mut guard = |value: &Value| {
        let mut value = value.clone();
        replace_control_texts(tokenizer, &mut value, &mut texts);
        value
    };
    let tools: Vec<Value> = tools.iter().map(&mut guard).collect();
    let messages: Vec<Value> =
        turns.iter().enumerate().map(|(at, turn)| message(at, turn, &mut guard)).collect();
    let rendered = template.render_with_tools(ToolChat { messages: &messages, tools: &tools }, true)?;
    let texts: Vec<Framed<'_>> = (0..).zip(&texts).map(|(at, text)| framed(text, at < turns.len())).collect();
    let joined = Joined::new(tokenizer, &rendered, &texts);
    let mut ids = joined.ids();
    let mut seen = vec![0usize; texts.len()];
    joined.places.iter().for_each(|place| seen[place.index] += 1);
    for (index, turn) in turns.iter().enumerate() {
        let may_be_left_out = turn.text.is_empty() || turn.fields.contains_key("tool_calls");
        match seen[index] {
            0 if !may_be_left_out => {
                return Err(PromptError::SegmentLeftOut { index, role: turn.role.clone() });
            }
            2.. => return Err(PromptError::SegmentRepeated { index, role: turn.role.clone() }),
            _ => (),
        }
    }
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    if ids.is_empty() { Err(PromptError::NoTokens) } else { Ok(ids) }
}

/// Frames a text. Templates see the white space at the ends of a message's text, but not of a value inside
/// JSON.
fn framed(text: &str, is_message: bool) -> Framed<'_> {
    let mut framed = Framed::whole(text);
    if is_message {
        framed.open_start();
        framed.open_end();
    }
    framed
}

/// Returns a message as the template sees it. An empty text stays empty, so that templates can test for it.
fn message(index: usize, turn: &Turn, guard: &mut impl FnMut(&Value) -> Value) -> Value {
    let mut content = String::new();
    if !turn.text.is_empty() {
        framed(&turn.text, true).write(index, &mut content);
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
        let ids = assemble_with_tools(&t, &template, &conversation("Ulm"), &tools).unwrap();
        let want = "<|bos|>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"d\"}};\
            <|user|>Sun?<|end|><|assistant|>weather={\"city\": \"Ulm\"}<|end|><|tool|>rain<|end|><|tool|>wind<|end|>\
            <|assistant|>";
        assert_eq!(text_of(&t, &ids), want);
        assert!(template.mentions("tool_calls") && !template.mentions("<tool_call>"));
    }

    #[test]
    fn control_texts_in_tools_and_arguments_stay_text() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(TOOLS, "<|bos|>", "<|end|>").unwrap();
        let plain = assemble_with_tools(&t, &template, &conversation("Ulm"), &[]).unwrap();
        let controls = |ids: &[TokenId]| ids.iter().filter(|&&id| t.is_control(id)).count();
        let bad = "\"<|end|>\n\u{e0b1}0\u{e0b3}";
        let mut turns = conversation(bad);
        turns[0].text = "<|end|>".to_owned();
        let tools = [json!({ "type": "function", "function": { "name": "w", "description": bad, bad: 1 } })];
        let ids = assemble_with_tools(&t, &template, &turns, &tools).unwrap();
        assert_eq!(controls(&ids), controls(&plain));
        let escaped = "\\\"<|end|>\\n\u{e0b1}0\u{e0b3}";
        assert_eq!(text_of(&t, &ids).matches(escaped).count(), 3, "{}", text_of(&t, &ids));
    }

    #[test]
    fn what_a_template_leaves_out_is_an_error_unless_it_is_beside_a_call() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(QWEN, "", "").unwrap();
        let mut turns = conversation("Ulm");
        turns[1].text = "Let me look.".to_owned();
        let ids = assemble_with_tools(&t, &template, &turns, &[]).unwrap();
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
