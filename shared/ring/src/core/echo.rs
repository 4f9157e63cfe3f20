//! Measures one network path by echoes over an open link, and answers echoes.
//!
//! A few empty echoes give the latency. Then larger and larger ones go in each direction, until one takes
//! long enough to judge. Bytes and time are bounded: at most 7 MB in each direction.

use std::time::Duration;

use crate::wire::frame::{ECHO_BYTES_MAX, EchoData, Frame, LinkSpeed};

/// How long measuring one path may take.
pub const MEASURE: Duration = Duration::from_secs(3);
/// Number of empty echoes; the fastest one counts.
const PINGS: u32 = 5;
/// Bytes of the first echo in each direction; each further echo has four times as many.
const FIRST_BYTES: u32 = 64 << 10;
/// An echo that takes this much longer than the latency is long enough to judge.
const LONG: Duration = Duration::from_millis(20);

/// Returns the answer to an echo.
pub fn answer(echo: &EchoData) -> Frame {
    // Decoding has checked that the number is within its bound.
    let bytes = vec![0; echo.reply.min(ECHO_BYTES_MAX) as usize];
    Frame::Echoed(EchoData { number: echo.number, reply: 0, bytes })
}

/// What is measured at present.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// So many empty echoes are still to come, the present one included.
    Latency { left: u32 },
    /// The latency is known; nothing is under way.
    Paused,
    /// Bytes go there.
    There,
    /// Bytes come back; the rate there is known.
    Back { there_bytes_per_s: f64 },
}

/// What an answer to an echo gives.
#[derive(Debug, Clone, PartialEq)]
pub enum EchoNews {
    /// This echo is to be sent next.
    Next(EchoData),
    /// The latency in seconds. [`Echoes::go_on`] measures the rates too.
    Latency(f64),
    /// Everything is measured.
    Speed(LinkSpeed),
    /// It is not the answer to the present echo.
    Wrong,
}

/// Measures one path, echo by echo.
#[derive(Debug, Clone, PartialEq)]
pub struct Echoes {
    /// Number of the present echo.
    number: u32,
    /// Bytes that its answer must have.
    back: u32,
    /// Bytes that are measured with.
    bytes: u32,
    sent_at: Duration,
    /// The fastest empty echo.
    fastest: Duration,
    stage: Stage,
    ends_at: Duration,
}

impl Echoes {
    /// Begins to measure the latency. Returns the first echo too.
    pub fn latency(now: Duration, within: Duration) -> (Self, Frame) {
        let mut echoes = Self {
            number: 0,
            back: 0,
            bytes: 0,
            sent_at: now,
            fastest: Duration::MAX,
            stage: Stage::Latency { left: PINGS },
            ends_at: now + within,
        };
        let first = echoes.send(0, 0, now);
        (echoes, Frame::Echo(first))
    }

    fn send(&mut self, there: u32, back: u32, now: Duration) -> EchoData {
        self.number += 1;
        (self.back, self.sent_at) = (back, now);
        EchoData { number: self.number, reply: back, bytes: vec![0; there as usize] }
    }

    /// Begins to measure the rates, after the latency was known. Returns the echo that is to be sent.
    pub fn go_on(&mut self, now: Duration, within: Duration) -> Frame {
        (self.stage, self.bytes, self.ends_at) = (Stage::There, FIRST_BYTES, now + within);
        Frame::Echo(self.send(self.bytes, 0, now))
    }

    /// Takes an answer.
    pub fn heard(&mut self, echoed: &EchoData, now: Duration) -> EchoNews {
        if echoed.number != self.number || echoed.bytes.len() != self.back as usize {
            return EchoNews::Wrong;
        }
        let took = now.saturating_sub(self.sent_at);
        match self.stage {
            Stage::Paused => EchoNews::Wrong,
            Stage::Latency { left } => {
                self.fastest = self.fastest.min(took);
                if left > 1 {
                    self.stage = Stage::Latency { left: left - 1 };
                    return EchoNews::Next(self.send(0, 0, now));
                }
                self.stage = Stage::Paused;
                EchoNews::Latency(self.latency_s())
            }
            Stage::There => match self.judged(took) {
                None => EchoNews::Next(self.send(self.bytes, 0, now)),
                Some(there_bytes_per_s) => {
                    (self.stage, self.bytes) = (Stage::Back { there_bytes_per_s }, FIRST_BYTES);
                    EchoNews::Next(self.send(0, self.bytes, now))
                }
            },
            Stage::Back { there_bytes_per_s } => match self.judged(took) {
                None => EchoNews::Next(self.send(0, self.bytes, now)),
                Some(back_bytes_per_s) => {
                    self.stage = Stage::Paused;
                    let latency_s = self.latency_s();
                    EchoNews::Speed(LinkSpeed { latency_s, there_bytes_per_s, back_bytes_per_s })
                }
            },
        }
    }

    fn latency_s(&self) -> f64 {
        self.fastest.as_secs_f64() / 2.0
    }

    /// Returns the rate if the echo was long enough; else the next one has more bytes.
    fn judged(&mut self, took: Duration) -> Option<f64> {
        let moving = took.saturating_sub(self.fastest);
        if moving >= LONG || self.bytes >= ECHO_BYTES_MAX {
            return Some(f64::from(self.bytes) / moving.as_secs_f64().max(1e-6));
        }
        self.bytes = (self.bytes * 4).min(ECHO_BYTES_MAX);
        None
    }

    /// Returns when the measurement has taken too long.
    pub fn ends_at(&self) -> Duration {
        self.ends_at
    }
}

#[cfg(test)]
mod tests;
