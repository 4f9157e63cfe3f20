//! `POST /tokenize`: the token ids of a text or of a conversation, as vLLM's clients ask for them.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use baton_constrain::tools;
use baton_openai::{Capabilities, ErrorReply, FieldError, parse};
use baton_protocol::Segment;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::{ApiError, Dialect};
use super::{App, access, body};
use crate::access::Caller;
use crate::service::DEFAULT_MODEL;

/// What is to be tokenized: a text or messages.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizeBody {
    /// Name of the model, or `default`.
    model: Option<String>,
    /// A text, used as it is. Control tokens that are written in it are read as text.
    prompt: Option<String>,
    /// A conversation, laid out by the model's chat template up to the beginning of the answer.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Value>,
    /// No effect: a text gets no token for its beginning.
    #[serde(rename = "add_special_tokens")]
    _add_special_tokens: Option<bool>,
    /// Must not be false: conversations end at the beginning of the answer.
    add_generation_prompt: Option<bool>,
}

/// Token ids.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenizeReply {
    /// How many there are.
    count: usize,
    /// The most tokens of prompt and answer together.
    max_model_len: usize,
    /// The ids.
    tokens: Vec<u32>,
}

/// Tokenizes a text or a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "chat",
    request_body = TokenizeBody,
    responses(
        (status = 200, description = "the ids", body = TokenizeReply),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn tokenize(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<TokenizeReply>, ApiError> {
    let reply = ids(app, &caller, &headers, body).await;
    reply.map(Json).map_err(|err| err.told_in(Dialect::OpenAi))
}

async fn ids(app: App, caller: &Caller, headers: &HeaderMap, body: Body) -> Result<TokenizeReply, ApiError> {
    let permit = access::admit(&app, caller)?;
    let bytes = body::read(headers, body, &app, caller).await?;
    let (asked, held) = app.prepare(move || Ok(bytes.parse(read)?)).await?;
    let name = asked.model.clone().unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    let lease = app.service.hold(&name, None).await?;
    let service = app.service.clone();
    let tokenized = app.prepare(move || {
        let _until_done = (permit, held, lease);
        let (model, view) = (service.model_in_memory(&name)?, service.model_named(&name)?);
        let (tokenizer, template) = (model.tokenizer(), model.template());
        let tokens = match (asked.prompt, asked.messages) {
            (Some(text), None) => tokenizer.encode(&text),
            (None, Some(messages)) => {
                let chat = json!({ "model": DEFAULT_MODEL, "messages": messages }).to_string();
                let request = parse(chat.as_bytes(), &Capabilities::CLOUD)?;
                let messages = request.prompt.messages().iter().cloned();
                let segments: Vec<Segment> = messages.map(Segment::from).collect();
                let prompt = tools::prompt(tokenizer, template, &segments, &[]);
                prompt.map_err(crate::service::ServiceError::from)?.ids
            }
            _ => return Err(FieldError::whole("pass either `prompt` or `messages`").into()),
        };
        Ok(TokenizeReply { count: tokens.len(), max_model_len: view.context_tokens, tokens })
    });
    tokenized.await
}

fn read(json: &[u8]) -> Result<TokenizeBody, FieldError> {
    let body: TokenizeBody =
        serde_json::from_slice(json).map_err(|err| FieldError::whole(err.to_string()))?;
    if body.add_generation_prompt == Some(false) {
        return Err(FieldError::new("add_generation_prompt", "must not be false"));
    }
    Ok(body)
}
