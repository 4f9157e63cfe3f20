//! `POST /v1/feedback`: what a person or a device says about an answer of an experiment.
//!
//! Never: keeps the request's id or the device's name. Always: an answer has its feedback once, on whichever
//! replica, and only from its own tenant. The answer's signed name says what it counts for.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::{ErrorCode, NumberRange};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::error::ApiError;
use super::{App, body};
use crate::access::Caller;
use crate::experiment::metric::{Metric, TIME_MS_MAX};
use crate::experiment::sums::BucketSums;
use crate::experiment::token::TokenError;
use crate::service::experiments::FeedbackError;
use crate::store::{BucketRow, FeedbackName};

/// Times that are accepted, in milliseconds.
const TIME_MS: NumberRange = NumberRange::new(0.0, TIME_MS_MAX);
const SHARE: NumberRange = NumberRange::new(0.0, 1.0);

/// Feedback for one answer: a rating, measured figures, or both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedbackBody {
    /// The `request_id` of the assist request.
    request_id: Uuid,
    /// The `experiment.feedback` of its `first` event.
    token: String,
    /// What a person thinks of the answer.
    rating: Option<Rating>,
    /// Time from the question until the device showed the first token, in milliseconds.
    #[schema(minimum = 0, maximum = 600_000)]
    ttft_ms: Option<f64>,
    /// The largest gap between two shown tokens, in milliseconds.
    #[schema(minimum = 0, maximum = 600_000)]
    gap_ms: Option<f64>,
    /// Share of the cloud's tokens that the device's model agrees with.
    #[schema(minimum = 0, maximum = 1)]
    agreement: Option<f64>,
}

/// A rating.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Rating {
    /// The answer was good.
    Up,
    /// It was not.
    Down,
}

impl FeedbackBody {
    fn read(json: &[u8]) -> Result<FeedbackBody, FieldError> {
        let body: FeedbackBody =
            serde_json::from_slice(json).map_err(|err| FieldError::whole(err.to_string()))?;
        let numbers = [
            ("ttft_ms", body.ttft_ms, TIME_MS),
            ("gap_ms", body.gap_ms, TIME_MS),
            ("agreement", body.agreement, SHARE),
        ];
        for (name, value, range) in numbers {
            if let Some(value) = value
                && let Err(err) = range.check(name, value)
            {
                return Err(FieldError::new(name, err.to_string()));
            }
        }
        if body.rating.is_none() && numbers.iter().all(|(_, value, _)| value.is_none()) {
            return Err(FieldError::whole("pass `rating`, `ttft_ms`, `gap_ms` or `agreement`"));
        }
        Ok(body)
    }

    fn sums(&self) -> BucketSums {
        let mut sums = BucketSums::default();
        let rating = self.rating.map(|rating| if rating == Rating::Up { 1.0 } else { 0.0 });
        let figures = [
            (Metric::Rating, rating),
            (Metric::ShownTtftMs, self.ttft_ms),
            (Metric::GapMs, self.gap_ms),
            (Metric::Agreement, self.agreement),
        ];
        for (metric, value) in figures {
            if let Some(value) = value {
                sums.add(metric, value);
            }
        }
        sums
    }
}

/// Gives feedback for an answer that took part in an experiment, once and within 24 hours.
#[utoipa::path(
    post,
    path = "/v1/feedback",
    tag = "assist",
    request_body = FeedbackBody,
    responses(
        (status = 204, description = "it counts"),
        (status = 409, description = "the answer has had its feedback", body = ErrorReply),
        (status = 410, description = "the experiment is over, or the answer is too old", body = ErrorReply),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the database does not answer", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn give(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let bytes = body::read(&headers, body, &app, &caller).await?;
    let taken = take(&app, &caller, bytes).await;
    let outcome = match &taken {
        Ok(true) => "taken",
        Ok(false) => "repeated",
        Err(_) => "refused",
    };
    app.service.metrics().experiment_feedback(outcome);
    if taken? {
        return Ok(StatusCode::NO_CONTENT);
    }
    let repeated = ApiError::new(ErrorCode::InvalidRequest, "the answer has had its feedback");
    Err(repeated.with_status(409))
}

/// Adds feedback; returns false if the answer had some before.
async fn take(app: &App, caller: &Caller, bytes: body::WholeBody) -> Result<bool, ApiError> {
    let (feedback, _held) = bytes.parse(FeedbackBody::read)?;
    let answer = app.service.experiments().answer(&feedback.token, caller.owner())?;
    if answer.request != feedback.request_id {
        return Err(FieldError::new("request_id", "is not the request of this token").into());
    }
    let Some(store) = &app.store else {
        return Err(ApiError::new(ErrorCode::Unavailable, "this service has no database"));
    };
    let name = FeedbackName { name: &feedback.token, expires_ms: answer.expires_ms };
    let row = BucketRow {
        experiment: answer.experiment,
        arm: answer.arm,
        bucket: answer.bucket,
        sums: feedback.sums(),
    };
    store.add_feedback(name, &row).await.map_err(|err| {
        tracing::warn!(err = &err as &dyn std::error::Error, "feedback cannot be written");
        ApiError::new(ErrorCode::Unavailable, "the database does not answer; try again")
    })
}

impl From<FeedbackError> for ApiError {
    fn from(err: FeedbackError) -> ApiError {
        match err {
            FeedbackError::Token(TokenError::Unknown) => FieldError::new("token", err.to_string()).into(),
            FeedbackError::Token(TokenError::Expired) | FeedbackError::Over => {
                ApiError::new(ErrorCode::Gone, err.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(more: Value) -> Result<FeedbackBody, String> {
        let mut body = json!({ "request_id": Uuid::nil(), "token": "t" });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        FeedbackBody::read(body.to_string().as_bytes()).map_err(|err| err.to_string())
    }

    #[test]
    fn feedback_says_something_within_bounds() {
        let check = |more: Value, want: &str| {
            let err = read(more).unwrap_err();
            assert!(err.contains(want), "{err}");
        };
        check(json!({}), "pass `rating`");
        check(json!({ "rating": "fine" }), "expected `up` or `down`");
        check(json!({ "agreement": 1.5 }), "agreement");
        check(json!({ "ttft_ms": -1 }), "ttft_ms");
        check(json!({ "gap_ms": 600_001 }), "gap_ms");
        check(json!({ "rating": "up", "text": "x" }), "unknown field");
    }

    #[test]
    fn each_figure_is_counted_once() {
        let sums = read(json!({ "rating": "down", "agreement": 0.75, "gap_ms": 80 })).unwrap().sums();
        let count = |metric: Metric| sums.metrics[metric as usize].count;
        assert_eq!(Metric::ALL.map(count), [0, 0, 1, 0, 1, 1, 0]);
        assert_eq!(sums.metrics[Metric::Agreement as usize].total, 0.75);
        assert_eq!((sums.metrics[Metric::Rating as usize].total, sums.marks), (0.0, 0));
    }
}
