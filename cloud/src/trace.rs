//! Traces: what one request waited for, sent to a collector over OTLP.
//!
//! A request is a span with `queue`, `prefill`, `decode` and `refine` inside, child of the span that the device names in
//! `traceparent`. Spans are made when the request has ended, from the times it was measured by. Never: holds text of a
//! prompt or an answer, blocks the engine, or grows without bound (what a slow collector does not take is dropped, and
//! counted).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use tokio::sync::mpsc;
use tracing::warn;
use uuid::Uuid;

/// Spans that may wait to be sent.
const WAITING_MAX: usize = 4096;
/// Spans of one message to the collector.
const BATCH_MAX: usize = 512;
/// How long a span waits for others to go with it.
const BATCH_PERIOD: Duration = Duration::from_millis(500);
/// For one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The caller's span, as W3C's `traceparent` header names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl TraceParent {
    /// Reads a header; none where it is not of version 00's form, which is then left alone, as the standard demands.
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
    /// Its name, as the log has it; empty: it has none.
    pub request: String,
    /// The scene; none for the chat API.
    pub scene: Option<String>,
    /// The model.
    pub model: String,
    /// When it ended.
    pub ended_at: SystemTime,
    /// Arrival to slot.
    pub queue: Duration,
    /// Slot to first token.
    pub prefill: Duration,
    /// The part of it that ranked sentences.
    pub refine: Duration,
    /// First token to end.
    pub decode: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were cached.
    pub cached_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// How it ended: `stop`, `cap`, `cancelled`, `failed`, `expired` or `stopped`.
    pub outcome: &'static str,
}

/// Where spans go.
#[derive(Debug, Clone)]
pub struct Traces {
    spans: mpsc::Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

impl Traces {
    /// Sends spans to the collector at `endpoint` (its base; `/v1/traces` is added), on a task of its own that ends
    /// when the last clone of this is gone.
    ///
    /// # Errors
    /// [`ExporterBuildError`] where the address is not one.
    pub fn start(endpoint: &str) -> Result<(Traces, tokio::task::JoinHandle<()>), ExporterBuildError> {
        // The exporter's HTTP client asks for a process-wide one, also where it never speaks TLS.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(SEND_TIMEOUT)
            .build()?;
        let resource = Resource::builder()
            .with_service_name("baton-cloud")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(send(exporter, waiting, dropped.clone()));
        Ok((Traces { spans, dropped }, task))
    }

    /// The same, where there is an endpoint.
    ///
    /// # Errors
    /// As [`Traces::start`].
    pub fn start_where(
        endpoint: Option<&str>,
    ) -> Result<(Option<Traces>, Option<tokio::task::JoinHandle<()>>), ExporterBuildError> {
        let started = endpoint.map(Traces::start).transpose()?;
        Ok(started.map_or((None, None), |(traces, task)| (Some(traces), Some(task))))
    }

