//! The exporter: makes spans of requests that have ended, and sends them.
//!
//! Never waits: spans that a slow collector does not take are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;
use uuid::Uuid;

use super::RequestTrace;

/// Why spans cannot be sent: the address of the collector is not valid.
pub type TracesError = opentelemetry_otlp::ExporterBuildError;

/// The most spans that wait to be sent.
const WAITING_MAX: usize = 4096;
/// The most spans in one message to the collector.
const BATCH_MAX: usize = 512;
/// How long a span waits for others that go into the same message.
const BATCH_PERIOD: Duration = Duration::from_millis(500);
/// Time to send one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends spans to a collector.
#[derive(Debug, Clone)]
pub struct Traces {
    spans: mpsc::Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

impl Traces {
    /// Starts to send spans to the collector at `endpoint` (its base; `/v1/traces` is appended). They are
    /// sent by a task that ends when the last clone of this is dropped.
    ///
    /// # Errors
    /// [`TracesError`] if the address is not valid.
    pub fn start(endpoint: &str) -> Result<(Traces, JoinHandle<()>), TracesError> {
        // The exporter's HTTP client needs a process-wide crypto provider even if it never uses TLS.
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

    /// Starts to send spans if there is an endpoint.
    ///
    /// # Errors
    /// The same as for [`Traces::start`].
    pub fn start_where(
        endpoint: Option<&str>,
    ) -> Result<(Option<Traces>, Option<JoinHandle<()>>), TracesError> {
        let started = endpoint.map(Traces::start).transpose()?;
        Ok(started.map_or((None, None), |(traces, task)| (Some(traces), Some(task))))
    }

    /// Records a request; never waits.
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

/// Makes the request's span and those inside it.
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

/// Returns the span's attributes: those of OpenTelemetry's conventions for generative AI, and our own.
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
    if let Some(arm) = &request.arm {
        attributes.push(KeyValue::new("baton.experiment.arm", arm.clone()));
    }
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
    use super::super::TraceParent;
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn parts_lie_within_the_request() {
        let ms = Duration::from_millis;
        let request = RequestTrace {
            parent: TraceParent::parse(HEADER),
            request: "r-1".into(),
            scene: Some("doc-qa".into()),
            arm: Some("shorter/L8".into()),
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
