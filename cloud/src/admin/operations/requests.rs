//! Requests of one replica: which are shown, and how one is cancelled. The order is in the audit log before
//! it is carried out.

use super::AdminService;
use crate::access::Actor;
use crate::admin::problem::{Kind, Problem};
use crate::observe::requests::{KnownRequests, RequestQuery};
use crate::service::CloudService;

/// The most requests in one reply.
pub(crate) const REQUESTS_MAX: u32 = 500;
/// Requests in a reply if nobody says how many.
pub(crate) const REQUESTS_PAGE: u32 = 50;

/// What is asked for, as it was typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestFilter {
    pub(crate) state: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) scene: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl RequestFilter {
    /// Checks what was typed. An empty text filters nothing.
    pub(crate) fn check(self) -> Result<RequestQuery, Problem> {
        let given =
            |text: Option<String>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let ended = match given(self.state).as_deref() {
            None => None,
            Some("running") => Some(false),
            Some("ended") => Some(true),
            Some(_) => return Err(Problem::field("state", &"field `state` must be running or ended")),
        };
        let limit = self.limit.unwrap_or(REQUESTS_PAGE);
        if !(1..=REQUESTS_MAX).contains(&limit) {
            let why = format!("field `limit` is {limit}, must be 1 to {REQUESTS_MAX}");
            return Err(Problem::field("limit", &why));
        }
        Ok(RequestQuery {
            ended,
            id: given(self.id).unwrap_or_default(),
            tenant: given(self.tenant),
            scene: given(self.scene),
            model: given(self.model),
            limit: limit as usize,
        })
    }
}

impl AdminService {
    /// Cancels the running requests of this id; returns their number. Each ends with its next token at the
    /// latest.
    pub(crate) async fn cancel_request(
        &self,
        actor: &Actor,
        service: &CloudService,
        id: &str,
    ) -> Result<usize, Problem> {
        let ended = || Problem::new(Kind::Conflict, "the request has ended already");
        match service.request_known(id) {
            KnownRequests::Running(_) => {}
            KnownRequests::Ended => return Err(ended()),
            KnownRequests::Unknown => return Err(unknown_request()),
        }
        self.store.log_request(actor, "request.cancel", id).await?;
        match service.cancel_requests(id) {
            0 => Err(ended()),
            cancelled => Ok(cancelled),
        }
    }
}

/// Returns the problem of an id that this replica does not know.
pub(crate) fn unknown_request() -> Problem {
    let detail = "this replica knows no request of this id: another replica may, or it is no longer kept";
    Problem::new(Kind::NotFound, detail)
}
