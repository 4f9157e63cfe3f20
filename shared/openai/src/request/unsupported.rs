//! Fields that are not supported: those whose loss would give a wrong answer are refused, others are taken
//! and named.
//!
//! Always: a value that asks for nothing is accepted.

use serde_json::{Map, Value};

use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::wire::{ChatCompletionRequest, ToolChoiceBody};

/// Beginning of every refusal that is about tools, also of messages that use tools.
pub(crate) const NO_TOOLS: &str = "this service does not support tools";

const TOP_LOGPROBS_MAX: u64 = 20;

/// Refuses fields that this program does not offer, then fields that neither program supports. Takes away and
/// names what can be missing without harm.
pub(super) fn settle(
    wire: &mut ChatCompletionRequest,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<(), FieldError> {
    take_away(wire, can, ignored);
    refuse_not_offered(wire, can)?;
    refuse_never_offered(wire)
}

/// Takes away and names wishes that cannot make the answer wrong.
fn take_away(wire: &mut ChatCompletionRequest, can: &Capabilities, ignored: &mut Ignored) {
    for (name, penalty) in
        [("frequency_penalty", &mut wire.frequency_penalty), ("presence_penalty", &mut wire.presence_penalty)]
    {
        if !can.penalties && penalty.take().is_some_and(|value| value != 0.0) {
            ignored.add(name);
        }
    }
    let top_logprobs = wire.top_logprobs.filter(|&top| top > 0);
    if !can.logprobs && (wire.logprobs.take() == Some(true) || top_logprobs.is_some()) {
        ignored.add("logprobs");
        wire.top_logprobs = None;
    }
    if wire.logprobs != Some(true) && wire.top_logprobs.take().is_some_and(|top| top > 0) {
        ignored.add("top_logprobs");
    }
    if !can.truncation && wire.truncation.take_if(|word| word == "auto").is_some() {
        ignored.add("truncation");
    }
    if wire.store == Some(true) {
        ignored.add("store");
    }
    if wire.stream != Some(true) && wire.stream_options.take().is_some() {
        ignored.add("stream_options");
    }
}

/// Each row of the table: whether the program offers the field, its name, whether it asks for nothing, the
/// reason to refuse it, and what to do instead.
fn refuse_not_offered(wire: &ChatCompletionRequest, can: &Capabilities) -> Result<(), FieldError> {
    let tools = wire.tools.as_ref().is_none_or(Vec::is_empty);
    let choice = match &wire.tool_choice {
        None => true,
        Some(ToolChoiceBody::Word(word)) => matches!(word.as_str(), "none" | "auto"),
        Some(ToolChoiceBody::Object(choice)) => matches!(choice.kind.as_str(), "none" | "auto"),
    };
    let format = wire.response_format.as_ref().map(|format| format.kind.as_str());
    let text = !matches!(format, Some("json_object" | "json_schema"));
    let formats = "this service cannot hold an answer to JSON";
    let scenes = "this service does not assist by scenes";
    let rules = [
        (can.tools, "tools", tools, NO_TOOLS, "leave it empty"),
        (can.tools, "tool_choice", choice, NO_TOOLS, "leave it out"),
        (can.formats, "response_format", text, formats, "leave it at `text`"),
        (can.baton, "baton", wire.baton.is_none(), scenes, "leave it out"),
    ];
    match rules.into_iter().find(|(offered, _, nothing, ..)| !offered && !nothing) {
        Some((_, field, _, what, instead)) => Err(FieldError::new(field, format!("{what}; {instead}"))),
        None => Ok(()),
    }
}

fn refuse_never_offered(wire: &ChatCompletionRequest) -> Result<(), FieldError> {
    let is_free =
        |value: &Option<Value>| value.as_ref().is_none_or(|value| value == "none" || value == "auto");
    let only_text = wire.modalities.as_ref().is_none_or(|kinds| kinds.iter().all(|kind| kind == "text"));
    let truncation = wire.truncation.as_deref().is_none_or(|word| matches!(word, "auto" | "disabled"));
    let top = wire.top_logprobs.unwrap_or(0);
    let cites_nothing = wire.citations != Some(true);
    let continues_nothing = wire.continue_final_message != Some(true);
    let no_tools = wire.tools.as_ref().is_none_or(Vec::is_empty);
    let rules = [
        ("n", wire.n.is_none_or(|n| n == 1), "only 1 is supported"),
        ("functions", wire.functions.as_ref().is_none_or(Vec::is_empty), "was replaced by `tools`"),
        ("function_call", is_free(&wire.function_call), "was replaced by `tool_choice`"),
        ("top_logprobs", top <= TOP_LOGPROBS_MAX, "must be 0 to 20"),
        ("logit_bias", wire.logit_bias.as_ref().is_none_or(Map::is_empty), "biases are not supported"),
        ("modalities", only_text, "only `text` is supported"),
        ("truncation", truncation, "must be `auto` or `disabled`"),
        ("continue_final_message", continues_nothing || wire.baton.is_none(), "not with `baton`"),
        ("citations", cites_nothing || continues_nothing, "not with `continue_final_message`"),
        ("citations", cites_nothing || wire.baton.is_none(), "not with `baton`"),
        ("citations", cites_nothing || no_tools, "not with `tools`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((field, _, message)) => Err(FieldError::new(field, message)),
        None => Ok(()),
    }
}
