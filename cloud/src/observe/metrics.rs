//! Metrics of the running service, for Prometheus.
//!
//! Each service has its own metrics; nothing is global. Never: holds a prompt, a key, or a label that callers
//! can invent without limit (scenes after the first [`SCENES_MAX`] count as `other`). Always: [`METRICS`]
//! lists all metrics.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The most scenes with their own label.
pub const SCENES_MAX: usize = 100;
/// The most experiments with their own label, since the start of the program.
pub const EXPERIMENTS_MAX: usize = 50;
/// The label of all other scenes and experiments.
const OTHER: &str = "other";

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A count that only grows.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution with these bounds.
    Histogram(Buckets),
}

/// Bounds of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buckets {
    /// For whole requests and their parts, in seconds.
    Request,
    /// For one token or one operation, in seconds.
    Step,
    /// For numbers of tokens.
    Tokens,
    /// For bytes of a mask.
    Bytes,
    /// For shares.
    Share,
}

impl Buckets {
    /// Returns the upper bounds.
    fn bounds(self) -> &'static [f64] {
        match self {
            Buckets::Request => &[
                0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
                160.0, 320.0,
            ],
            Buckets::Step => {
                &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0]
            }
            Buckets::Tokens => &[
                1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
                20_000.0, 50_000.0, 100_000.0,
            ],
            Buckets::Bytes => &[16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0, 4096.0],
            Buckets::Share => &[0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        }
    }
}

