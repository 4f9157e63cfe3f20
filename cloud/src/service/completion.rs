//! Turns a chat or text completion into a job: the cloud writes the whole answer, without refinement.

use std::time::{Duration, Instant};

use baton_engine::PrefixScope;
use baton_engine::prompt::{assemble_with_tools, verbatim};
use baton_engine::tokenizer::TokenId;
use baton_openai::{AnswerFormat, ChatMessage, Penalties, Prompt, Tool, ToolUse};
use baton_protocol::{Sampling, Segment};
use serde_json::json;

use crate::learn::planning::Planned;
use crate::scene::{Scene, SceneSettings};
use crate::service::assist::{Draft, Extras, assembled, check_text, first_event, room};
use crate::service::constrain::{Constraint, ConstraintError, Grammar};
use crate::service::logprobs::Logprobs;
use crate::service::reader::{MaskSource, Prepared};
use crate::service::stream::AssistStream;
use crate::service::tools::{self, ToolForm};
use crate::service::{Served, ServiceError, Terms};

/// How long to search for the tool whose schema cannot be followed. After that, the error names no tool.
const BLAME_MAX: Duration = Duration::from_millis(200);

/// A checked chat or text completion.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Name of the model, or `default`.
    pub model: String,
    /// The messages, or the text to continue; nothing of it is refined.
    pub prompt: Prompt,
    /// How the answer is sampled, and its stop strings.
    pub sampling: Sampling,
    /// Penalties for tokens that the answer already contains.
    pub penalties: Penalties,
    /// The most tokens of the answer, or `None` for as many as fit into the context.
    pub max_tokens: Option<usize>,
    /// The form that the answer must have.
    pub format: AnswerFormat,
    /// The tools that the answer may call, if any.
    pub tools: Option<ToolUse>,
    /// Receives the log probabilities of the answer's tokens, if they were requested.
    pub logprobs: Option<Logprobs>,
}

impl CompletionRequest {
    /// Makes a request for a greedy answer to these messages, of any form and length.
    pub fn new(model: impl Into<String>, messages: Vec<ChatMessage>) -> CompletionRequest {
        CompletionRequest {
            model: model.into(),
            prompt: Prompt::Chat(messages),
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            max_tokens: None,
            format: AnswerFormat::Text,
            tools: None,
            logprobs: None,
        }
    }

    /// Returns all texts of the prompt, except the schemas of tools.
    fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        let text = match &self.prompt {
            Prompt::Chat(_) => None,
            Prompt::Text { text, .. } => Some(text.as_str()),
        };
        let messages = self.prompt.messages().iter();
        let said = messages.clone().map(|message| message.text.as_str());
        let called = messages
            .flat_map(|message| &message.calls)
            .flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
        let tools = self.tools.iter().flat_map(|tools| &tools.tools);
        let described =
            tools.flat_map(|tool| [Some(tool.name.as_str()), tool.description.as_deref()]).flatten();
        text.into_iter().chain(said).chain(called).chain(described)
    }
}

/// Makes the request and the stream of its answer.
pub(crate) fn prepare(
    served: &Served,
    request: &CompletionRequest,
    terms: &Terms,
) -> Result<(Prepared, AssistStream), ServiceError> {
    request.sampling.check()?;
    let tools = request.tools.iter().flat_map(|tools| &tools.tools);
    let schemas: Vec<String> = tools.map(|tool| tool.parameters.to_string()).collect();
    check_text(served, request.texts().chain(schemas.iter().map(String::as_str)))?;
    let constraint = constraint(served, request)?;
    let prompt = prompt(served, request)?;
    let room = room(served, prompt.len())?;
    let max_tokens = request.max_tokens.map_or(room, |max| max.min(room));
    let planned = Planned {
        ratio: 1.0,
        assist_tokens: max_tokens as u32,
        bound_by: "fixed",
        assist_floor: max_tokens as u32,
    };
    // The client gets chunks made from the events; they do not show the scene or the pace.
    let scene = Scene { id: String::new(), version: 0, settings: SceneSettings::with_system("") };
    let first = first_event(served, &scene, &planned);
    let draft = Draft {
        prompt,
        // Every part of a chat may be private to its tenant, so nothing is shared.
        prefixes: PrefixScope { owner: terms.owner, shared_tokens: 0 },
        adapter: None,
        continued: Vec::new(),
        window: None,
        mask: MaskSource::None,
        first,
        max_tokens,
        ends_at_cap: true,
        trace: terms.trace,
        scene: None,
        extras: Extras {
            penalties: request.penalties,
            constraint,
            logprobs: request.logprobs.clone(),
            verbatim: matches!(request.prompt, Prompt::Text { .. }),
        },
    };
    draft.prepared(served, &request.sampling)
}

