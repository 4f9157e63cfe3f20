//! Traces: the times of one request's phases, sent to a collector over OTLP.
//!
//! A request is a span that contains `queue`, `prefill`, `decode` and `refine`. Its parent is the span that
//! the device names in `traceparent`. Spans are made when the request has ended, from its measured times.
//! Never: holds text of a prompt or an answer, blocks the engine, or grows without limit. Spans that a slow
//! collector does not take are dropped and counted.

#[cfg(not(feature = "otlp"))]
mod absent;
#[cfg(feature = "otlp")]
mod otlp;

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, TraceId};

#[cfg(not(feature = "otlp"))]
pub use self::absent::{Traces, TracesError};
#[cfg(feature = "otlp")]
pub use self::otlp::{Traces, TracesError};

/// The caller's span, from W3C's `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl TraceParent {
    /// Reads a header. Returns `None` if it is not in the form of version 00; it is then ignored, as the
    /// standard requires.
    pub fn parse(header: &str) -> Option<TraceParent> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
        };
        let fine = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        if !fine || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        valid.then_some(TraceParent { trace, span, sampled: flags & 1 == 1 })
    }
}

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct RequestTrace {
    /// The caller's span.
    pub parent: Option<TraceParent>,
    /// Its id, as in the log; empty if it has none.
    pub request: String,
    /// The scene; `None` for the chat API.
    pub scene: Option<String>,
    /// Experiment and arm, as `EXPERIMENT/ARM`; `None` if it takes part in none.
    pub arm: Option<String>,
    /// The model.
    pub model: String,
    /// When it ended.
    pub ended_at: SystemTime,
    /// Time from arrival to slot.
    pub queue: Duration,
    /// Time from slot to first token.
    pub prefill: Duration,
    /// The part of that time in which sentences were ranked.
    pub refine: Duration,
    /// Time from first token to end.
    pub decode: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// How it ended: `stop`, `cap`, `cancelled`, `failed`, `expired` or `stopped`.
    pub outcome: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let parent = TraceParent::parse(HEADER).unwrap();
        assert_eq!(parent.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((parent.span.to_string().as_str(), parent.sampled), ("00f067aa0ba902b7", true));
        assert!(!TraceParent::parse(&HEADER.replace("-01", "-00")).unwrap().sampled);
        assert!(TraceParent::parse(&HEADER.replacen("00", "01", 1).replace("-01", "-01-more")).is_some());
        for bad in [
            String::new(),
            HEADER.to_uppercase(),
            HEADER.replacen("00-", "ff-", 1),
            format!("{HEADER}-more"),
            HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            HEADER.replace("00f067aa0ba902b7", &"0".repeat(16)),
            HEADER[..50].to_owned(),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad}");
        }
    }
}