    /// Takes a request down; never waits.
    pub fn record(&self, request: &RequestTrace) {
        if request.parent.is_some_and(|parent| !parent.sampled) {
            return;
        }
        for span in spans(request) {
            if self.spans.try_send(span).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

async fn send(exporter: impl SpanExporter, mut waiting: mpsc::Receiver<SpanData>, dropped: Arc<AtomicU64>) {
    let mut failing = false;
    loop {
        let mut batch = Vec::new();
        if waiting.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return;
        }
        if batch.len() < BATCH_MAX && !waiting.is_closed() {
            tokio::time::sleep(BATCH_PERIOD).await;
            while batch.len() < BATCH_MAX
                && let Ok(span) = waiting.try_recv()
            {
                batch.push(span);
            }
        }
        let sent = exporter.export(batch).await;
        if let (Err(err), false) = (&sent, failing) {
            warn!(err = err as &dyn std::error::Error, "traces cannot be sent");
        }
        failing = sent.is_err();
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            warn!(lost, "spans were dropped: the collector is too slow");
        }
    }
}

/// The request's span and those inside of it.
fn spans(request: &RequestTrace) -> Vec<SpanData> {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    let trace = match request.parent {
        Some(parent) => parent.trace,
        None => TraceId::from_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()),
    };
    let own = span_id();
    let began = request.ended_at - request.queue - request.prefill - request.decode;
    let opened = began + request.queue;
    let first = opened + request.prefill;
    let context = |id| SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default());
    let span = |name: &'static str, id: SpanId, parent: SpanId, from: SystemTime, to: SystemTime| SpanData {
        span_context: context(id),
        parent_span_id: parent,
        parent_span_is_remote: id == own && request.parent.is_some(),
        span_kind: if id == own { SpanKind::Server } else { SpanKind::Internal },
        name: name.into(),
        start_time: from,
        end_time: to,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("baton-cloud").build(),
    };
    let remote = request.parent.map_or(SpanId::INVALID, |parent| parent.span);
    let mut whole = span("chat", own, remote, began, request.ended_at);
    whole.attributes = attributes(request);
    if request.outcome == "failed" {
        whole.status = Status::error("the engine could not go on");
    }
    let mut all = vec![whole, span("queue", span_id(), own, began, opened)];
    if request.tokens > 0 {
        all.push(span("prefill", span_id(), own, opened, first));
        if !request.refine.is_zero() {
            all.push(span("refine", span_id(), own, first - request.refine.min(request.prefill), first));
        }
        all.push(span("decode", span_id(), own, first, request.ended_at));
    }
    all
}

/// By the names of OpenTelemetry's conventions for generative AI, and our own beside them.
fn attributes(request: &RequestTrace) -> Vec<KeyValue> {
    let reason = if request.outcome == "cap" { "length" } else { request.outcome };
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", "chat"),
        KeyValue::new("gen_ai.provider.name", "baton"),
        KeyValue::new("gen_ai.request.model", request.model.clone()),
        KeyValue::new("gen_ai.usage.input_tokens", request.prompt_tokens as i64),
        KeyValue::new("gen_ai.usage.output_tokens", request.tokens as i64),
        KeyValue::new(
            "gen_ai.response.finish_reasons",
            opentelemetry::Value::Array(opentelemetry::Array::String(vec![reason.into()])),
        ),
        KeyValue::new("baton.cached_tokens", request.cached_tokens as i64),
    ];
    if let Some(scene) = &request.scene {
        attributes.push(KeyValue::new("baton.scene", scene.clone()));
    }
    if !request.request.is_empty() {
        attributes.push(KeyValue::new("baton.request_id", request.request.clone()));
    }
    attributes
}

fn span_id() -> SpanId {
    // The low half of a version 4 UUID is never zero.
    SpanId::from_bytes(Uuid::new_v4().as_u64_pair().1.to_be_bytes())
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

    #[test]
    fn parts_lie_within_the_request() {
        let ms = Duration::from_millis;
        let request = RequestTrace {
            parent: TraceParent::parse(HEADER),
            request: "r-1".into(),
            scene: Some("doc-qa".into()),
            model: "m".into(),
            ended_at: SystemTime::UNIX_EPOCH + ms(10_000),
            queue: ms(100),
            prefill: ms(300),
            refine: ms(20),
            decode: ms(600),
            prompt_tokens: 900,
            cached_tokens: 64,
            tokens: 24,
            outcome: "cap",
        };
        let all = spans(&request);
        let names: Vec<&str> = all.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["chat", "queue", "prefill", "refine", "decode"]);
        let whole = &all[0];
        assert_eq!(whole.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert_eq!(whole.end_time.duration_since(whole.start_time).unwrap(), ms(1000));
        for part in &all[1..] {
            assert_eq!(part.parent_span_id, whole.span_context.span_id());
            assert_eq!(part.span_context.trace_id(), whole.span_context.trace_id());
            assert!(part.start_time >= whole.start_time && part.end_time <= whole.end_time, "{}", part.name);
        }
        assert_eq!(all[3].end_time, all[2].end_time);
        let alone = spans(&RequestTrace { parent: None, tokens: 0, outcome: "cancelled", ..request });
        assert_eq!((alone.len(), alone[0].parent_span_id), (2, SpanId::INVALID));
        assert_ne!(alone[0].span_context.trace_id(), TraceId::INVALID);
    }
}
