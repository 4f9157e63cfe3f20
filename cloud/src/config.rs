//! Settings of `serve`: as written on the command line, and as checked.
//!
//! Read once at start-up, and again when the settings file changes; [`Config::changes`] says what can change
//! then. No other part of the program reads the environment or the command line. Always: a [`Config`] can be
//! served as it is.

mod admin;
mod changes;
mod edge;
pub mod file;
mod models;
pub(crate) mod numbers;
mod registry;
mod upstream;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::pace_emulation::{PassCost, PassCostError};
use baton_gpu::{GpuChoice, VramLimit};
use clap::{Args, ValueEnum};

pub use self::admin::{AdminConfig, AdminOptions};
pub use self::edge::{Edge, EdgeOptions};
pub use self::models::{MemoryLimit, ModelConfig, ModelOptions, NamedFile};
pub use self::registry::{RegistryArgs, RegistryConfig};
pub use self::upstream::UpstreamArgs;
use crate::access::book::KeyPolicy;
use crate::fleet::source::BadSource;
use crate::service::upstream::UpstreamOptions;
use crate::store::{Database, StoreError};
use baton_generate::scheduler::{BacklogBound, MixedTokens, StepBudget};
use baton_generate::speculation::Speculation;

/// Bounds of `--max-stall`: a pass with prompt tokens cannot take less time than one without.
const STALL_MIN: f64 = 1.1;
const STALL_MAX: f64 = 1000.0;

