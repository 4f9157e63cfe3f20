//! Tests assist requests with tools and forms: the first tokens have the form, and tools are never left
//! out.

use baton_protocol::{
    AnswerFormat, AssistEvent, AssistRequest, EndReason, Markup, PastCall, Role, Segment, SentenceMap, Tool,
    ToolChoice, ToolUse,
};
use serde_json::{Value, json};

use super::world::{answer, by_hand, document, end, options, request, tokens};

fn tools(strict: bool, choice: ToolChoice) -> ToolUse {
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Ulm", "Bern"] } },
        "required": ["city"], "additionalProperties": false });
    let tool = Tool { name: "sun".into(), description: Some("of a city".into()), parameters, strict };
    ToolUse { tools: vec![tool], choice, parallel: false }
}

fn asked(assist_tokens: u32) -> AssistRequest {
    let call = PastCall { id: "c1".into(), name: "sun".into(), arguments: "{\"city\":\"Bern\"}".into() };
    let mut asked = AssistRequest {
        tools: Some(tools(true, ToolChoice::Required)),
        ..request("doc-qa", &document(12), assist_tokens)
    };
    asked.segments.extend([
        Segment { calls: vec![call], ..Segment::fixed(Role::Assistant, "") },
        Segment { call_id: Some("c1".into()), ..Segment::fixed(Role::Tool, "rain") },
    ]);
    asked
}

fn text(events: &[AssistEvent]) -> String {
    tokens(events).into_iter().map(|(_, text)| text).collect()
}

#[test]
fn the_first_tokens_are_those_of_the_call() {
    let (service, mut host) = by_hand(options());
    let whole = answer(&service, &mut host, &asked(200));
    assert_eq!(end(&whole).reason, EndReason::Stop, "the form ends the answer");
    let call = text(&whole);
    let inside = call.strip_prefix("<tool_call>\n").and_then(|rest| rest.strip_suffix("\n</tool_call>"));
    let parsed: Value = serde_json::from_str(inside.unwrap_or_else(|| panic!("{call:?}"))).unwrap();
    assert!(["Ulm", "Bern"].iter().any(|city| parsed["arguments"]["city"] == *city), "{call}");
    let ids = tokens(&whole);
    for l in [1, 7, ids.len() as u32 - 1] {
        let begun = answer(&service, &mut host, &asked(l));
        assert_eq!(end(&begun).reason, EndReason::Cap);
        assert_eq!(tokens(&begun), ids[..l as usize], "L {l}");
        let accepted = Some(text(&begun));
        let rest = answer(&service, &mut host, &AssistRequest { continue_from: accepted, ..asked(200) });
        assert_eq!(text(&begun) + &text(&rest), call, "the cloud goes on inside the call");
    }
    let wrong = AssistRequest { continue_from: Some("Hello".into()), ..asked(9) };
    assert!(service.assist(&wrong).unwrap_err().to_string().contains("schema"));
}

#[test]
fn tools_are_no_part_of_what_may_be_left_out() {
    let (service, mut host) = by_hand(options());
    let with = asked(2);
    let events = answer(&service, &mut host, &with);
    let mask =
        events.iter().find_map(|event| if let AssistEvent::Mask(mask) = event { Some(mask) } else { None });
    let kept = mask.expect("the document is refined").open(&SentenceMap::new(&with.segments)).unwrap();
    assert!(kept.contains(&false));
    let plain = AssistRequest { tools: None, ..asked(2) };
    let plain = end(&answer(&service, &mut host, &plain)).usage.prompt_tokens;
    assert!(end(&events).usage.prompt_tokens > plain + 50, "the prompt describes the tools");
}

#[test]
fn an_answer_has_the_format_that_is_asked_for() {
    let (service, mut host) = by_hand(options());
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 2] } }, "required": ["n"],
        "additionalProperties": false });
    let format = AnswerFormat::JsonSchema(schema);
    let asked = AssistRequest { format, ..request("doc-qa", &document(3), 60) };
    let text = text(&answer(&service, &mut host, &asked));
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|err| panic!("{text}: {err}"));
    assert!(value["n"] == 1 || value["n"] == 2, "{text}");
    let never = AssistRequest { format: AnswerFormat::JsonSchema(json!({ "enum": [] })), ..asked };
    assert!(service.assist(&never).is_err());
}

#[test]
fn scenes_say_that_tools_are_known() {
    let (service, _host) = by_hand(options());
    assert!(service.scenes().iter().all(|scene| scene.call_markup == Some(Markup::Tagged)));
}
