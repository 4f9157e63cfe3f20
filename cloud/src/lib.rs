//! The cloud half: prefills a prompt with the full model, refines it, streams at most L tokens.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`], [`config`] | commands; settings of `serve` |
//! | [`serve`] | the running program: listeners, reloads, background tasks |
//! | [`api`] | routes for devices and apps; `baton_edge` has connections and their limits |
//! | [`admin`] | the console and its API |
//! | [`http`] | middleware: request ids, client addresses, protection from other sites' pages |
//! | [`service`] | requests in, event streams out, without HTTP: prompts, masks, constraints, answers |
//! | [`gate`] | quotas and limits of tenants |
//! | [`learn`] | costs and traffic, and the r and L that follow |
//! | [`observe`] | metrics and traces of requests |
//! | [`import`] | makes a model from a Hugging Face folder: converts, calibrates, measures, publishes |
//! | [`calibrate`] | finds the heads of a model that attend to the answer of a question |
//! | [`store`] | scenes, tenants, keys, users, usage in the database |
//! | [`experiment`] | experiments: arms, assignment, statistics. Pure |
//! | [`fleet`] | which models devices should have, and their registry |
//! | [`access`], [`scene`] | the values of these: tenants, keys, users; scenes |
//!
//! Modules further down this table know nothing of those further up.
//!
//! Never: logs or stores a prompt. Always: decisions are pure and the async side never blocks on the engine.

pub mod access;
pub mod admin;
pub mod api;
pub mod calibrate;
pub mod cli;
pub mod config;
pub mod experiment;
pub mod fleet;
pub mod gate;
pub mod http;
pub mod import;
pub mod learn;
pub mod observe;
pub mod scene;
pub mod serve;
pub mod service;
pub mod store;

pub use baton_generate::clock::Clock;