/// Options of `serve`, as written.
#[derive(Debug, Clone, Args)]
pub struct ServeOptions {
    /// Settings file in YAML, with the names of these options. The command line and the environment override
    /// it. Connection limits, queue limits and certificates are read again when a file changes, and on
    /// SIGHUP; the rest is read once
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models and adapters.
    #[command(flatten)]
    pub models: ModelOptions,
    /// Engines that write the answers of models.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// The registry of models for devices.
    #[command(flatten)]
    pub registry: RegistryArgs,
    /// Address to listen on; port 0 takes a free port and prints it
    #[arg(long, default_value = "127.0.0.1:8300", value_name = "ADDRESS")]
    pub listen: String,
    /// Database of settings: a file, sqlite://FILE, :memory: or postgres://USER@HOST/NAME
    #[arg(
        long,
        default_value = "./baton-cloud.db",
        value_name = "DATABASE",
        env = "BATON_DATABASE",
        hide_env_values = true
    )]
    pub database: String,
    /// Threads of each model's engine; the default is one per core
    #[arg(long, value_name = "N", value_parser = numbers::positive, allow_negative_numbers = true)]
    pub threads: Option<NonZeroUsize>,
    /// Memory for copies of each model's weights in an order that is a few percent faster to read; 0 reads
    /// all weights from the mapped file
    #[arg(
        long,
        default_value = "0",
        value_name = "MIB",
        value_parser = numbers::whole::<u32>,
        allow_negative_numbers = true
    )]
    pub repack_mib: u32,
    /// GPU for the first model, or for as many of its last layers as fit: auto (the best one, or none),
    /// off, or a device such as cuda:0 or vulkan:1. The CPU computes everything else
    #[arg(long, env = "BATON_GPU", default_value_t, value_name = "DEVICE")]
    pub gpu: GpuChoice,
    /// Most memory to use of the GPU, as 40GB; the default is what is free
    #[arg(long, env = "BATON_VRAM", value_name = "SIZE")]
    pub vram: Option<VramLimit>,
    /// Let the GPU compute all layers of the first model; weights that do not fit are loaded for every pass
    #[arg(long, env = "BATON_GPU_OFFLOAD", value_parser = clap::builder::FalseyValueParser::new())]
    pub gpu_offload: bool,
    /// KV cache of each model in tokens, shared by all its sequences; the default is four whole contexts
    #[arg(long, value_name = "N", value_parser = numbers::positive, allow_negative_numbers = true)]
    pub kv_tokens: Option<NonZeroUsize>,
    /// Number format of the KV cache: f32, f16, q8 or q4, each of about half the size; q4 is less exact
    #[arg(long, default_value_t, value_name = "FORMAT")]
    pub kv: KvFormat,
    /// Sequences of one model that run at the same time
    #[arg(
        long,
        default_value = "8",
        value_name = "N",
        value_parser = numbers::positive,
        allow_negative_numbers = true
    )]
    pub slots: NonZeroUsize,
    /// The longest time that the prompts ahead of a new request may take, at the rate measured recently. If
    /// they take longer, the request is answered with status 429
    #[arg(
        long,
        default_value = "30",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub queue_seconds: f64,
    /// The most requests that may wait for a slot, whatever their size
    #[arg(
        long,
        default_value = "256",
        value_name = "N",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub queue: usize,
    /// The most memory of waiting requests
    #[arg(
        long,
        default_value = "256",
        value_name = "MIB",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub queue_mib: usize,
    /// Time within which the first token must come, if a request has no x-deadline-ms header. A request that
    /// cannot meet its deadline is refused; one that has no slot by then is ended. The default is no deadline
    #[arg(long, value_name = "SECONDS", value_parser = numbers::number::<f64>, allow_negative_numbers = true)]
    pub deadline: Option<f64>,
    /// The most prompt tokens in one pass while no answer is being written
    #[arg(
        long,
        default_value = "512",
        value_name = "N",
        value_parser = numbers::positive,
        allow_negative_numbers = true
    )]
    pub chunk_tokens: NonZeroUsize,
    /// Limits the prompt tokens in a pass with running answers: the pass may take at most X times as long as
    /// a pass without prompt tokens (measured all the time)
    #[arg(
        long,
        default_value = "5",
        value_name = "X",
        conflicts_with = "mixed_tokens",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub max_stall: f64,
    /// The most prompt tokens in a pass with running answers, whatever they cost
    #[arg(long, value_name = "N", value_parser = numbers::positive, allow_negative_numbers = true)]
    pub mixed_tokens: Option<NonZeroUsize>,
    /// Percent of the KV cache that may keep prompts of earlier requests; they are dropped if the room is
    /// needed
    #[arg(
        long,
        default_value = "100",
        value_name = "PERCENT",
        value_parser = numbers::whole::<u8>,
        allow_negative_numbers = true
    )]
    pub prefix_cache: u8,
    /// Propose several tokens and check them in one pass; answers stay the same. With auto they come from
    /// earlier text while that is faster, with lookup always. With draft=FILE they come from a smaller GGUF
    /// model with the same tokenizer, while that is faster. With off none are proposed
    #[arg(long, env = "BATON_SPECULATE", default_value = "auto", value_name = "HOW")]
    pub speculate: Speculation,
    /// Who may send requests. keys: everyone with a key (see `baton-cloud keys`); auto: the same, but on
    /// loopback everyone as long as no key exists
    #[arg(long, value_enum, default_value_t = AuthMode::Auto, env = "BATON_AUTH", value_name = "MODE")]
    pub auth: AuthMode,
    /// An extra key, with every scope, for the tenant `default`; for a service without keys in its database
    #[arg(long, env = "BATON_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Address of /metrics for Prometheus, without a key; off by default; port 0 takes a free port and prints
    /// it
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<String>,
    /// Collector of traces over OTLP/HTTP: http://HOST:PORT; /v1/traces is appended
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// EMULATION: each prefill pass takes at least this many milliseconds for each token
    #[arg(
        long,
        value_name = "MS",
        hide = true,
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub emulate_prefill_ms_per_token: Option<f64>,
    /// EMULATION: each prompt takes at least this many milliseconds more
    #[arg(
        long,
        value_name = "MS",
        hide = true,
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub emulate_prefill_base_ms: Option<f64>,
    /// EMULATION: each decode pass takes at least this many milliseconds
    #[arg(
        long,
        value_name = "MS",
        hide = true,
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub emulate_decode_ms: Option<f64>,
    /// Limits of connections and requests.
    #[command(flatten)]
    pub edge: EdgeOptions,
    /// Options of the console.
    #[command(flatten)]
    pub admin: AdminOptions,
}

/// Who may send requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuthMode {
    /// On loopback everyone, as long as no key exists; on other addresses a key must be configured.
    Auto,
    /// Everyone who has a key.
    Keys,
}

