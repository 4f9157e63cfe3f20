//! The end-to-end harness: starts the real programs, drives them, breaks them. The demo is built on it.
//!
//! Never part of the product: nothing in `cloud` or `device` depends on it. What always holds: every process
//! and socket that it opens is closed when its handle is dropped, also after a panic.

pub mod admin;
mod at;
pub mod balancer;
pub mod child;
pub mod clients;
pub mod demo;
pub mod engine;
pub mod home;
pub mod hostile;
pub mod http;
pub mod kustomize;
pub mod link;
pub mod llama;
pub mod pair;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod question;
pub mod reference;
pub mod setting;
pub mod sim;
pub mod simulation;
pub mod stop;
