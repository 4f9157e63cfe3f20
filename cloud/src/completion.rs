//! A chat completion as the service sees it: L = all, no refinement.

use baton_protocol::{Sampling, Segment};

use crate::assist::{Draft, assembled, first_event, room};
use crate::job::{Job, MaskSource};
use crate::planning::Planned;
use crate::scene::{Scene, SceneSettings};
use crate::service::{Inner, ServiceError};
use crate::stream::AssistStream;

/// A checked chat completion.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// Name of the model, or `default`.
    pub model: String,
    /// The messages; none of them is refined.
    pub messages: Vec<Segment>,
    /// How the answer is sampled, and where it ends.
    pub sampling: Sampling,
    /// The most tokens it may have; none: all that fit into the context.
    pub max_tokens: Option<usize>,
}

/// Makes everything that the answer needs.
pub(crate) fn prepare(
    inner: &Inner,
    request: &CompletionRequest,
) -> Result<(Job, AssistStream), ServiceError> {
    inner.check_model(&request.model)?;
    request.sampling.check()?;
    let prompt = assembled(inner, &request.messages)?;
    let room = room(inner, prompt.ids.len())?;
    let max_tokens = request.max_tokens.map_or(room, |max| max.min(room));
    let planned = Planned {
        ratio: 1.0,
        assist_tokens: max_tokens as u32,
        bound_by: "fixed",
        assist_floor: max_tokens as u32,
    };
    // The events of a completion are translated before anybody sees them; scene and pace do not show.
    let scene = Scene { id: String::new(), version: 0, settings: SceneSettings::with_system("") };
    let first = first_event(inner, &scene, &planned);
    let draft = Draft {
        prompt: prompt.ids,
        continued: Vec::new(),
        window: None,
        mask: MaskSource::None,
        first,
        max_tokens,
        ends_at_cap: true,
    };
    draft.job(inner, &request.sampling)
}
