//! Watches one answer, and counts it when it is over.
//!
//! Always: an answer is counted once, whoever ends it. Never: looks at text or at a device's name.

use std::sync::Arc;
use std::time::Duration;

use baton_generate::clock::Clock;
use baton_protocol::{AssistEvent, AssistRequest, EndReason};

use crate::learn::traffic::{ANSWER_TOKENS_ASSUMED, OTHER, RequestFigures, TrafficKey};
use crate::observe::metrics::Metrics;
use crate::service::experiments::Participant;
use crate::service::figures::Figures;
use crate::service::stream::StreamWatch;
use crate::store::now_ms;

/// The longest name that is kept. Names of classes come from devices, so a longer name, or one that is not
/// visible ASCII, is counted as other.
const NAME_BYTES_MAX: usize = 64;

/// Returns the key under which an assist request is counted.
pub(crate) fn key(request: &AssistRequest) -> TrafficKey {
    let device = request.device.as_ref();
    TrafficKey {
        scene: request.scene.clone(),
        class: plain(device.map_or("", |device| &device.class)),
        network: plain(device.and_then(|device| device.network.as_deref()).unwrap_or("")),
    }
}

fn plain(name: &str) -> String {
    let fits = name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { name.to_owned() } else { OTHER.to_owned() }
}

/// Figures of one answer while it is written.
#[derive(Debug)]
pub(crate) struct Recorder {
    sums: Arc<Figures>,
    clock: Clock,
    key: TrafficKey,
    arrived_at: Duration,
    figures: RequestFigures,
    decode_ms: f64,
    ended: bool,
    /// The request's part in an experiment.
    part: Option<(Participant, Arc<Metrics>)>,
}

impl Recorder {
    pub(crate) fn new(sums: Arc<Figures>, clock: Clock, key: TrafficKey, prompt_tokens: u64) -> Recorder {
        let figures = RequestFigures { prompt_tokens, ..RequestFigures::default() };
        Recorder {
            sums,
            key,
            arrived_at: clock.now(),
            clock,
            figures,
            decode_ms: 0.0,
            ended: false,
            part: None,
        }
    }

    /// Counts the answer for its arm too.
    pub(crate) fn in_experiment(mut self, part: Option<(Participant, Arc<Metrics>)>) -> Recorder {
        self.part = part;
        self
    }

    fn ms_since_arrival(&self) -> f64 {
        self.clock.now().saturating_sub(self.arrived_at).as_secs_f64() * 1e3
    }
}

impl StreamWatch for Recorder {
    fn event(&mut self, event: &AssistEvent) {
        let figures = &mut self.figures;
        match event {
            AssistEvent::Progress(_) => (),
            AssistEvent::Mask(mask) => {
                figures.ratio = Some(f64::from(mask.ratio));
                let kept = f64::from(mask.prompt_ratio).clamp(0.0, 1.0);
                figures.prompt_tokens_saved = (figures.prompt_tokens as f64 * (1.0 - kept)).round() as u64;
            }
            AssistEvent::First(first) => {
                figures.assist_tokens = (!self.key.scene.is_empty()).then_some(first.assist_tokens);
                figures.completion_tokens = 1;
                self.decode_ms = first.timing.decode_ms;
                let ms = self.ms_since_arrival();
                self.figures.ttft_ms = Some(ms);
            }
            AssistEvent::Token(_) => figures.completion_tokens += 1,
            AssistEvent::End(end) => {
                figures.completion_tokens = end.usage.completion_tokens;
                figures.slot_ms = end.timing.map_or(0.0, |timing| timing.slot_ms).round() as u64;
                if end.reason == EndReason::Cap && !self.key.scene.is_empty() {
                    let spared = u64::from(ANSWER_TOKENS_ASSUMED).saturating_sub(figures.completion_tokens);
                    figures.slot_ms_saved = (spared as f64 * self.decode_ms).round() as u64;
                }
                self.ended = true;
            }
            AssistEvent::Error(_) => (figures.failed, self.ended) = (true, true),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.ended {
            // The reader disconnected: the time until then is an upper bound of its slot time.
            self.figures.slot_ms = self.ms_since_arrival().round() as u64;
        }
        let key = std::mem::take(&mut self.key);
        let figures = &self.figures;
        if let Some((participant, metrics)) = &self.part {
            participant.record(figures, metrics);
        }
        self.sums.traffic(|traffic| traffic.record(now_ms(), key, figures));
    }
}
