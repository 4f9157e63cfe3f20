//! Requests of one replica, as the console shows them.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::observe::requests::{ENDED_MAX, RequestEntry, RequestsFound};

/// A request that runs on this replica or has ended.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RequestView {
    /// Its id: `x-request-id`, as in the log.
    pub id: String,
    /// Its tenant; empty if it has none.
    pub tenant: String,
    /// Its scene; null for the chat API.
    pub scene: Option<String>,
    /// The model that answers.
    pub model: String,
    /// The engine elsewhere that writes the answer; null if there is none, or none has begun.
    pub engine: Option<String>,
    /// Experiment and arm, as `EXPERIMENT/ARM`; null if it takes part in none.
    pub arm: Option<String>,
    /// When it arrived, in milliseconds since 1970.
    pub arrived_ms: i64,
    /// Milliseconds since its arrival, or from its arrival to its end.
    pub elapsed_ms: f64,
    /// `waiting`, `prefill`, `writing` or `ended`.
    pub state: String,
    /// How it ended: `stop`, `cap`, `cancelled`, `failed`, `expired` or `stopped`; null while it runs.
    pub outcome: Option<String>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// The most tokens that the cloud writes: L of an assist request.
    pub max_tokens: usize,
    /// Tokens written so far.
    pub tokens: usize,
    /// Milliseconds from arrival to slot; null if it has none yet.
    pub queue_ms: Option<f64>,
    /// Milliseconds from slot to first token; null if there is none yet.
    pub prefill_ms: Option<f64>,
    /// Milliseconds from first token to end; null before the end, and if there was no token.
    pub decode_ms: Option<f64>,
}

impl From<RequestEntry> for RequestView {
    fn from(entry: RequestEntry) -> RequestView {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        RequestView {
            id: entry.id,
            tenant: entry.tenant,
            scene: entry.scene,
            model: entry.model,
            engine: entry.engine,
            arm: entry.arm,
            arrived_ms: entry.arrived_ms,
            elapsed_ms: ms(entry.elapsed),
            state: entry.state.as_str().to_owned(),
            outcome: entry.outcome.map(str::to_owned),
            prompt_tokens: entry.prompt_tokens,
            max_tokens: entry.max_tokens,
            tokens: entry.tokens,
            queue_ms: entry.queue.map(ms),
            prefill_ms: entry.prefill.map(ms),
            decode_ms: entry.decode.map(ms),
        }
    }
}

/// Requests of the replica that answers, and of no other one.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RequestsView {
    /// Those that run come first; of each kind the newest comes first.
    pub requests: Vec<RequestView>,
    /// Whether there are more than were asked for.
    pub has_more: bool,
    /// How many run on this replica, whatever was asked for.
    pub running: usize,
    /// How many ended ones this replica keeps, whatever was asked for.
    pub ended: usize,
    /// The most ended ones that it keeps.
    pub ended_max: usize,
}

impl From<RequestsFound> for RequestsView {
    fn from(found: RequestsFound) -> RequestsView {
        RequestsView {
            requests: found.requests.into_iter().map(RequestView::from).collect(),
            has_more: found.has_more,
            running: found.running,
            ended: found.ended,
            ended_max: ENDED_MAX,
        }
    }
}