/// Every metric: its name, kind and description.
pub const METRICS: &[(&str, Kind, &str)] = &[
    ("baton_requests_total", Kind::Counter, "requests that ended, by scene, model and outcome"),
    ("baton_requests_running", Kind::Gauge, "requests that hold a slot"),
    ("baton_requests_waiting", Kind::Gauge, "requests that wait for a slot"),
    ("baton_prefill_backlog_tokens", Kind::Gauge, "prompt tokens that wait to be computed"),
    ("baton_prefill_backlog_seconds", Kind::Gauge, "how long the waiting prompt tokens take, as measured"),
    ("baton_kv_cache_usage_ratio", Kind::Gauge, "share of the KV cache that running requests hold"),
    ("baton_client_disconnects_total", Kind::Counter, "answers whose reader went away"),
    ("baton_admission_rejected_total", Kind::Counter, "requests refused for want of room, by reason"),
    ("baton_time_to_first_token_seconds", Kind::Histogram(Buckets::Request), "arrival to first token"),
    ("baton_time_per_output_token_seconds", Kind::Histogram(Buckets::Step), "time per token after the first"),
    ("baton_request_queue_seconds", Kind::Histogram(Buckets::Request), "arrival to slot"),
    ("baton_request_prefill_seconds", Kind::Histogram(Buckets::Request), "slot to first token"),
    ("baton_request_decode_seconds", Kind::Histogram(Buckets::Request), "first token to end"),
    ("baton_request_duration_seconds", Kind::Histogram(Buckets::Request), "arrival to end"),
    ("baton_request_prompt_tokens", Kind::Histogram(Buckets::Tokens), "tokens of a prompt"),
    ("baton_request_generation_tokens", Kind::Histogram(Buckets::Tokens), "tokens written for a request"),
    ("baton_prompt_tokens_total", Kind::Counter, "tokens of all prompts"),
    ("baton_generation_tokens_total", Kind::Counter, "tokens written"),
    ("baton_prefix_cache_queries_total", Kind::Counter, "prompt tokens looked for in the prefix cache"),
    ("baton_prefix_cache_hits_total", Kind::Counter, "prompt tokens found there"),
    ("baton_speculation_proposed_tokens_total", Kind::Counter, "tokens proposed and checked, by model"),
    ("baton_speculation_accepted_tokens_total", Kind::Counter, "proposed tokens that became part of answers"),
    ("baton_assisted_tokens", Kind::Histogram(Buckets::Tokens), "tokens that the cloud was to write (L)"),
    ("baton_handoffs_total", Kind::Counter, "assisted answers, by how the cloud's part ended"),
    ("baton_refined_prompt_ratio", Kind::Histogram(Buckets::Share), "share of the prompt that a mask keeps"),
    ("baton_refined_prompt_tokens", Kind::Histogram(Buckets::Tokens), "prompt tokens that a mask keeps"),
    ("baton_mask_bytes", Kind::Histogram(Buckets::Bytes), "bytes of a mask"),
    ("baton_refine_seconds", Kind::Histogram(Buckets::Step), "ranking sentences and encoding the mask"),
    ("baton_scene_config_generation", Kind::Gauge, "version of each scene in force"),
    ("baton_db_operation_seconds", Kind::Histogram(Buckets::Step), "operations of the database, by name"),
    ("baton_database_up", Kind::Gauge, "1 while the database answers; 0: settings are the last good ones"),
    (
        "baton_database_writable",
        Kind::Gauge,
        "1 while the database takes changes; 0: its disk is full, for example",
    ),
    (
        "baton_admin_logins_total",
        Kind::Counter,
        "log-ins at the console, by outcome: begun and wrong ones took a password hash, limited and busy ones none",
    ),
    ("baton_engine_requests_running", Kind::Gauge, "requests that an upstream engine has from this service"),
    ("baton_engine_up", Kind::Gauge, "1 while an upstream engine takes requests"),
    (
        "baton_engine_lacks",
        Kind::Gauge,
        "1 if an upstream engine was found not to have something and is asked in another form",
    ),
    ("baton_engine_faults_total", Kind::Counter, "what went wrong with upstream engines, by model and kind"),
    ("baton_engine_masks_total", Kind::Counter, "masks for answers of upstream engines, by outcome"),
    ("baton_engine_tokens_total", Kind::Counter, "tokens as upstream engines count them, by model and kind"),
    ("baton_model_loaded", Kind::Gauge, "1 while a model is in memory"),
    ("baton_model_loads_total", Kind::Counter, "loads of models, by outcome: loaded or failed"),
    ("baton_model_load_seconds", Kind::Histogram(Buckets::Request), "time to load a model"),
    ("baton_model_unloads_total", Kind::Counter, "models taken out of memory"),
    (
        "baton_kv_handoffs_total",
        Kind::Counter,
        "keys and values for devices, by outcome: offered, refused or read",
    ),
    (
        "baton_kv_handoff_parked_bytes",
        Kind::Gauge,
        "memory set aside for keys and values that devices may read",
    ),
    ("baton_kv_handoff_bytes_total", Kind::Counter, "bytes of keys and values that devices have read"),
    ("baton_pairs_refused_total", Kind::Counter, "requests of devices with models that they may not have"),
    (
        "baton_device_reports_total",
        Kind::Counter,
        "reports of devices' models, by outcome: noted, or limited because their key reports too often",
    ),
    (
        "baton_experiment_answers_total",
        Kind::Counter,
        "answers of experiments, by experiment, arm and outcome",
    ),
    ("baton_experiment_feedback_total", Kind::Counter, "feedback for answers of experiments, by outcome"),
    ("baton_verify_drafted_tokens_total", Kind::Counter, "tokens of devices' drafts that were checked"),
    ("baton_verify_accepted_tokens_total", Kind::Counter, "drafted tokens that the model would have written"),
    ("baton_verify_written_tokens_total", Kind::Counter, "tokens that the model wrote behind drafts"),
    ("baton_open_answers", Kind::Gauge, "answers that devices go on with, and that are kept for checks"),
    (
        "baton_open_kv_bytes",
        Kind::Gauge,
        "keys and values kept without a slot for such answers, at most: others may take their room",
    ),
    (
        "baton_open_kv_byte_seconds_total",
        Kind::Counter,
        "keys and values kept without a slot for such answers, by tenant",
    ),
    ("baton_build_info", Kind::Gauge, "1, with the version"),
];

const METADATA: Metadata<'static> = Metadata::new("baton", Level::INFO, Some(module_path!()));

/// The metrics of one service.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    scenes: Mutex<BTreeSet<String>>,
    experiments: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("scenes", &self.scenes).finish_non_exhaustive()
    }
}

/// Current use of one model, read when metrics are requested.
#[derive(Debug, Clone, Default)]
pub struct ModelUsage {
    /// Its name.
    pub model: String,
    /// Whether it is in memory.
    pub is_loaded: bool,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Prompt tokens that wait for prefill.
    pub backlog_tokens: usize,
    /// Time that they will take, in seconds.
    pub backlog_seconds: f64,
    /// Share of the KV cache that running requests hold.
    pub kv_usage: f64,
    /// Bytes of keys and values that are kept for answers that devices go on with, at most.
    pub open_kv_bytes: usize,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens that were found there.
    pub prefix_hits: u64,
    /// Tokens that were proposed.
    pub proposed: u64,
    /// Proposed tokens that became part of answers.
    pub accepted: u64,
}

