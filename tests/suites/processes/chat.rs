//! `baton chat` as a person on a terminal uses it: its lines, what is pasted, and its keys.

use std::process::Command;

use baton_e2e::process::cpu_program;
use serde_json::Value;

use crate::terminal::{Place, Terminal};

/// Marks of a terminal around pasted text.
const PASTE: [&str; 2] = ["\x1b[200~", "\x1b[201~"];
/// What is written for a prompt without text behind it.
const PROMPT: &str = "\x1b[K> \r\x1b[2C";

fn chat(place: &Place, more: &[&str]) -> Command {
    place.baton("chat", &[&["--no-cloud", "--instant", "--max-tokens", "4"], more].concat())
}

/// Returns the questions of the conversation that was kept.
fn questions(place: &Place) -> Vec<String> {
    let mut show = cpu_program("baton").expect("the program is built");
    show.args(["conversations", "show", "--json", "--config-dir"]).arg(place.path("config"));
    let out = show.output().expect("it starts");
    let kept: Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let turns = kept["turns"].as_array().expect("turns").iter();
    let asked = turns.filter(|turn| turn["role"] == "user");
    asked.map(|turn| turn["text"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn ctrl_c_at_the_prompt_drops_the_line_and_a_second_one_leaves() {
    let place = Place::new();
    let chat = chat(&place, &[]);
    let mut terminal = Terminal::start(&chat);
    terminal.wait_for(PROMPT);
    terminal.press("Hello there\n");
    // After the first answer it is the same as before it.
    terminal.wait_for(PROMPT);
    terminal.press("half of a li\x03");
    terminal.wait_for("Ctrl-C again");
    terminal.wait_for(PROMPT);
    terminal.press("Hi\n");
    terminal.wait_for(PROMPT);
    terminal.press("\x03");
    terminal.wait_for("Ctrl-C again");
    terminal.press("\x03");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(130), "{shown}");
    assert!(!shown.contains("error"), "{shown}");
    // The end of input leaves too.
    let mut terminal = Terminal::start(&chat);
    terminal.wait_for(PROMPT);
    terminal.press("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn pasted_text_is_one_question_of_any_length() {
    let place = Place::new();
    let long = "The gate is red and the key is blue. ".repeat(160);
    let lines: String = (0..40).map(|n| format!("Line {n} of the text, with\ta tab.\n")).collect();
    let [begin, end] = PASTE;
    let mut terminal = Terminal::start(&chat(&place, &["--emulate-decode-ms", "150"]));
    terminal.wait_for(PROMPT);
    terminal.press(&format!("Sum up: {begin}{lines}{end}\n"));
    terminal.wait_for("Line 39");
    // What is pasted while an answer is written waits for the next prompt, whole.
    terminal.press(&format!("{begin}{long}{end} What is red?\n"));
    terminal.wait_for("What is red?");
    terminal.wait_for(PROMPT);
    terminal.press("\x04");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0), "{shown}");
    let asked = questions(&place);
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[0], format!("Sum up: {}", lines.trim_end()));
    assert_eq!(asked[1], format!("{long} What is red?"));
}

#[test]
fn a_line_can_be_edited_and_earlier_ones_come_back() {
    let place = Place::new();
    let mut terminal = Terminal::start(&chat(&place, &[]));
    terminal.wait_for(PROMPT);
    // Home, then the end of the line.
    terminal.press("gate?\x01Which \x05 Quick!\n");
    terminal.wait_for(PROMPT);
    // The arrow up brings the question back.
    terminal.press("\x1b[A Now.\n");
    terminal.wait_for(PROMPT);
    terminal.press("\x04");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(questions(&place), ["Which gate? Quick!", "Which gate? Quick! Now."]);
    let mut terminal = Terminal::start(&chat(&place, &["--resume"]));
    terminal.wait_for(PROMPT);
    terminal.press("\x1b[A\n");
    terminal.wait_for(PROMPT);
    terminal.press("\x04");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(questions(&place).last().map(String::as_str), Some("Which gate? Quick! Now."));
}

#[test]
fn pasted_text_does_not_steer_the_terminal() {
    let place = Place::new();
    let [begin, end] = PASTE;
    let mut terminal = Terminal::start(&chat(&place, &[]));
    terminal.wait_for(PROMPT);
    terminal.press(&format!("{begin}a\x1b]0;owned\x07b\u{9b}2J\u{202e}c\x08{end}"));
    terminal.wait_for("owned␇b\u{fffd}2J\u{fffd}c␈");
    terminal.press("\x03");
    terminal.wait_for("Ctrl-C again");
    terminal.press("\x03");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(130), "{shown}");
    for steers in ["\x1b]0", "\x07", "\u{9b}", "\u{202e}", "\x08"] {
        assert!(!shown.contains(steers), "{steers:?} reached the terminal: {shown:?}");
    }
}

/// A shell that is left without echo, or that gets pasted text in brackets, is broken for its user.
#[test]
fn the_terminal_is_given_back_as_it_was() {
    let place = Place::new();
    let chat = chat(&place, &[]);
    let words = std::iter::once(chat.get_program()).chain(chat.get_args());
    let line = words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    for (end, status) in [("\x04", 0), ("\x03", 130), ("kill", 143)] {
        let run = format!("(echo \"pid $(sh -c 'echo $PPID').\"; exec {line})");
        let script = format!("stty -a >before; {run}; echo \"status $?.\"; stty -a >after");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("cd '{}'; {script}", place.path("").display())]);
        let mut terminal = Terminal::start(&shell);
        terminal.wait_for("pid ");
        terminal.wait_for(PROMPT);
        if end == "kill" {
            let text = terminal.text();
            let pid = text.split("pid ").nth(1).and_then(|rest| rest.split('.').next()).expect("a pid");
            let sent = Command::new("kill").args(["-TERM", pid]).status().expect("run kill");
            assert!(sent.success());
        } else {
            terminal.press(end);
        }
        if end == "\x03" {
            terminal.wait_for("Ctrl-C again");
            terminal.wait_for(PROMPT);
            terminal.press(end);
        }
        terminal.wait_for(&format!("status {status}."));
        let (_, shown) = terminal.end();
        let [before, after] = ["before", "after"].map(|name| std::fs::read(place.path(name)).expect("read"));
        assert_eq!(String::from_utf8_lossy(&after), String::from_utf8_lossy(&before), "{end:?}: {shown}");
        let last = shown.rfind("\x1b[?2004").expect("pasted text was asked for in brackets");
        assert!(shown[last..].starts_with("\x1b[?2004l"), "{end:?}: {shown:?}");
    }
}

/// A terminal that cannot move its cursor gets plain lines.
#[test]
fn a_plain_terminal_gets_plain_lines() {
    let place = Place::new();
    let mut command = chat(&place, &[]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(&command);
    terminal.wait_for("> ");
    terminal.press("Hello there\n");
    terminal.wait_for("\n> ");
    terminal.press("\x04");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0), "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert_eq!(questions(&place), ["Hello there"]);
}
