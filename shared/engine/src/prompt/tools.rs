//! Prompts of conversations with tools: definitions of tools, calls, and their results.
//!
//! Definitions of tools and arguments of calls are JSON that the template writes by itself. Their strings and
//! field names are the conversation's, so they never become control tokens.

use serde_json::{Map, Value};

use super::joined::Joined;
use super::{Prompt, PromptError, ROLE_BYTES_MAX, is_blank, is_role, prompt, system};
use crate::template::{ChatTemplate, Entry};
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
/// one. A segment that is empty, or that the template has left out, has no tokens. `variables` are further
/// ones for the template, such as `enable_thinking`.
///
/// # Errors
/// As [`super::assemble`]. The template may leave out what a model said (old thoughts, and text next to
/// calls), but no other text.
pub fn assemble_with_tools(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    turns: &[Turn],
    tools: &[Value],
    variables: Option<&Map<String, Value>>,
) -> Result<Prompt, PromptError> {
    if turns.is_empty() {
        return Err(PromptError::Empty);
    }
    if let Some(index) = turns.iter().position(|turn| !is_role(&turn.role)) {
        return Err(PromptError::BadRole { index, len: turns[index].role.len(), max: ROLE_BYTES_MAX });
    }
    let parts: Vec<(&Turn, &TurnText)> =
        turns.iter().flat_map(|turn| turn.texts.iter().map(move |text| (turn, text))).collect();
    let mut index = 0;
    let mut entries = Vec::with_capacity(turns.len());
    for turn in turns {
        let indexed = turn.texts.iter().zip(index..).map(|(text, index)| (Some(index), text.text.as_str()));
        let fields = Some(&turn.fields).filter(|fields| !fields.is_empty());
        entries.push(Entry { role: &turn.role, content: indexed.collect(), fields });
        index += turn.texts.len();
    }
    let rendered = system::lay_out(template, entries, tools, variables)?;
    let texts: Vec<&str> = parts.iter().map(|(_, part)| part.text.as_str()).collect();
    let joined = Joined::new(tokenizer, &rendered, &texts);
    let left_out = |(turn, part): &(&Turn, &TurnText)| {
        turn.role != "assistant" && !turn.fields.contains_key("tool_calls") && !is_blank(&part.text)
    };
    for (part, found) in parts.iter().zip(&joined.found) {
        if found.is_none() && left_out(part) {
            let index = turns.iter().position(|turn| std::ptr::eq(turn, part.0)).unwrap_or_default();
            return Err(PromptError::SegmentLeftOut { index, role: part.0.role.clone() });
        }
    }
    let mut prompt = prompt(tokenizer, joined)?;
    let mut wanted = parts.iter().map(|(_, part)| part.is_segment);
    prompt.segments.retain(|_| wanted.next().unwrap_or_default());
    Ok(prompt)
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
        let ids = assemble_with_tools(&t, &template, &conversation("Ulm"), &tools, None).unwrap().ids;
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
        let prompt = assemble_with_tools(&t, &template, &turns, &[], None).unwrap();
        let texts: Vec<String> =
            prompt.segments.iter().map(|found| text_of(&t, &prompt.ids[found.tokens.clone()])).collect();
        assert_eq!(texts, ["Sun?", " And the wind? ", "", "rain", "wind"]);
        assert!(text_of(&t, &prompt.ids).contains("<|user|>Sun?<note> And the wind? <|end|>"));
    }

    #[test]
    fn control_texts_in_tools_and_arguments_stay_text() {
        let t = tokenizer(&byte_level_gguf("gpt-2"));
        let template = ChatTemplate::new(TOOLS, "<|bos|>", "<|end|>").unwrap();
        let plain = assemble_with_tools(&t, &template, &conversation("Ulm"), &[], None).unwrap().ids;
        let controls = |ids: &[TokenId]| ids.iter().filter(|&&id| t.is_control(id)).count();
        let bad = "\"<|end|>\n\u{e0b1}0\u{e0b3}";
        let mut turns = conversation(bad);
        turns[0] = Turn::new("user", "<|end|>");
        let tools = [json!({ "type": "function", "function": { "name": "w", "description": bad, bad: 1 } })];
        let ids = assemble_with_tools(&t, &template, &turns, &tools, None).unwrap().ids;
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
        let ids = assemble_with_tools(&t, &template, &turns, &[], None).unwrap().ids;
        let text = text_of(&t, &ids);
        assert!(text.contains("<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind"), "{text}");
        let lost = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
        let err = assemble_with_tools(&t, &lost, &turns, &[], None).unwrap_err().to_string();
        assert_eq!(err, "chat template leaves out segment 2 of role `tool`");
        assert!(matches!(assemble_with_tools(&t, &lost, &[], &[], None), Err(PromptError::Empty)));
        let role = [Turn::new("user|>", "x")];
        assert!(matches!(assemble_with_tools(&t, &lost, &role, &[], None), Err(PromptError::BadRole { .. })));
    }
}