/// Settings of `serve`, as checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The models, the default first; at least one.
    pub models: Vec<ModelConfig>,
    /// The most memory that they may take together, in bytes; `None` loads all at start.
    pub models_memory: Option<u64>,
    /// Whether no model is loaded at start.
    pub lazy: bool,
    /// How engines are asked that write the answers of models.
    pub upstream: UpstreamOptions,
    /// The registry of models for devices.
    pub registry: Option<RegistryConfig>,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Database of settings.
    pub database: Database,
    /// Threads of the engine.
    pub threads: Option<NonZeroUsize>,
    /// Memory for repacked weights, MiB.
    pub repack_mib: u32,
    /// The GPU that computes the first model.
    pub gpu: GpuChoice,
    /// The most of its memory to use.
    pub vram: Option<VramLimit>,
    /// Whether it computes all layers, and what does not fit is loaded for every pass.
    pub gpu_offload: bool,
    /// KV cache in tokens, or `None` to choose by the model's context.
    pub kv_tokens: Option<NonZeroUsize>,
    /// Number format of keys and values.
    pub kv: KvFormat,
    /// Sequences that run at the same time.
    pub slots: usize,
    /// The settings file, which is read again when it changes.
    pub file: Option<PathBuf>,
    /// The most requests that may wait.
    pub queue: usize,
    /// Limits on the time and the memory of waiting requests.
    pub backlog: BacklogBound,
    /// Deadline of the first token, for requests that set none.
    pub deadline: Option<Duration>,
    /// Prompt tokens in one pass.
    pub budget: StepBudget,
    /// Percent of the KV cache that may keep prefixes that no running sequence uses.
    pub prefix_cache_percent: u8,
    /// Where proposed tokens come from.
    pub speculation: Speculation,
    /// Whether every request needs a key.
    pub keys: KeyPolicy,
    /// An extra key for the tenant `default`.
    pub api_key: Option<String>,
    /// Address of /metrics for Prometheus.
    pub metrics_listen: Option<SocketAddr>,
    /// Collector of traces.
    pub otlp_endpoint: Option<String>,
    /// Emulated speed, if any.
    pub emulation: Option<PassCost>,
    /// Options of the console.
    pub admin: AdminConfig,
    /// Limits of connections and requests.
    pub edge: Edge,
}

