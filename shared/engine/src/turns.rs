//! Where a turn ends: stop strings for templates whose marks are not tokens, and templates for files without
//! one.
//!
//! Most templates end a turn by a control token, which ends the answer. Others write the next speaker's name
//! (`### Instruction:`) or marks that the vocabulary lacks. A model trained on them writes the mark as text
//! and goes on with the other side's turn. So the text between an answer and the next message is a stop
//! string, unless it holds a control token.

use crate::template::{ChatTemplate, Message};
use crate::tokenizer::Tokenizer;

/// ChatML, for files without a template whose vocabulary has its marks as control tokens.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// For base models, which continue text: a text, then `Answer:`. A blank line ends the answer.
const CONTINUED: &str = "{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content }}\n\n\
    {% elif message.role == 'user' %}{{ message.content }}\n\nAnswer:\
    {% else %}{{ message.content }}\n\n{% endif %}{% endfor %}";

/// The marks of ChatML.
const CHATML_MARKS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// Stands for the content of a message in [`turn_end`]: private-use characters, which no template changes.
const MARKS: [&str; 3] = ["\u{e0b5}0", "\u{e0b5}1", "\u{e0b5}2"];

/// The longest stop string, in bytes; a longer separator is cut to its first line or left out.
const TURN_END_BYTES_MAX: usize = 80;

/// Returns the template for a file without one.
pub(crate) fn template_without(tokenizer: &Tokenizer) -> &'static str {
    if CHATML_MARKS.iter().all(|mark| is_control(tokenizer, mark)) { CHATML } else { CONTINUED }
}

fn is_control(tokenizer: &Tokenizer, text: &str) -> bool {
    matches!(tokenizer.encode_template(text)[..], [id] if tokenizer.is_control(id))
}

/// Returns the text that ends an answer in the template, if no token does.
///
/// It is the first line of what the template writes between an answer and the next message, with the line
/// break before it. If that is a blank line, it is all of it.
pub(crate) fn turn_end(tokenizer: &Tokenizer, template: &ChatTemplate) -> Option<String> {
    let roles = ["user", "assistant", "user"];
    let messages: Vec<Message<'_>> =
        roles.iter().zip(MARKS).map(|(role, content)| Message { role, content }).collect();
    // A template that refuses this conversation writes one turn only.
    let rendered = template.render(&messages, false).ok()?;
    let from = rendered.find(MARKS[1])? + MARKS[1].len();
    let between = &rendered[from..from + rendered[from..].find(MARKS[2])?];
    if tokenizer.encode_template(between).iter().any(|&id| tokenizer.is_control(id)) {
        return None;
    }
    let line = between.trim_start().lines().next().map_or("", str::trim_end);
    let start = &between[..between.len() - between.trim_start().len()];
    let end = match (line.is_empty(), start.contains('\n')) {
        (true, _) => between.to_owned(),
        (false, true) => format!("\n{line}"),
        (false, false) => line.to_owned(),
    };
    let is_blank_line = end.matches('\n').count() > 1;
    ((!line.is_empty() || is_blank_line) && end.len() <= TURN_END_BYTES_MAX).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::tests::{LLAMA3, MISTRAL, QWEN};
    use crate::tokenizer::tests::{byte_level_gguf, tokenizer};

    fn end(source: &str) -> Option<String> {
        turn_end(
            &tokenizer(&byte_level_gguf("gpt-2")),
            &ChatTemplate::new(source, "<|bos|>", "<|end|>").unwrap(),
        )
    }

    #[test]
    fn marks_that_are_no_tokens_end_an_answer() {
        let alpaca = "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n\
            {% else %}### Response:\n{{ m.content }}\n\n{% endif %}{% endfor %}";
        assert_eq!(end(alpaca).unwrap(), "\n### Instruction:");
        let vicuna = "{% for m in messages %}{{ 'USER: ' if m.role == 'user' else 'ASSISTANT: ' }}{{ m.content }} {% endfor %}";
        assert_eq!(end(vicuna).unwrap(), "USER:");
        // This vocabulary has no token for the marks of these templates.
        assert_eq!(end(CHATML).unwrap(), "<|im_end|>");
        assert_eq!(end(QWEN).unwrap(), "<|im_end|>");
        assert_eq!(end(LLAMA3).unwrap(), "<|eot_id|><|start_header_id|>user<|end_header_id|>");
        assert_eq!(end(CONTINUED).unwrap(), "\n\n");
    }

    #[test]
    fn a_control_token_needs_no_text() {
        assert_eq!(end(MISTRAL), None);
        assert_eq!(end("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"), None);
        assert_eq!(end("{% for m in messages %}{{ m.content }} {% endfor %}"), None);
        assert_eq!(end("{{ raise_exception('no') }}"), None);
        assert_eq!(end("{{ messages[0].content }}"), None);
    }
}
