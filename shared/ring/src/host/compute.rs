//! Carries out the engine work that cores ask for: the head's on the thread of its caller, a worker's on a
//! thread of its own.

mod head;
mod worker;

pub(super) use head::{HeadEngine, Left, Request};
pub(super) use worker::WorkerEngine;
