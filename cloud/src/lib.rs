//! The cloud half: prefills a prompt with the full model, refines it, streams at most L tokens.
//!
//! | module | holds |
//! |---|---|
//! | [`scheduler`] | queue, slots, KV budget, chunked prefill: pure |
//! | [`worker`] | the engine's thread: performs what the scheduler decides |
//! | [`service`] | requests in, event streams out, without HTTP |
//! | [`stream`] | one answer as its reader sees it |
//! | [`completion`], [`tools`], [`logprobs`] | chat completions, their tool calls and log probabilities |
//! | [`constrain`] | answers that a schema or grammar allows |
//! | [`planning`] | r and L of one request |
//! | [`cost`] | medians of the cloud's own passes |
//! | [`forecast`] | what the optimizer would choose for a scene, in words and figures |
//! | [`calibrate`] | finds the heads of a model that attend to the answer of a question |
//! | [`telemetry`], [`coefficients`] | reports of devices and networks, and the usual costs of their classes
//! |
//! | [`scene`], [`book`] | scenes: their settings, and the current ones |
//! | [`access`] | tenants, API keys, users: checks, current ones, quotas |
//! | [`traffic`] | statistics of requests, by minute |
//! | [`store`] | all of these in the database |
//! | [`upkeep`] | reads settings from the database and writes usage to it |
//! | [`metrics`], [`trace`] | metrics and spans of requests |
//! | [`admin`] | the console and its API |
//! | [`api`] | routes; `baton_edge` has connections and their limits |
//! | [`http`] | middleware: request ids, client addresses, protection from other sites' pages |
//! | [`pages`] | pages for a browser at the service's address |
//! | [`config`], [`cli`], [`serve`] | settings, commands, the running program |
//!
//! Never: logs or stores a prompt. Always: decisions are pure and the async side never blocks on the engine.

mod assist;
mod desk;
mod job;
mod observe;
mod recorder;
mod refining;
mod reload;

pub mod access;
pub mod admin;
pub mod api;
pub mod book;
pub mod calibrate;
pub mod cli;
pub mod coefficients;
pub mod completion;
pub mod config;
pub mod constrain;
pub mod cost;
pub mod forecast;
pub mod http;
pub mod logprobs;
pub mod metrics;
pub mod pages;
pub mod planning;
pub mod scene;
pub mod scheduler;
pub mod serve;
pub mod service;
pub mod store;
pub mod stream;
pub mod telemetry;
pub mod tools;
pub mod trace;
pub mod traffic;
pub mod upkeep;
pub mod worker;

pub use desk::Clock;
