//! Tests takeovers inside a call of a tool, with a real engine: the call is whole, and one writer's.

use super::real::{local, relay_guarded, script_of, text_of};
use super::*;
use crate::local::OnceForm;
use crate::local::tests::model;
use baton_constrain::Grammars;
use baton_constrain::tools::ToolForm;
use baton_generate::speculation::Speculation;
use baton_protocol::{AnswerFormat, Tool, ToolChoice, ToolUse};
use serde_json::{Value, json};

fn tools(choice: ToolChoice) -> ToolUse {
    let schema = json!({ "type": "object", "properties": { "city": { "enum": ["Ulm", "Bern"] } },
        "required": ["city"], "additionalProperties": false });
    let tool = Tool { name: "sun".into(), description: None, parameters: schema, strict: true };
    ToolUse { tools: vec![tool], choice, parallel: false }
}

/// Compiles the form anew: each answer takes its own.
fn form(tools: &ToolUse) -> baton_constrain::Constraint {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    let markup = ToolForm::of(model().template()).markup;
    baton_constrain::constraint(|| Ok(&grammars), markup, Some(tools), &AnswerFormat::Text, None)
        .unwrap()
        .unwrap()
}

fn asked(tools: &ToolUse) -> AnswerSpec {
    AnswerSpec {
        segments: Arc::from(vec![Segment::fixed(Role::User, "Is there sun in Ulm?")]),
        adapter: None,
        sampling: SamplingParams::default(),
        tokens_max: 120,
        shorten: false,
        tools: Some(Arc::new(tools.clone())),
        form: Some(OnceForm::new(form(tools))),
        own: None,
        whole: None,
        known_max: None,
        cites: None,
    }
}

/// Returns the ids of the device's own answer.
fn alone(tools: &ToolUse) -> Vec<u32> {
    let config = RelayConfig { mode: RelayMode::DeviceOnly, ..config() };
    let core = RelayCore::new(config, asked(tools), rules(&[]));
    let outcome = Sim::new(core, local(&Speculation::Off), Vec::new()).run();
    assert_eq!(outcome.ending, Ending::Stop);
    // The vocabulary is bytes, so the text has one encoding.
    tokenizer().encode(&outcome.answer)
}

/// Returns the arguments of an answer that is one call.
fn arguments(answer: &str) -> Value {
    let call = answer.strip_prefix("<tool_call>\n").and_then(|rest| rest.strip_suffix("\n</tool_call>"));
    let call: Value = serde_json::from_str(call.unwrap_or_else(|| panic!("no call: {answer:?}"))).unwrap();
    assert_eq!(call["name"], "sun");
    call["arguments"].clone()
}

#[test]
fn a_call_cut_anywhere_is_the_call_of_the_device_alone() {
    let tools = tools(ToolChoice::Required);
    let alone = alone(&tools);
    let whole = text_of(&alone);
    assert!(["Ulm", "Bern"].map(|city| json!({ "city": city })).contains(&arguments(&whole)), "{whole}");
    for l in 1..alone.len() {
        let (outcome, notes) = relay_guarded(asked(&tools), form(&tools), script_of(&alone, l, None));
        assert_eq!((outcome.answer.as_str(), &outcome.ending), (whole.as_str(), &Ending::Stop), "L {l}");
        assert_eq!(outcome.timeline.agreement, Some(1.0), "L {l}");
        assert!(notes.is_empty(), "L {l}: {notes:?}");
    }
}

#[test]
fn a_call_of_another_vocabulary_is_finished_under_the_same_form() {
    let tools = tools(ToolChoice::Required);
    let begun = "<tool_call>\n{\"name\": \"sun\", \"arguments\": {\"city\": \"Be";
    for n in 1..=begun.len() {
        let texts: Vec<String> = [&begun[..n / 2], &begun[n / 2..n]].map(str::to_owned).to_vec();
        let script = script_of(&[7, 7], 2, Some(&texts));
        let (outcome, notes) = relay_guarded(asked(&tools), form(&tools), script);
        assert!(outcome.answer.starts_with(&begun[..n]), "{n}: {:?}", outcome.answer);
        arguments(&outcome.answer);
        assert!(notes.is_empty(), "{n}: {notes:?}");
    }
    let whole = arguments(
        &relay_guarded(asked(&tools), form(&tools), script_of(&[7], 1, Some(&[begun.to_owned()]))).0.answer,
    );
    assert_eq!(whole, json!({ "city": "Bern" }));
}

#[test]
fn what_does_not_fit_the_form_is_cut_and_never_shown() {
    let tools = tools(ToolChoice::Required);
    let alone = alone(&tools);
    let whole = text_of(&alone);
    for fits in 0..alone.len() {
        let mut cloud = alone[..fits].to_vec();
        let wrong = if alone[fits] == letter('%') { '#' } else { '%' };
        cloud.extend([letter(wrong); 3]);
        let (outcome, notes) =
            relay_guarded(asked(&tools), form(&tools), script_of(&cloud, cloud.len(), None));
        assert_eq!(outcome.answer, whole, "{fits} tokens fit");
        assert_eq!(notes, ["cloud_form"], "{fits} tokens fit");
    }
}

#[test]
fn a_cloud_that_ends_inside_a_call_does_not_end_it() {
    let tools = tools(ToolChoice::Required);
    let alone = alone(&tools);
    for l in [1, 5, alone.len() / 2, alone.len() - 1] {
        let mut script = script_of(&alone, l, None);
        let (at, _) = script.pop().unwrap();
        script.push((at, end_event(EndReason::Stop, l)));
        let (outcome, _) = relay_guarded(asked(&tools), form(&tools), script);
        assert_eq!(outcome.answer, text_of(&alone), "L {l}");
    }
    let (outcome, notes) = relay_guarded(asked(&tools), form(&tools), {
        let mut script = script_of(&alone, alone.len(), None);
        let (at, _) = script.pop().unwrap();
        script.push((at, end_event(EndReason::Stop, alone.len())));
        script
    });
    assert_eq!((outcome.answer, outcome.ending, notes), (text_of(&alone), Ending::Stop, vec![]));
}
