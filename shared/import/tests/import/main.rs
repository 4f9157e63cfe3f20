//! Import through its public interface: small random model folders, their logits compared with a plain
//! reference, and every way in which a folder can be wrong.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod adapters;
mod classes;
mod folder;
mod logits;
mod output;
mod reference;
mod refusals;
mod tokenizers;
