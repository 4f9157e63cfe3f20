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
/// Header with a device's name for itself: a random text that is the same in each of its requests.
pub(super) const DEVICE: &str = "x-device-id";
/// Lengths of that name, in bytes.
const DEVICE_BYTES: std::ops::RangeInclusive<usize> = 8..=128;
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
        device: device(headers)?,
        asker: None,
        max_tokens: None,
    })
}

/// Reads the name that a device gives itself.
pub(super) fn device(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(DEVICE) else { return Ok(None) };
    let name = value.to_str().ok().filter(|name| {
        DEVICE_BYTES.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    });
    name.map(|name| Some(name.to_owned())).ok_or_else(|| {
        let (least, most) = (DEVICE_BYTES.start(), DEVICE_BYTES.end());
        let message = format!("header `{DEVICE}` must be {least} to {most} visible ASCII characters");
        ApiError::new(ErrorCode::InvalidRequest, message)
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
    fn a_device_has_a_name_of_bounded_length() {
        let check = |value: &str, want: bool| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(DEVICE),
                HeaderValue::from_str(value).unwrap(),
            )]);
            assert_eq!(device(&headers).ok().flatten().as_deref(), want.then_some(value), "{value}");
        };
        check("4f1c9a77", true);
        check(&"x".repeat(128), true);
        for wrong in ["", "short", "two words", &"x".repeat(129)] {
            check(wrong, false);
        }
        assert_eq!(device(&HeaderMap::new()).unwrap(), None);
    }

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
