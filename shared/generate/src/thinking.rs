//! Where a model's thinking begins.

use baton_engine::template::{ChatTemplate, Message};
use baton_engine::tokenizer::{TokenId, Tokenizer};

/// What opens a model's thinking.
const OPEN: &str = "<think>";
/// Ends the thinking that a prompt has opened.
const NO_THOUGHT: &str = "\n</think>\n\n";

/// Returns whether this template writes the opening tag of the thinking into the prompt, so that answers
/// begin behind it. A template that refuses a single question does not.
pub fn begins_in_thinking(template: &ChatTemplate) -> bool {
    let question = [Message { role: "user", content: "?" }];
    template.mentions(OPEN)
        && template.render(&question, true).is_ok_and(|prompt| prompt.trim_end().ends_with(OPEN))
}

/// Returns the tokens behind a prompt of this template that begin the answer with a text. If the prompt opens
/// the thinking, it ends there.
pub fn begun_answer(tokenizer: &Tokenizer, template: &ChatTemplate, text: &str) -> Vec<TokenId> {
    let mut ids = Vec::new();
    if begins_in_thinking(template) {
        ids.extend(tokenizer.encode_template(NO_THOUGHT));
    }
    ids.extend(tokenizer.encode_answer(text).0);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_prompt_that_ends_in_thinking_counts() {
        let begins = |source: &str| begins_in_thinking(&ChatTemplate::new(source, "", "").unwrap());
        let turns = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let prompt = "{% if add_generation_prompt %}A: <think>\n{% endif %}";
        assert!(begins(&format!("{turns}{prompt}")));
        assert!(!begins(&format!("{turns}{{% if add_generation_prompt %}}A: <think></think>{{% endif %}}")));
        assert!(!begins(&format!("{turns}A: ")));
    }
}
