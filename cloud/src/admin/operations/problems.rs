//! What is told if the store or a value of access fails.

use tracing::warn;

use crate::access::AccessError;
use crate::admin::problem::{Kind, Problem};
use crate::store::StoreError;

impl From<StoreError> for Problem {
    fn from(err: StoreError) -> Problem {
        if err.is_not_writable() {
            warn!(err = &err as &dyn std::error::Error, "the console cannot change the database");
            let detail = "the database cannot write, its disk may be full; nothing was changed";
            return Problem::new(Kind::Unavailable, detail).retry_after_s(5);
        }
        if err.is_unavailable() {
            warn!(err = &err as &dyn std::error::Error, "the console cannot reach the database");
            return Problem::new(Kind::Unavailable, "the database does not answer; nothing was changed")
                .retry_after_s(5);
        }
        match &err {
            StoreError::Unknown { .. } => Problem::new(Kind::NotFound, err.to_string()),
            StoreError::Conflict { expected: 0, what, id, .. } => {
                Problem::new(Kind::Stale, format!("{what} `{id}` exists already"))
            }
            StoreError::Conflict { what, id, expected, current } => Problem::new(
                Kind::Stale,
                format!("{what} `{id}` is at revision {current}, the change is based on {expected}"),
            ),
            StoreError::State { .. } => Problem::new(Kind::Conflict, err.to_string()),
            StoreError::Rollout(err) => Problem::new(Kind::Conflict, err.to_string()),
            StoreError::Scene(err) => Problem::of_scene(err),
            StoreError::Access(err) => Problem::from(err),
            StoreError::Experiment(err) => Problem::field(err.field(), err),
            _ => {
                warn!(err = &err as &dyn std::error::Error, "the console's store failed");
                Problem::new(
                    Kind::Internal,
                    "unexpected data or behaviour of the database; see the log of the service",
                )
            }
        }
    }
}

impl From<&AccessError> for Problem {
    fn from(err: &AccessError) -> Problem {
        let field = match err {
            AccessError::Name { what: "user", .. } => "name",
            AccessError::Name { .. } => "id",
            AccessError::Label { what, .. } | AccessError::Nul { what } => what,
            AccessError::Number { field, .. } => field,
            AccessError::Scope(_) | AccessError::NoScope => "scopes",
            AccessError::Role(_) => "role",
            AccessError::Password(_) => "password",
        };
        Problem::field(field, err)
    }
}
