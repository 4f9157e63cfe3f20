//! Tests the cloud service from outside: its scheduler simulated, its answers in virtual time, its API over
//! real sockets on loopback.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod access;
mod admin;
mod api;
mod api_refusals;
mod calibrate;
mod chat;
mod client;
mod completions;
mod edge;
mod experiments;
mod handoff;
mod import;
mod isolation;
mod load;
mod models;
mod observability;
mod preemption;
mod program;
mod progress;
mod quotas;
mod races;
mod residency;
mod running;
mod service;
mod service_simulation;
mod strangers;
mod tls;
mod tools;
mod unread;
mod verify;
mod world;
