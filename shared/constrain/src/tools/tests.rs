//! Layouts of tools for templates that know them and for those that do not.

use baton_engine::template::ChatTemplate;

use super::*;

fn weather() -> Tool {
    Tool {
        name: "weather".into(),
        description: Some("of a city".into()),
        parameters: json!({ "type": "object" }),
        strict: false,
    }
}

fn conversation() -> Vec<Segment> {
    let call = PastCall { id: "c1".into(), name: "weather".into(), arguments: "{\"city\":\"Ulm\"}".into() };
    vec![
        Segment::fixed(Role::System, "Be brief."),
        Segment::fixed(Role::User, "Sun?"),
        Segment { calls: vec![call], ..Segment::fixed(Role::Assistant, "") },
        Segment { call_id: Some("c1".into()), ..Segment::fixed(Role::Tool, "rain") },
    ]
}

#[test]
fn templates_without_tools_are_told_in_text() {
    let form = ToolForm::of(&ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap());
    assert_eq!(form, ToolForm { markup: Markup::Tagged, by_template: false });
    let (turns, tools) = form.lay_out(&conversation(), &[weather()]);
    assert!(tools.is_empty() && turns.iter().all(|turn| turn.fields.is_empty()));
    let text = |turn: &Turn| turn.texts.iter().map(|part| part.text.as_str()).collect::<String>();
    assert!(text(&turns[0]).starts_with("Be brief.\n\nYou may call functions."), "{}", text(&turns[0]));
    let definition = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"of a city\", \
        \"parameters\": {\"type\": \"object\"}}}";
    assert!(text(&turns[0]).ends_with(definition), "{}", text(&turns[0]));
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";
    assert_eq!((turns[2].role.as_str(), text(&turns[2]).as_str()), ("assistant", call));
    let result = "<tool_response>\nrain\n</tool_response>";
    assert_eq!((turns[3].role.as_str(), text(&turns[3]).as_str()), ("user", result));
    let segments = turns.iter().flat_map(|turn| &turn.texts).filter(|part| part.is_segment);
    assert!(segments.map(|part| &part.text).eq(conversation().iter().map(|segment| &segment.text)));
    let (turns, _) = form.lay_out(&conversation()[1..2], &[weather()]);
    assert_eq!((turns.len(), turns[0].role.as_str()), (2, "system"));
}

#[test]
fn templates_with_tools_see_what_they_expect() {
    let source = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}";
    let form = ToolForm::of(&ChatTemplate::new(source, "", "").unwrap());
    assert_eq!(form, ToolForm { markup: Markup::Tagged, by_template: true });
    let llama = "{% if tools %}ipython{% endif %}";
    assert_eq!(ToolForm::of(&ChatTemplate::new(llama, "", "").unwrap()).markup, Markup::Bare);
    // Qwen3-Coder's calls cannot be read, so it is told of our own form.
    let coder = "{% if tools %}<tool_call><function=f>{% endif %}";
    assert!(!ToolForm::of(&ChatTemplate::new(coder, "", "").unwrap()).by_template);
    let (turns, tools) = form.lay_out(&conversation(), &[weather()]);
    assert_eq!(tools[0]["function"]["description"], "of a city");
    let call = &turns[2].fields["tool_calls"][0];
    assert_eq!((&call["id"], &call["function"]["arguments"]), (&json!("c1"), &json!({ "city": "Ulm" })));
    assert_eq!(turns[3].fields["tool_call_id"], "c1");
    assert_eq!(arguments("not json"), json!("not json"));
}
