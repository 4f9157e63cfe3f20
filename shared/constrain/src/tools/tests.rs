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

fn conversation() -> Vec<ChatMessage> {
    let call = PastCall { id: "c1".into(), name: "weather".into(), arguments: "{\"city\":\"Ulm\"}".into() };
    vec![
        ChatMessage::new(Role::System, "Be brief."),
        ChatMessage::new(Role::User, "Sun?"),
        ChatMessage { calls: vec![call], ..ChatMessage::new(Role::Assistant, "") },
        ChatMessage { call_id: Some("c1".into()), ..ChatMessage::new(Role::Tool, "rain") },
    ]
}

#[test]
fn templates_without_tools_are_told_in_text() {
    let form = ToolForm::of(&ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap());
    assert_eq!(form, ToolForm { markup: Markup::Tagged, by_template: false });
    let (turns, tools) = form.lay_out(&conversation(), &[weather()]);
    assert!(tools.is_empty() && turns.iter().all(|turn| turn.fields.is_empty()));
    assert!(turns[0].text.starts_with("Be brief.\n\nYou may call functions."), "{}", turns[0].text);
    let definition = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"of a city\", \
        \"parameters\": {\"type\": \"object\"}}}";
    assert!(turns[0].text.ends_with(definition), "{}", turns[0].text);
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";
    assert_eq!(turns[2], Turn::new("assistant", call));
    assert_eq!(turns[3], Turn::new("user", "<tool_response>\nrain\n</tool_response>"));
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
    let (turns, tools) = form.lay_out(&conversation(), &[weather()]);
    assert_eq!(tools[0]["function"]["description"], "of a city");
    let call = &turns[2].fields["tool_calls"][0];
    assert_eq!((&call["id"], &call["function"]["arguments"]), (&json!("c1"), &json!({ "city": "Ulm" })));
    assert_eq!(turns[3].fields["tool_call_id"], "c1");
    assert_eq!(arguments("not json"), json!("not json"));
}
