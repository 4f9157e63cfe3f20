//! The cloud half: prefills a prompt with the full model, refines it, streams at most L tokens.
//!
//! | module | holds |
//! |---|---|
//! | [`scheduler`] | queue, slots, KV budget, chunked prefill: pure |
//! | [`worker`] | the engine's thread: performs what the scheduler decides |
//! | [`service`] | requests in, event streams out, without HTTP |
//! | [`stream`] | one answer as its reader sees it |
//! | [`completion`], [`tools`], [`logprobs`] | a chat completion as the service sees it; calls; log probabilities |
//! | [`constrain`] | answers that a schema or grammar allows |
//! | [`planning`] | r and L of one request |
//! | [`cost`] | medians of the cloud's own passes |
//! | [`forecast`] | what the optimizer would answer for a scene, in words and figures |
//! | [`calibrate`] | heads of a model that look at what answers a question |
//! | [`telemetry`], [`coefficients`] | what devices and networks report, and what it says of their classes |
//! | [`scene`], [`book`] | scenes: checked, in force |
//! | [`access`] | tenants, API keys, users: checked, in force, counted |
//! | [`traffic`] | what requests came to, by minute |
//! | [`store`] | all of these in the database |
//! | [`upkeep`] | settings brought in, usage written down |
//! | [`metrics`], [`trace`] | what is told of requests: figures, spans |
//! | [`admin`] | the console and its API |
//! | [`api`] | routes; `baton_edge` has connections and their limits |
//! | [`http`] | what all routes have in common: names of requests, true addresses, own pages only |
//! | [`pages`] | what a browser finds at the service's address |
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