fn prompt(served: &Served, request: &CompletionRequest) -> Result<Vec<TokenId>, ServiceError> {
    let messages = match &request.prompt {
        Prompt::Chat(messages) => messages,
        Prompt::Text { text, .. } => return Ok(verbatim(served.model.tokenizer(), text)?),
    };
    let tools = request.tools.as_ref().map(|tools| tools.tools.as_slice()).unwrap_or_default();
    if tools.is_empty() && !messages.iter().any(ChatMessage::is_about_tools) {
        let segment = |message: &ChatMessage| Segment::fixed(message.role, message.text.as_str());
        let segments: Vec<Segment> = messages.iter().map(segment).collect();
        return Ok(assembled(served, &segments)?.ids);
    }
    let template = served.model.template();
    let (turns, tools) = ToolForm::of(template).lay_out(messages, tools);
    Ok(assemble_with_tools(served.model.tokenizer(), template, &turns, &tools)?)
}

/// Compiles the form that the answer must have; returns `None` if it may be any text.
fn constraint(served: &Served, request: &CompletionRequest) -> Result<Option<Constraint>, ServiceError> {
    let compile = |field: &str, grammar: &Grammar| {
        let compiled = served.grammars().and_then(|grammars| grammars.compile(grammar));
        compiled.map_err(|err| ServiceError::Constraint { field: field.to_owned(), err })
    };
    if let Some(tools) = &request.tools {
        return tool_constraint(served, tools, compile);
    }
    match &request.format {
        AnswerFormat::Text => Ok(None),
        AnswerFormat::JsonObject => {
            compile("response_format", &Grammar::Json(json!({ "type": "object" }))).map(Some)
        }
        AnswerFormat::JsonSchema(schema) => {
            compile("response_format.json_schema.schema", &Grammar::Json(schema.clone())).map(Some)
        }
    }
}

fn tool_constraint(
    served: &Served,
    tools: &ToolUse,
    compile: impl Fn(&str, &Grammar) -> Result<Constraint, ServiceError>,
) -> Result<Option<Constraint>, ServiceError> {
    let markup = ToolForm::of(served.model.template()).markup;
    let grammar = tools::grammar(markup, tools);
    let grammar = grammar.map_err(|err| ServiceError::Constraint { field: "tools".to_owned(), err })?;
    let Some(grammar) = grammar else { return Ok(None) };
    let whole = compile("tools", &grammar);
    if matches!(&whole, Err(ServiceError::Constraint { err, .. }) if !matches!(err, ConstraintError::TooLong { .. }))
    {
        let begun = Instant::now();
        blame(&tools.tools, || begun.elapsed() >= BLAME_MAX, compile)?;
    }
    whole.map(Some)
}

/// Compiles each schema alone to find the wrong one, until the time is over. Fails with the error of that
/// schema.
fn blame<T>(
    tools: &[Tool],
    over: impl Fn() -> bool,
    compile: impl Fn(&str, &Grammar) -> Result<T, ServiceError>,
) -> Result<(), ServiceError> {
    for (at, tool) in tools.iter().enumerate() {
        if over() {
            break;
        }
        let field = format!("tools[{at}].function.parameters");
        compile(&field, &Grammar::Json(tool.parameters.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns how many of 128 schemas are compiled, and whether the wrong one, the last, is found.
    fn blamed(over_after: usize) -> (usize, bool) {
        let tool = |at: usize| Tool {
            name: format!("t{at}"),
            description: None,
            parameters: json!({ "type": "object", "title": at }),
            strict: true,
        };
        let tools: Vec<Tool> = (0..128).map(tool).collect();
        let compiled = Cell::new(0);
        let done = blame(
            &tools,
            || compiled.get() >= over_after,
            |field, _| {
                compiled.set(compiled.get() + 1);
                if field != "tools[127].function.parameters" {
                    return Ok(());
                }
                Err(ServiceError::Constraint { field: field.to_owned(), err: ConstraintError::NotASchema })
            },
        );
        (compiled.get(), done.is_err())
    }

    #[test]
    fn the_tool_to_blame_is_looked_for_within_a_time() {
        assert_eq!(blamed(usize::MAX), (128, true));
        assert_eq!(blamed(3), (3, false));
    }
}
