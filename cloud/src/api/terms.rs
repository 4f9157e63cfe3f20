//! What a request says in its headers: a deadline, and the caller's span.

use std::time::Duration;

use axum::http::HeaderMap;
use baton_protocol::ErrorCode;

use super::error::ApiError;
use crate::service::Terms;
use crate::trace::TraceParent;

/// Within how many milliseconds the first token must be sent.
pub(super) const DEADLINE: &str = "x-deadline-ms";
/// The caller's span, by W3C's Trace Context.
const TRACEPARENT: &str = "traceparent";
/// The longest deadline that is taken: an hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;

pub(super) fn terms(headers: &HeaderMap) -> Result<Terms, ApiError> {
    let trace = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(TraceParent::parse);
    let Some(value) = headers.get(DEADLINE) else { return Ok(Terms { trace, ..Terms::default() }) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match ms.filter(|ms| (1..=DEADLINE_MS_MAX).contains(ms)) {
        Some(ms) => Ok(Terms { deadline: Some(Duration::from_millis(ms)), trace, ..Terms::default() }),
        None => {
            let sent: String = String::from_utf8_lossy(value.as_bytes()).chars().take(40).collect();
            let message =
                format!("header `{DEADLINE}` is `{sent}`, must be 1 to {DEADLINE_MS_MAX} milliseconds");
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
    }
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
            let have = terms(&headers).ok().and_then(|terms| terms.deadline);
            assert_eq!(have, want.map(Duration::from_millis), "{value}");
        };
        check("1500", Some(1500));
        check(" 1 ", Some(1));
        for wrong in ["0", "-1", "1.5", "soon", "", "3600001", "99999999999999999999"] {
            check(wrong, None);
        }
        assert_eq!(terms(&HeaderMap::new()).unwrap(), Terms::default());
    }
}
