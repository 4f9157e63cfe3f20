//! Writes answers.
//!
//! [`answer`] is one answer's tokens, [`scheduler`] decides who runs (both pure), [`host`] is the one
//! thread that drives an engine or a ring by them.

pub mod answer;
pub mod clock;
pub mod evidence;
pub mod hooks;
pub mod host;
pub mod job;
pub mod planted;
pub mod scheduler;
pub mod speculation;
pub mod text;
pub mod thinking;
pub mod unread;
