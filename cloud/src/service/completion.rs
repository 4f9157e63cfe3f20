//! Turns a chat or text completion into a job: the cloud writes the whole answer, without refinement.

use baton_constrain::tools;
use baton_engine::PrefixScope;
use baton_engine::prompt::verbatim;
use baton_engine::tokenizer::TokenId;
use baton_generate::evidence::Evidence;
use baton_generate::thinking::begun_answer;
use baton_openai::request::NO_INFILL;
use baton_openai::{AnswerFormat, ChatMessage, Penalties, Prompt, ToolUse};
use baton_protocol::{Sampling, Segment};

use crate::learn::planning::Planned;
use crate::scene::{Scene, SceneSettings};
use crate::service::assist::{
    AskParts, Draft, Extras, check_text, check_upstream, constraint, first_event, opened_thought, room,
};
use crate::service::citations::Citations;
use crate::service::logprobs::Logprobs;
use crate::service::reader::{MaskSource, Prepared};
use crate::service::stream::AssistStream;
use crate::service::upstream::AskPrompt;
use crate::service::{Served, ServiceError, Terms};

/// A checked chat or text completion.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Name of the model, or `default`.
    pub model: String,
    /// The messages, or the text to continue; nothing of it is refined.
    pub prompt: Prompt,
    /// The beginning of the answer, which the client wrote.
    pub begun: Option<String>,
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
    /// Receives the sentences that the answer stands on, if they were requested.
    pub citations: Option<Citations>,
}

impl CompletionRequest {
    /// Makes a request for a greedy answer to these messages, of any form and length.
    pub fn new(model: impl Into<String>, messages: Vec<ChatMessage>) -> CompletionRequest {
        CompletionRequest {
            model: model.into(),
            prompt: Prompt::Chat(messages),
            begun: None,
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            max_tokens: None,
            format: AnswerFormat::Text,
            tools: None,
            logprobs: None,
            citations: None,
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
        text.into_iter().chain(said).chain(called).chain(described).chain(self.begun.as_deref())
    }
}

/// Returns the request with the text that follows laid out by the model's tokens for it.
fn filled_in(served: &Served, request: &CompletionRequest) -> Result<CompletionRequest, ServiceError> {
    let mut filled = request.clone();
    match filled.prompt.fill_in(|text| served.model.tokenizer().is_token(text)) {
        true => Ok(filled),
        false => Err(ServiceError::EngineCannot { field: "suffix", message: NO_INFILL }),
    }
}

/// Makes the request and the stream of its answer.
pub(crate) fn prepare(
    served: &Served,
    request: &CompletionRequest,
    terms: &Terms,
) -> Result<(Prepared, AssistStream), ServiceError> {
    if let Prompt::Text { suffix: Some(_), .. } = &request.prompt {
        return prepare(served, &filled_in(served, request)?, terms);
    }
    request.sampling.check()?;
    check_upstream(served, request.tools.as_ref(), request.logprobs.is_some())?;
    check_engine(served, request)?;
    let tools = request.tools.iter().flat_map(|tools| &tools.tools);
    let schemas: Vec<String> = tools.map(|tool| tool.parameters.to_string()).collect();
    check_text(served, request.texts().chain(schemas.iter().map(String::as_str)))?;
    let (prompt, evidence) = prompt(served, request)?;
    let room = room(served, prompt.len())?;
    let max_tokens = request.max_tokens.map_or(room, |max| max.min(room));
    let is_chat = matches!(request.prompt, Prompt::Chat(_));
    let thought_tokens = opened_thought(served, max_tokens).filter(|_| is_chat && request.begun.is_none());
    let constraint = constraint(served, request.tools.as_ref(), &request.format, thought_tokens)?;
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
        upstream: served.upstream.as_ref().map(|_| ask_parts(request)),
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
            citations: request.citations.clone(),
            evidence,
            offer: None,
            verbatim: matches!(request.prompt, Prompt::Text { .. }),
        },
    };
    draft.prepared(served, &request.sampling)
}

/// Refuses what no engine elsewhere is asked for.
fn check_engine(served: &Served, request: &CompletionRequest) -> Result<(), ServiceError> {
    let rules = [
        (
            "citations",
            request.citations.is_none(),
            "the engine of this model does not tell what it attends to",
        ),
        (
            "continue_final_message",
            request.begun.is_none(),
            "the engine of this model does not continue a message",
        ),
    ];
    match rules.into_iter().find(|(_, fine, _)| served.upstream.is_some() && !fine) {
        Some((field, _, message)) => Err(ServiceError::EngineCannot { field, message }),
        None => Ok(()),
    }
}

fn ask_parts(request: &CompletionRequest) -> AskParts {
    let messages = request.prompt.messages();
    let prompt = match &request.prompt {
        Prompt::Text { text, .. } => AskPrompt::Text(text.clone()),
        Prompt::Chat(_) => {
            AskPrompt::of_segments(&messages.iter().cloned().map(Segment::from).collect::<Vec<_>>(), 0)
        }
    };
    let has_tools = request.tools.is_some() || messages.iter().any(ChatMessage::is_about_tools);
    AskParts { prompt, format: request.format.clone(), has_tools }
}

/// Returns the prompt's ids, and what records the answer's citations, if there are any.
fn prompt(
    served: &Served,
    request: &CompletionRequest,
) -> Result<(Vec<TokenId>, Option<Evidence>), ServiceError> {
    let messages = match &request.prompt {
        Prompt::Chat(messages) => messages,
        Prompt::Text { text, .. } => return Ok((verbatim(served.model.tokenizer(), text)?, None)),
    };
    let offered = request.tools.as_ref().map(|tools| tools.tools.as_slice()).unwrap_or_default();
    let segments: Vec<Segment> = messages.iter().cloned().map(Segment::from).collect();
    let tokenizer = served.model.tokenizer();
    let template = served.model.template();
    let mut prompt = tools::prompt(tokenizer, template, &segments, offered)?;
    if let Some(begun) = &request.begun {
        prompt.ids.extend(begun_answer(tokenizer, template, begun));
    }
    let evidence = request
        .citations
        .as_ref()
        .map(|citations| citations.record(served.model.config(), segments, &prompt));
    Ok((prompt.ids, evidence))
}
