//! Calls are found in text, however it is cut.

use super::*;

fn parse(markup: Markup, text: &str, cut: usize) -> (String, Vec<(String, String)>) {
    let mut parser = ToolParser::new(markup, ["weather".to_owned(), "sun".to_owned()]);
    let chars: Vec<char> = text.chars().collect();
    let mut pieces = Vec::new();
    for part in chars.chunks(cut) {
        pieces.extend(parser.push(&part.iter().collect::<String>()));
    }
    pieces.extend(parser.finish());
    let (mut said, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for piece in pieces {
        match piece {
            ToolPiece::Text(text) => said.push_str(&text),
            ToolPiece::Call { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            ToolPiece::Arguments { index, text } => {
                assert_eq!(index + 1, calls.len());
                calls[index].1.push_str(&text);
            }
        }
    }
    (said, calls)
}

#[track_caller]
fn check(markup: Markup, text: &str, said: &str, calls: &[(&str, &str)]) {
    for cut in [1, 2, 3, 7, 1000] {
        let (found_said, found) = parse(markup, text, cut);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!((found_said.as_str(), found.as_slice()), (said, calls), "{text} in pieces of {cut}");
    }
}

#[test]
fn tagged_calls_are_found() {
    let one = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm }\\\"{\", \"n\": [1, {}]}}\n</tool_call>";
    let arguments = "{\"city\": \"Ulm }\\\"{\", \"n\": [1, {}]}";
    check(Markup::Tagged, one, "", &[("weather", arguments)]);
    check(
        Markup::Tagged,
        &format!("Let me see.\n\n{one}\n{one}"),
        "Let me see.",
        &[("weather", arguments); 2],
    );
    check(Markup::Tagged, &format!("{one} Done."), " Done.", &[("weather", arguments)]);
    let unusual = "<tool_call>{\"arguments\":{\"a\":1},\"name\":\"sun\"}</tool_call>";
    check(Markup::Tagged, unusual, "", &[("sun", "{\"a\":1}")]);
    let quoted = "<tool_call>{\"name\":\"sun\",\"arguments\":\"{}\"}</tool_call>";
    check(Markup::Tagged, quoted, "", &[("sun", "{}")]);
    // The token limit cut the call off: the beginning of its arguments is returned.
    check(Markup::Tagged, "<tool_call>\n{\"name\": \"sun\", \"arguments\": {\"a", "", &[("sun", "{\"a")]);
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "Nothing to call.",
        "a <tool_ b </tool_call>",
        "<tool_call>",
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>é</tool_call>",
        "trailing space \n",
    ] {
        check(Markup::Tagged, text, text, &[]);
    }
    for text in ["Nothing.", "{\"a\": 1}", "[{}]", "{\"name\": \"rm\", \"parameters\": {}}"] {
        check(Markup::Bare, text, text, &[]);
    }
}

#[test]
fn bare_calls_are_found() {
    let one = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\"}}";
    check(Markup::Bare, one, "", &[("weather", "{\"city\": \"Ulm\"}")]);
    check(Markup::Bare, &format!("\n{one}; {one}"), "", &[("weather", "{\"city\": \"Ulm\"}"); 2]);
    check(Markup::Bare, &format!("Say {one}"), &format!("Say {one}"), &[]);
}
