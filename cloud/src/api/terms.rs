//! Reads the terms of a request from its headers: tenant, deadline, and the caller's span.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use baton_protocol::ErrorCode;

use super::error::ApiError;
use crate::access::Caller;
use crate::http::request_id::request_id;
use crate::observe::trace::TraceParent;
use crate::service::{Lease, ServiceError, Terms};

/// Header with the deadline: the milliseconds within which the first token must be sent.
pub(super) const DEADLINE: &str = "x-deadline-ms";
/// Header with the caller's span, as in W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
/// The longest deadline that is accepted: an hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;

pub(super) fn terms(headers: &HeaderMap, caller: &Caller) -> Result<Terms, ApiError> {
    let trace = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(TraceParent::parse);
    Ok(Terms {
        request: request_id(headers).to_owned(),
        tenant: caller.tenant.id.clone(),
        deadline: deadline(headers)?,
        trace,
        share: caller.share(),
        owner: caller.owner(),
        max_tokens: None,
    })
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match ms.filter(|ms| (1..=DEADLINE_MS_MAX).contains(ms)) {
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => {
            let sent: String = String::from_utf8_lossy(value.as_bytes()).chars().take(40).collect();
            let message =
                format!("header `{DEADLINE}` is `{sent}`, must be 1 to {DEADLINE_MS_MAX} milliseconds");
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
    }
}

/// Waits for a request's model by `hold`, which gets the deadline. The time it takes is taken off the
/// deadline.
pub(super) async fn on_time<F>(
    terms: &mut Terms,
    hold: impl FnOnce(Option<Duration>) -> F,
) -> Result<Lease, ServiceError>
where
    F: Future<Output = Result<Lease, ServiceError>>,
{
    let started = Instant::now();
    let lease = hold(terms.deadline).await?;
    terms.deadline = terms.deadline.map(|deadline| deadline.saturating_sub(started.elapsed()));
    Ok(lease)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_deadline_is_a_number_of_milliseconds() {
        let check = |value: &'static str, want: Option<u64>| {
            let mut headers = HeaderMap::new();
            headers.insert(DEADLINE, HeaderValue::from_static(value));
            let have = deadline(&headers).ok().flatten();
            assert_eq!(have, want.map(Duration::from_millis), "{value}");
        };
        check("1500", Some(1500));
        check(" 1 ", Some(1));
        for wrong in ["0", "-1", "1.5", "soon", "", "3600001", "99999999999999999999"] {
            check(wrong, None);
        }
        assert_eq!(deadline(&HeaderMap::new()).unwrap(), None);
    }
}
