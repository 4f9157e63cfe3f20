//! System prompts whose ids and times change with every request are made equal again.
//!
//! Clients put session ids, billing headers and the time of day at the front. One changed token there makes
//! everything behind it new, and a long conversation is then read again for each turn. So in the system
//! messages at the front, ids get a fixed value, and times are rounded down to the hour. Nothing else is
//! changed: not what the user says, no sentence, no date. How many lines were changed is said in the
//! reply's header [`STEADIED`]. `baton serve --system-as-sent` turns it off.

use std::borrow::Cow;
use std::sync::LazyLock;

use axum::http::HeaderName;
use baton_openai::ChatMessage;
use baton_protocol::Role;
use regex::{Captures, Regex};

/// The reply's header with the number of lines that were changed.
pub(super) const STEADIED: HeaderName = HeaderName::from_static("x-baton-steadied-lines");

/// The value that ids get.
const FIXED: &str = "-";

/// A line with a header of a client: `x-anthropic-billing-header: cc_version=1.2; cch=03f1a`.
static HEADER: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?i)(\s*x-[a-z0-9-]*(?:header|id)\s*:\s*)\S.*$"));

/// A line with the id of something that soon ends, which is one word with a digit: `Session ID:
/// 0f8fad5b-d9cb`. Ids of users and files stay: a model may need them for its tools.
static ID: LazyLock<Regex> = LazyLock::new(|| {
    let of = "session|request|trace|span|turn|message|run|invocation|correlation|conversation";
    let key = format!(r#"[\s>*-]*["'`*]*(?:[a-z]+[ _-])?(?:{of})[ _-]?id["'`*]*"#);
    regex(&format!(r#"^(?i)({key}\s*[:=][\s"'`*]*)[a-z0-9_.-]*[0-9][a-z0-9_.-]*(["'`*]*[.,;]?\s*)$"#))
});

/// A word that says that a line is about the time.
static ABOUT_TIME: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(?:date|time|datetime|timestamp|clock|now|today)\b|_(?:date|time)\b"));

/// A time of day: the hour, and what is below it. A time zone's offset is none.
static TIME: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(^|[\sT(,])([01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]{1,9})?)?"));

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is part of the program and tested")
}

/// Steadies the system messages at the front; returns the number of lines that were changed.
pub(super) fn steady(messages: &mut [ChatMessage]) -> usize {
    let front = messages.iter_mut().take_while(|message| message.role == Role::System);
    front.map(|message| steady_text(&mut message.text)).sum()
}

fn steady_text(text: &mut String) -> usize {
    let mut changed = 0;
    let lines = text.split_inclusive('\n').map(|line| {
        let (content, end) = line.split_at(line.trim_end_matches(['\r', '\n']).len());
        let steadied = steady_line(content);
        changed += usize::from(steadied != content);
        steadied.into_owned() + end
    });
    let steadied: String = lines.collect();
    if changed > 0 {
        *text = steadied;
    }
    changed
}

fn steady_line(line: &str) -> Cow<'_, str> {
    if HEADER.is_match(line) {
        return HEADER.replace(line, |found: &Captures<'_>| format!("{}{FIXED}", &found[1]));
    }
    if ID.is_match(line) {
        return ID.replace(line, |found: &Captures<'_>| format!("{}{FIXED}{}", &found[1], &found[2]));
    }
    if ABOUT_TIME.is_match(line) {
        return TIME.replace_all(line, |found: &Captures<'_>| format!("{}{}:00", &found[1], &found[2]));
    }
    Cow::Borrowed(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(line: &str, want: &str) {
        assert_eq!(steady_line(line), want);
        assert_eq!(steady_line(want), want, "done twice is done once");
    }

    #[test]
    fn ids_and_headers_of_clients_get_a_fixed_value() {
        check(
            "x-anthropic-billing-header: cc_version=2.1.15.8f3; cch=03f1a;",
            "x-anthropic-billing-header: -",
        );
        check("X-Request-Id: 8b1c", "X-Request-Id: -");
        check("Session ID: 0f8fad5b-d9cb-469f-a165-70867728950e", "Session ID: -");
        check("- **Conversation ID:** `conv_8842`", "- **Conversation ID:** `-`");
        check("  session_id = \"a1\",", "  session_id = \"-\",");
        check("requestId: 77", "requestId: -");
    }

    #[test]
    fn times_lose_what_is_below_the_hour_and_keep_the_rest() {
        check("Current time: 10:15", "Current time: 10:00");
        check("Today's date is 2026-11-26.", "Today's date is 2026-11-26.");
        check("Current date and time: 2026-11-26T10:15:33.123Z", "Current date and time: 2026-11-26T10:00Z");
        check(
            "The time now is Thu Nov 26 2026 9:05:07 PM (UTC+01:00)",
            "The time now is Thu Nov 26 2026 9:00 PM (UTC+01:00)",
        );
        check("current_time: 23:59:59", "current_time: 23:00");
    }

    #[test]
    fn instructions_stay_as_they_are() {
        for line in [
            "Per request: answer in German.",
            "The meeting is at 10:15.",
            "Valid: 3",
            "Paid: 100",
            "User ID: 4711",
            "Session ID: is the number of the room.",
            "Every user has an id: it is a number.",
            "Use the model at 16:9 and the ratio 4:35.",
            "Identify 2 causes.",
            "Id",
            "",
        ] {
            check(line, line);
        }
    }

    fn message(role: Role, text: &str) -> ChatMessage {
        ChatMessage::new(role, text)
    }

    #[test]
    fn only_system_messages_at_the_front_are_changed() {
        let text = "Be brief.\r\nSession ID: a1\nCurrent time: 10:15\n\nNo line end: 10:15";
        let mut messages =
            [Role::System, Role::System, Role::User, Role::System].map(|role| message(role, text));
        assert_eq!(steady(&mut messages), 4);
        let want = "Be brief.\r\nSession ID: -\nCurrent time: 10:00\n\nNo line end: 10:15";
        assert_eq!(messages.map(|message| message.text), [want, want, text, text]);
    }

    proptest! {
        #[test]
        fn every_text_keeps_its_lines_and_is_steady_afterwards(text in "([ -~\n]|id: ?[0-9]|time 1[0-9]:[0-9]{2}){0,60}") {
            let mut once = text.clone();
            let changed = steady_text(&mut once);
            prop_assert_eq!(once.matches('\n').count(), text.matches('\n').count());
            prop_assert_eq!(changed > 0, once != text);
            let mut twice = once.clone();
            prop_assert_eq!(steady_text(&mut twice), 0);
            prop_assert_eq!(twice, once);
        }
    }
}
