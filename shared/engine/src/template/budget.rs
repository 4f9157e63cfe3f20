//! What a template may use: steps, and bytes that it makes or reads.

use std::cell::Cell;

/// Steps allowed for a conversation without messages.
const STEPS_BASE: u64 = 100_000;
/// Further steps for each message or tool; real templates need about a hundred.
const STEPS_PER_MESSAGE: u64 = 2_000;
/// The most steps, for any number of messages.
const STEPS_MAX: u64 = 1_000_000;
/// Bytes allowed for a conversation without text.
const BYTES_BASE: u64 = 64 << 20;
/// Further bytes for each byte of the conversation: templates trim, split and search a text several times.
const BYTES_PER_INPUT_BYTE: u64 = 256;

/// Why a template stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The template refused the conversation (`raise_exception`).
    Raised(String),
    /// All steps are used.
    Steps,
    /// All bytes are used.
    Bytes,
    /// What it did is an error, as it is in Jinja2.
    Failed(String),
}

/// The result of an operation of a template.
pub(super) type Outcome<T> = Result<T, Stop>;

/// Returns the error of an operation that Jinja2 refuses too.
pub(super) fn failed<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(message.into()))
}

/// What is left of a template's limits.
#[derive(Debug)]
pub(super) struct Budget {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    /// The limit of steps.
    pub(super) steps_max: u64,
    /// The limit of bytes.
    pub(super) bytes_max: u64,
}

impl Budget {
    /// Returns the budget for a conversation of so many messages and tools, and bytes of text.
    pub(super) fn new(items: usize, bytes: usize) -> Budget {
        let steps_max =
            (items as u64).saturating_mul(STEPS_PER_MESSAGE).saturating_add(STEPS_BASE).min(STEPS_MAX);
        let bytes_max = (bytes as u64).saturating_mul(BYTES_PER_INPUT_BYTE).saturating_add(BYTES_BASE);
        Budget { steps: Cell::new(steps_max), bytes: Cell::new(bytes_max), steps_max, bytes_max }
    }

    /// Takes one step.
    pub(super) fn step(&self) -> Outcome<()> {
        self.steps.set(self.steps.get().checked_sub(1).ok_or(Stop::Steps)?);
        Ok(())
    }

    /// Takes bytes that are made or read.
    pub(super) fn charge(&self, bytes: usize) -> Outcome<()> {
        self.bytes.set(self.bytes.get().checked_sub(bytes as u64).ok_or(Stop::Bytes)?);
        Ok(())
    }
}
