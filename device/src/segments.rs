//! The default rule that splits an ordinary chat into segments: which text a refiner may shorten and which
//! stays.
//!
//! User and tool text of at least 256 tokens is refinable, except the final paragraph of the last user
//! message (at most 128 tokens of it). System and assistant text is never refinable, nor is the newest result
//! of a tool. The segments of a message, joined, are the message.

use baton_openai::ChatMessage;
use baton_protocol::{Role, Segment, sentences};

/// Text with fewer tokens is never refined.
pub const REFINABLE_TOKENS_MIN: usize = 256;
/// The most tokens at the end of the last user message that are protected.
pub const QUESTION_TOKENS_MAX: usize = 128;

/// Splits `messages` into segments. `count` returns the number of tokens of a text. Empty messages give no
/// segment, unless they have calls or are the result of one.
pub fn mark(messages: &[ChatMessage], count: impl Fn(&str) -> usize) -> Vec<Segment> {
    let last_user = messages.iter().rposition(|m| m.role == Role::User);
    let mut segments = Vec::with_capacity(messages.len() + 1);
    for (i, message) in messages.iter().enumerate().filter(|(_, message)| is_there(message)) {
        let is_newest = i + 1 == messages.len();
        let may_refine = match message.role {
            Role::User => true,
            Role::Tool => !is_newest,
            Role::System | Role::Assistant => false,
        };
        if !may_refine || count(&message.text) < REFINABLE_TOKENS_MIN {
            segments.push(Segment::from(message.clone()));
            continue;
        }
        if message.role == Role::Tool {
            segments.push(Segment { refine: true, ..message.clone().into() });
            continue;
        }
        let split =
            if Some(i) == last_user { question_start(&message.text, &count) } else { message.text.len() };
        let (content, question) = message.text.split_at(split);
        if !content.is_empty() {
            segments.push(Segment::refinable(message.role, content));
        }
        if !question.is_empty() {
            segments.push(Segment::fixed(message.role, question));
        }
    }
    segments
}

/// Returns the message that each segment of [`mark`] comes from, and the byte of the message at which it
/// begins.
pub fn places(messages: &[ChatMessage], segments: &[Segment]) -> Vec<(usize, usize)> {
    let there = messages.iter().enumerate().filter(|(_, message)| is_there(message));
    let mut left = there.map(|(index, message)| (index, message.text.len()));
    let mut now: Option<(usize, usize)> = None;
    let mut at = 0;
    let place = |segment: &Segment| {
        if now.is_none_or(|(_, len)| at >= len) {
            (now, at) = (left.next(), 0);
        }
        let start = at;
        at += segment.text.len();
        now.map(|(index, _)| (index, start))
    };
    segments.iter().map_while(place).collect()
}

/// Returns whether a message gives a segment.
fn is_there(message: &ChatMessage) -> bool {
    !message.text.is_empty() || message.is_about_tools()
}

/// Returns the byte at which the protected end of the last user message begins, including white space before
/// it.
fn question_start(text: &str, count: &impl Fn(&str) -> usize) -> usize {
    let paragraph = final_paragraph(text);
    if count(&text[paragraph..]) <= QUESTION_TOKENS_MAX {
        return paragraph;
    }
    // A long final paragraph: protects as many whole sentences at its end as fit, but at least the last one.
    let units = sentences(&text[paragraph..]);
    let mut start = text.len();
    for unit in units.iter().rev() {
        let from = paragraph + unit.start;
        if start < text.len() && count(&text[from..]) > QUESTION_TOKENS_MAX {
            break;
        }
        start = from;
    }
    start
}

/// Returns the byte at which the last paragraph begins, including the blank line before it.
fn final_paragraph(text: &str) -> usize {
    let body = text.trim_end();
    let mut blank_from = None;
    let mut start = 0;
    let mut at = 0;
    for line in body.split_inclusive('\n') {
        if line.trim().is_empty() {
            blank_from.get_or_insert(at);
        } else if let Some(blank) = blank_from.take() {
            start = blank;
        }
        at += line.len();
    }
    // The line break that ends the paragraph before belongs to the gap as well.
    let gap = &text[..start];
    start - (gap.len() - gap.trim_end().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts words as tokens, which is enough to test the rule.
    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn message(role: Role, text: impl Into<String>) -> ChatMessage {
        ChatMessage::new(role, text)
    }

    fn long(n: usize) -> String {
        (0..n).map(|i| format!("Word{i} is here. ")).collect()
    }

    #[track_caller]
    fn check(messages: &[ChatMessage], want: &[(Role, bool, &str)]) {
        let got = mark(messages, words);
        let got: Vec<_> = got.iter().map(|s| (s.role, s.refine, s.text.as_str())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn short_text_and_system_text_stay() {
        let system = long(200);
        check(
            &[message(Role::System, &*system), message(Role::User, "Hi")],
            &[(Role::System, false, &system), (Role::User, false, "Hi")],
        );
    }

    #[test]
    fn the_last_paragraph_of_the_last_user_message_is_the_question() {
        let document = long(100);
        let text = format!("{document}\n\nWhat is word 7?\n");
        check(
            &[message(Role::User, &*text)],
            &[
                (Role::User, true, document.trim_end()),
                (Role::User, false, &text[document.trim_end().len()..]),
            ],
        );
        let windows = format!("{}\r\n \r\nWhat?", document.trim_end());
        check(
            &[message(Role::User, &*windows)],
            &[(Role::User, true, document.trim_end()), (Role::User, false, "\r\n \r\nWhat?")],
        );
    }

    #[test]
    fn earlier_user_and_tool_text_is_refinable_as_a_whole() {
        let document = long(100);
        check(
            &[
                message(Role::User, &*document),
                message(Role::Assistant, &*document),
                message(Role::Tool, &*document),
                message(Role::User, "And now?"),
            ],
            &[
                (Role::User, true, &document),
                (Role::Assistant, false, &document),
                (Role::Tool, true, &document),
                (Role::User, false, "And now?"),
            ],
        );
    }

    #[test]
    fn one_long_paragraph_protects_its_last_sentences() {
        let text = long(100);
        let segments = mark(&[message(Role::User, &*text)], words);
        assert_eq!(segments.len(), 2);
        assert!(segments[0].refine && !segments[1].refine);
        let protected = words(&segments[1].text);
        assert!((100..=QUESTION_TOKENS_MAX).contains(&protected), "{protected}");
        assert!(segments[1].text.starts_with("Word"), "cut at a sentence");
    }

    #[test]
    fn empty_messages_give_nothing() {
        check(&[message(Role::User, "")], &[]);
    }

    proptest! {
        #[test]
        fn segments_concatenate_to_the_message(parts in proptest::collection::vec("\\PC{0,40}|\n\n|\n| |a. b. ", 0..60), n in 0usize..120) {
            let text = format!("{}{}", long(n), parts.concat());
            let segments = mark(&[message(Role::User, &*text)], words);
            prop_assert_eq!(segments.iter().map(|s| s.text.as_str()).collect::<String>(), text);
            prop_assert!(segments.len() <= 2);
            if let Some(last) = segments.last() {
                prop_assert!(!last.refine, "the end of the last user message always stays");
            }
        }
    }
}