/// Why a setting cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No model was named.
    #[error(
        "no model is named: pass --model FILE.gguf (`./x demo` of a checkout shows the small demo models)"
    )]
    NoModel,
    /// The listen address is not valid.
    #[error("listen address `{0}` is not HOST:PORT")]
    Listen(String),
    /// A host is not a valid name.
    #[error("host `{0}` is not a name: pass it without a scheme and a port, as baton.example")]
    Host(String),
    /// A proxy is not a network.
    #[error("proxy `{0}` is not a network or an address: pass it as 10.0.0.0/8 or 10.1.2.3")]
    Proxy(String),
    /// Other machines could use the service without a key.
    #[error(
        "refusing to listen on {0} without a key: pass --auth keys (and make keys by `baton-cloud keys create`), or \
         --api-key or BATON_API_KEY, or listen on 127.0.0.1"
    )]
    OpenWithoutKey(SocketAddr),
    /// The collector's address is not plain HTTP, which is all that traces are sent over.
    #[error("OTLP endpoint `{0}` must be http://HOST:PORT")]
    Otlp(String),
    /// A draft model fits one model.
    #[error("--speculate draft=FILE is for a service of one model; with several, pass auto, lookup or off")]
    DraftOfSeveral,
    /// The key cannot be sent in a header.
    #[error("the API key must be 1 to 512 visible ASCII characters")]
    Key,
    /// A model's name is not valid.
    #[error("model name `{0}` must be 1 to 128 visible ASCII characters, and `default` is the first one's")]
    ModelName(String),
    /// The first model is named twice.
    #[error("the first model is named by both `{0}` and --model-name")]
    TwoNames(String),
    /// The registry's address is wrong.
    #[error(transparent)]
    Registry(BadSource),
    /// Nothing would say which versions of the registry are good.
    #[error("--registry needs --registry-key KEY; `baton-cloud registry key` prints it")]
    RegistryKey,
    /// Options of a registry without one.
    #[error("--registry-key and --registry-mirror are for --registry")]
    NoRegistry,
    /// Two models have one name.
    #[error("two models are named `{0}`: pass --model NAME=FILE")]
    DuplicateModel(String),
    /// An adapter is given without a valid name or a file.
    #[error(
        "adapter `{0}` must be NAME=FILE or NAME=FILE@MODEL, with a name of 1 to 128 visible ASCII characters"
    )]
    Adapter(String),
    /// An adapter of a model that is not served.
    #[error("adapter `{adapter}` is of model `{model}`; models are: {models}")]
    AdapterModel {
        /// The adapter.
        adapter: String,
        /// The model asked for.
        model: String,
        /// The models that are served.
        models: String,
    },
    /// One model has two adapters of one name.
    #[error("model `{model}` has two adapters named `{adapter}`")]
    DuplicateAdapter {
        /// The adapter.
        adapter: String,
        /// The model.
        model: String,
    },
    /// An engine is given without the name of a model or a URL.
    #[error(
        "engine `{0}` must be NAME=URL or NAME=URL#ENGINE_MODEL, with the name of a model and an http or https URL without a password"
    )]
    Upstream(String),
    /// An engine of a model that is not served.
    #[error(
        "engine `{engine}` writes for model `{model}`; models are: {models} (pass --model {model}=SCORER.gguf)"
    )]
    UpstreamModel {
        /// The engine.
        engine: String,
        /// The model asked for.
        model: String,
        /// The models that are served.
        models: String,
    },
    /// A model with engines has adapters.
    #[error("model `{0}` has adapters, which engines of --upstream do not have: serve those from the engine")]
    UpstreamAdapter(String),
    /// A model has the same engine twice.
    #[error("{0} is given twice")]
    DuplicateUpstream(String),
    /// A key or token cannot be read.
    #[error("{option} `{path}`: {reason}")]
    SecretFile {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A number is out of its bounds.
    #[error("{option} is {value}, it must be {want}")]
    Number {
        /// Which option.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// The bounds.
        want: &'static str,
    },
    /// An emulated speed is out of its bounds.
    #[error(transparent)]
    Emulation(#[from] PassCostError),
    /// The database's address is not valid.
    #[error(transparent)]
    Database(#[from] StoreError),
}

impl ServeOptions {
    /// Checks every setting. Opens no file; only checks which files exist.
    ///
    /// # Errors
    /// Fails with the first setting that cannot be used.
    pub fn check(self) -> Result<Config, ConfigError> {
        let mut models = self.models.check()?;
        let models_memory = self.models.models_memory.map(|MemoryLimit(bytes)| bytes);
        let upstream = self.upstream.check(&mut models)?;
        let listen = listen_address(&self.listen)?;
        if let Some(key) = &self.api_key
            && !visible(key, 512)
        {
            return Err(ConfigError::Key);
        }
        let keys = match self.auth {
            AuthMode::Keys => KeyPolicy::Required,
            AuthMode::Auto if is_loopback(listen.ip()) || self.api_key.is_some() => KeyPolicy::OnceThereIsOne,
            AuthMode::Auto => return Err(ConfigError::OpenWithoutKey(listen)),
        };
        let slots = bounded("--slots", self.slots.get(), 1024, "from 1 to 1024")?;
        let queue = bounded("--queue", self.queue, 65_536, "at most 65536")?;
        let (backlog, deadline) = self.admission()?;
        let budget = self.budget()?;
        let prefix_cache = bounded("--prefix-cache", self.prefix_cache, 100, "from 0 to 100")?;
        let emulation = self.emulation()?;
        if models.len() > 1 && matches!(self.speculate, Speculation::Draft(_)) {
            return Err(ConfigError::DraftOfSeveral);
        }
        let metrics_listen = self.metrics_listen.as_deref().map(listen_address).transpose()?;
        if let Some(endpoint) = &self.otlp_endpoint
            && !endpoint.starts_with("http://")
        {
            return Err(ConfigError::Otlp(endpoint.chars().take(200).collect()));
        }
        let admin = self.admin.clone().check(models[0].path.with_extension("curves.json"))?;
        Ok(Config {
            models,
            models_memory,
            lazy: self.models.lazy,
            upstream,
            registry: self.registry.check()?,
            listen,
            database: self.database.parse()?,
            threads: self.threads,
            repack_mib: self.repack_mib,
            gpu: self.gpu,
            vram: self.vram,
            gpu_offload: self.gpu_offload,
            kv_tokens: self.kv_tokens,
            kv: self.kv,
            slots,
            file: self.config.clone(),
            queue,
            backlog,
            deadline,
            budget,
            prefix_cache_percent: prefix_cache,
            speculation: self.speculate.clone(),
            edge: self.edge.check()?,
            keys,
            api_key: self.api_key,
            metrics_listen,
            otlp_endpoint: self.otlp_endpoint.clone(),
            emulation,
            admin,
        })
    }

    fn admission(&self) -> Result<(BacklogBound, Option<Duration>), ConfigError> {
        let wait = seconds("--queue-seconds", self.queue_seconds, 0.0, 86_400.0, "from 0 to 86400")?;
        let bytes = bounded("--queue-mib", self.queue_mib, 1 << 20, "at most 1048576")? << 20;
        let within = |value| seconds("--deadline", value, 0.001, 3600.0, "from 0.001 to 3600 seconds");
        Ok((BacklogBound { wait, bytes }, self.deadline.map(within).transpose()?))
    }

    fn budget(&self) -> Result<StepBudget, ConfigError> {
        let chunk_tokens = bounded("--chunk-tokens", self.chunk_tokens.get(), 65_536, "from 1 to 65536")?;
        let mixed = match self.mixed_tokens {
            Some(tokens) => {
                MixedTokens::Fixed(bounded("--mixed-tokens", tokens.get(), 65_536, "from 1 to 65536")?)
            }
            None if (STALL_MIN..=STALL_MAX).contains(&self.max_stall) => {
                MixedTokens::MaxStall(self.max_stall)
            }
            None => {
                let value = self.max_stall.to_string();
                return Err(ConfigError::Number { option: "--max-stall", value, want: "from 1.1 to 1000" });
            }
        };
        Ok(StepBudget { chunk_tokens, mixed })
    }

    fn emulation(&self) -> Result<Option<PassCost>, ConfigError> {
        let options =
            [self.emulate_prefill_base_ms, self.emulate_prefill_ms_per_token, self.emulate_decode_ms];
        if options.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [base_ms, prefill_ms_per_token, decode_ms] = options.map(|value| value.unwrap_or(0.0));
        let cost = PassCost { base_ms, prefill_ms_per_token, decode_ms };
        cost.check()?;
        Ok(Some(cost))
    }
}

fn bounded<T: PartialOrd + ToString>(
    option: &'static str,
    value: T,
    max: T,
    want: &'static str,
) -> Result<T, ConfigError> {
    if value > max {
        return Err(ConfigError::Number { option, value: value.to_string(), want });
    }
    Ok(value)
}

fn seconds(
    option: &'static str,
    value: f64,
    min: f64,
    max: f64,
    want: &'static str,
) -> Result<Duration, ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(ConfigError::Number { option, value: value.to_string(), want })
}

/// Reads the key or token that the file of an option holds.
pub(crate) fn secret_in(option: &'static str, path: &Path) -> Result<String, ConfigError> {
    let refused = |reason: String| ConfigError::SecretFile { option, path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|err| refused(err.to_string()))?;
    let secret = text.trim();
    if visible(secret, 4096) {
        return Ok(secret.to_owned());
    }
    Err(refused("it must hold one line of visible ASCII characters".to_owned()))
}

fn visible(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn listen_address(text: &str) -> Result<SocketAddr, ConfigError> {
    let addresses = text.to_socket_addrs().map_err(|_| ConfigError::Listen(text.to_owned()))?;
    addresses.into_iter().next().ok_or_else(|| ConfigError::Listen(text.to_owned()))
}

#[cfg(test)]
mod tests;