/// Current use of one upstream engine, read when metrics are requested.
#[derive(Debug, Clone, Default)]
pub struct EngineUse {
    /// The model that it writes for.
    pub model: String,
    /// Its URL.
    pub engine: String,
    /// Requests of this service that it has.
    pub in_flight: usize,
    /// Whether it takes requests.
    pub is_open: bool,
    /// Every part of a request that an engine may lack, and whether this one does.
    pub lacks: Vec<(&'static str, bool)>,
}

/// Current use of the service, read when metrics are requested.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Use of every upstream engine.
    pub engines: Vec<EngineUse>,
    /// Use of every model.
    pub models: Vec<ModelUsage>,
    /// Version of each scene.
    pub scenes: Vec<(String, u32)>,
    /// Answers that devices go on with.
    pub open_answers: usize,
    /// Bytes of keys and values on their way to devices.
    pub handoff_bytes: u64,
}

/// One request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// Its scene, or `None` for the chat API.
    pub scene: Option<&'a str>,
    /// The model that answered.
    pub model: &'a str,
    /// How it ended: `stop`, `cap`, `cancelled`, `failed`, `expired` or `stopped`.
    pub outcome: &'static str,
    /// Whether its reader disconnected.
    pub disconnected: bool,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Time from arrival to slot.
    pub queue: Duration,
    /// Time from slot to first token.
    pub prefill: Duration,
    /// Time from first token to end.
    pub decode: Duration,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Makes the metrics of a service that has not answered anything yet.
    pub fn new() -> Metrics {
        let mut builder = PrometheusBuilder::new();
        for (name, kind, _) in METRICS {
            if let Kind::Histogram(buckets) = kind {
                let matcher = Matcher::Full((*name).to_owned());
                builder =
                    builder.set_buckets_for_metric(matcher, buckets.bounds()).expect("there are bounds");
            }
        }
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        for (name, kind, help) in METRICS {
            let (name, help, unit) = ((*name).into(), (*help).into(), None::<Unit>);
            match kind {
                Kind::Counter => recorder.describe_counter(name, unit, help),
                Kind::Gauge => recorder.describe_gauge(name, unit, help),
                Kind::Histogram(_) => recorder.describe_histogram(name, unit, help),
            }
        }
        let metrics = Metrics { recorder, handle, scenes: Mutex::default(), experiments: Mutex::default() };
        metrics.gauge("baton_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        metrics
    }

    /// Sets whether the database answers.
    pub fn database_up(&self, up: bool) {
        self.gauge("baton_database_up", &[]).set(if up { 1.0 } else { 0.0 });
    }

    /// Sets whether the database accepts changes.
    pub fn database_writable(&self, writable: bool) {
        self.gauge("baton_database_writable", &[]).set(if writable { 1.0 } else { 0.0 });
    }

    /// Counts an attempt to log in at the console.
    pub fn admin_login(&self, outcome: &'static str) {
        self.counter("baton_admin_logins_total", &[("outcome", outcome)]).increment(1);
    }

    /// Counts a request that was refused because there was no room.
    pub fn rejected(&self, reason: &'static str) {
        self.counter("baton_admission_rejected_total", &[("reason", reason)]).increment(1);
    }

    /// Records the time to the first token of an answer.
    pub fn first_token(&self, scene: Option<&str>, model: &str, since_arrival: Duration) {
        let scene = self.scene(scene);
        let labels: &[(&'static str, &str)] = &[("scene", &scene), ("model", model)];
        self.histogram("baton_time_to_first_token_seconds", labels).record(since_arrival);
    }

    /// Records the L that a device was promised.
    pub fn assisted(&self, scene: &str, assist_tokens: u32) {
        let scene = self.scene(Some(scene));
        self.histogram("baton_assisted_tokens", &[("scene", &scene)]).record(f64::from(assist_tokens));
    }

    /// Records a new mask.
    pub fn refined(&self, scene: Option<&str>, mask: &baton_protocol::MaskEvent, prompt_tokens: usize) {
        let scene = self.scene(scene);
        let labels: &[(&'static str, &str)] = &[("scene", &scene)];
        let kept = f64::from(mask.prompt_ratio);
        self.histogram("baton_refined_prompt_ratio", labels).record(kept);
        self.histogram("baton_refined_prompt_tokens", labels).record((kept * prompt_tokens as f64).round());
        self.histogram("baton_mask_bytes", labels).record(mask.mask_bytes() as f64);
    }

    /// Records the time for ranking and encoding.
    pub fn refine_elapsed(&self, elapsed: Duration) {
        self.histogram("baton_refine_seconds", &[]).record(elapsed);
    }

    /// Counts a fault of an upstream engine.
    pub fn engine_fault(&self, model: &str, kind: &'static str) {
        self.counter("baton_engine_faults_total", &[("model", model), ("kind", kind)]).increment(1);
    }

    /// Counts what became of the mask of an upstream engine's answer: `made`, `late` or `failed`.
    pub fn engine_mask(&self, model: &str, outcome: &'static str) {
        self.counter("baton_engine_masks_total", &[("model", model), ("outcome", outcome)]).increment(1);
    }

    /// Counts the tokens of an answer as its engine reported them.
    pub fn engine_tokens(&self, model: &str, prompt: u64, cached: u64, completion: u64) {
        for (kind, tokens) in [("prompt", prompt), ("cached", cached), ("completion", completion)] {
            let labels: &[(&'static str, &str)] = &[("model", model), ("kind", kind)];
            self.counter("baton_engine_tokens_total", labels).increment(tokens);
        }
    }

    /// Counts a load of a model, which took so long: `loaded` or `failed`.
    pub fn model_loaded(&self, model: &str, outcome: &'static str, elapsed: Duration) {
        self.counter("baton_model_loads_total", &[("model", model), ("outcome", outcome)]).increment(1);
        self.histogram("baton_model_load_seconds", &[("model", model)]).record(elapsed);
    }

    /// Counts a model that was taken out of memory.
    pub fn model_unloaded(&self, model: &str) {
        self.counter("baton_model_unloads_total", &[("model", model)]).increment(1);
    }

    /// Counts a request of a device with a pair that it may not have.
    pub fn pair_refused(&self) {
        self.counter("baton_pairs_refused_total", &[]).increment(1);
    }

    /// Counts a report of a device: `noted`, or `limited` because its key reports too often.
    pub fn device_report(&self, outcome: &'static str) {
        self.counter("baton_device_reports_total", &[("outcome", outcome)]).increment(1);
    }

    /// Counts keys and values for a device: `offered`, `refused` for want of room, or `read` to their end.
    pub fn kv_handoff(&self, outcome: &'static str) {
        self.counter("baton_kv_handoffs_total", &[("outcome", outcome)]).increment(1);
    }

    /// Counts bytes of keys and values that a device reads.
    pub fn kv_handoff_bytes(&self, bytes: u64) {
        self.counter("baton_kv_handoff_bytes_total", &[]).increment(bytes);
    }

    /// Counts an answer that took part in an experiment.
    pub fn experiment_answer(&self, experiment: &str, arm: &str, failed: bool) {
        let experiment = bounded(&self.experiments, experiment, EXPERIMENTS_MAX);
        // An arm's label is bounded by its experiment's.
        let arm = if experiment == OTHER { OTHER } else { arm };
        let outcome = if failed { "failed" } else { "written" };
        let labels: &[(&'static str, &str)] =
            &[("experiment", &experiment), ("arm", arm), ("outcome", outcome)];
        self.counter("baton_experiment_answers_total", labels).increment(1);
    }

    /// Counts feedback: `taken`, `repeated` or `refused`.
    pub fn experiment_feedback(&self, outcome: &'static str) {
        self.counter("baton_experiment_feedback_total", &[("outcome", outcome)]).increment(1);
    }

    /// Counts a draft that was checked.
    pub fn verified(&self, drafted: usize, accepted: usize, written: usize) {
        self.counter("baton_verify_drafted_tokens_total", &[]).increment(drafted as u64);
        self.counter("baton_verify_accepted_tokens_total", &[]).increment(accepted as u64);
        self.counter("baton_verify_written_tokens_total", &[]).increment(written as u64);
    }

    /// Counts keys and values that were kept for an answer between two drafts, in byte-seconds.
    pub fn open_kv(&self, tenant: &str, byte_seconds: f64) {
        let whole = if byte_seconds.is_finite() { byte_seconds.max(0.0) as u64 } else { 0 };
        self.counter("baton_open_kv_byte_seconds_total", &[("tenant", tenant)]).increment(whole);
    }

    /// Records the time of an operation of the database.
    pub fn db_operation(&self, operation: &'static str, elapsed: Duration) {
        self.histogram("baton_db_operation_seconds", &[("operation", operation)]).record(elapsed);
    }

    /// Records a request that has ended.
    pub fn ended(&self, ended: Ended<'_>) {
        let scene = self.scene(ended.scene);
        let labels: &[(&'static str, &str)] = &[("scene", &scene), ("model", ended.model)];
        let counted = &[("scene", scene.as_str()), ("model", ended.model), ("outcome", ended.outcome)];
        self.counter("baton_requests_total", counted).increment(1);
        if ended.scene.is_some() {
            self.counter("baton_handoffs_total", &[("outcome", ended.outcome)]).increment(1);
        }
        if ended.disconnected {
            self.counter("baton_client_disconnects_total", &[]).increment(1);
        }
        self.counter("baton_prompt_tokens_total", labels).increment(ended.prompt_tokens as u64);
        self.counter("baton_generation_tokens_total", labels).increment(ended.tokens as u64);
        self.histogram("baton_request_prompt_tokens", labels).record(ended.prompt_tokens as f64);
        self.histogram("baton_request_generation_tokens", labels).record(ended.tokens as f64);
        self.histogram("baton_request_queue_seconds", labels).record(ended.queue);
        let total = ended.queue + ended.prefill + ended.decode;
        self.histogram("baton_request_duration_seconds", labels).record(total);
        if ended.tokens > 0 {
            self.histogram("baton_request_prefill_seconds", labels).record(ended.prefill);
            self.histogram("baton_request_decode_seconds", labels).record(ended.decode);
        }
        if ended.tokens > 1 {
            let each = ended.decode.as_secs_f64() / (ended.tokens - 1) as f64;
            self.histogram("baton_time_per_output_token_seconds", labels).record(each);
        }
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self, usage: &Usage) -> String {
        for usage in &usage.models {
            let labels: &[(&'static str, &str)] = &[("model", &usage.model)];
            self.gauge("baton_model_loaded", labels).set(f64::from(u8::from(usage.is_loaded)));
            self.gauge("baton_requests_running", labels).set(usage.running as f64);
            self.gauge("baton_requests_waiting", labels).set(usage.waiting as f64);
            self.gauge("baton_prefill_backlog_tokens", labels).set(usage.backlog_tokens as f64);
            self.gauge("baton_prefill_backlog_seconds", labels).set(usage.backlog_seconds);
            self.gauge("baton_kv_cache_usage_ratio", labels).set(usage.kv_usage);
            self.gauge("baton_open_kv_bytes", labels).set(usage.open_kv_bytes as f64);
            self.counter("baton_prefix_cache_queries_total", labels).absolute(usage.prefix_queries);
            self.counter("baton_prefix_cache_hits_total", labels).absolute(usage.prefix_hits);
            self.counter("baton_speculation_proposed_tokens_total", labels).absolute(usage.proposed);
            self.counter("baton_speculation_accepted_tokens_total", labels).absolute(usage.accepted);
        }
        self.gauge("baton_open_answers", &[]).set(usage.open_answers as f64);
        self.gauge("baton_kv_handoff_parked_bytes", &[]).set(usage.handoff_bytes as f64);
        for engine in &usage.engines {
            let labels: &[(&'static str, &str)] = &[("model", &engine.model), ("engine", &engine.engine)];
            self.gauge("baton_engine_requests_running", labels).set(engine.in_flight as f64);
            self.gauge("baton_engine_up", labels).set(f64::from(u8::from(engine.is_open)));
            for &(lack, is_lacking) in &engine.lacks {
                let labels = &[labels[0], labels[1], ("lack", lack)];
                self.gauge("baton_engine_lacks", labels).set(f64::from(u8::from(is_lacking)));
            }
        }
        for (scene, version) in &usage.scenes {
            let scene = self.scene(Some(scene));
            self.gauge("baton_scene_config_generation", &[("scene", &scene)]).set(f64::from(*version));
        }
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Merges the recorded values, so that they do not pile up while nobody reads the metrics.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Returns the label of a scene: its id for the first scenes, `other` for the rest.
    fn scene(&self, scene: Option<&str>) -> String {
        scene.map_or(String::new(), |scene| bounded(&self.scenes, scene, SCENES_MAX))
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.recorder.register_histogram(&key(name, labels), &METADATA)
    }
}

/// Returns the label of a name: the name itself for the first ones, `other` for the rest.
fn bounded(known: &Mutex<BTreeSet<String>>, name: &str, max: usize) -> String {
    let mut known = known.lock().expect("nothing panics while the labels are locked");
    if !known.contains(name) {
        if known.len() >= max {
            return OTHER.to_owned();
        }
        known.insert(name.to_owned());
    }
    name.to_owned()
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|&(name, value)| Label::new(name, value.to_owned())).collect();
    Key::from_parts(name, labels)
}

#[cfg(test)]
mod tests;
