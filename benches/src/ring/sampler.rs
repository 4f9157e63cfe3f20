//! Samples the disk reads and memory of processes periodically, so that the values between two times are
//! known after the processes have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use crate::engine::machine;

/// Time between two samples: far less than the time of a token that reads from disk.
const PERIOD: Duration = Duration::from_millis(10);

/// One sample of a process.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    read_bytes: u64,
    unreclaimable: u64,
}

/// All samples of a process.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Vec<Look>);

impl Seen {
    /// Returns the bytes that the process read from disk between two times; 0 if there are no samples.
    pub(super) fn read_between(&self, from: Instant, to: Instant) -> f64 {
        self.read_until(to) - self.read_until(from)
    }

    /// Returns the bytes read until a time, with linear interpolation between samples.
    fn read_until(&self, at: Instant) -> f64 {
        let behind = self.0.partition_point(|look| look.at <= at);
        let Some(before) = behind.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return self.0.first().map_or(0.0, |look| look.read_bytes as f64);
        };
        let Some(after) = self.0.get(behind) else { return before.read_bytes as f64 };
        let share = (at - before.at).as_secs_f64() / (after.at - before.at).as_secs_f64();
        before.read_bytes as f64 + share * (after.read_bytes - before.read_bytes) as f64
    }

    /// Returns the peak of unreclaimable memory in bytes.
    pub(super) fn unreclaimable(&self) -> u64 {
        self.0.iter().map(|look| look.unreclaimable).max().unwrap_or(0)
    }
}

/// A thread that samples processes.
pub(super) struct Sampler {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Seen>>,
}

impl Sampler {
    /// Starts sampling.
    pub(super) fn start(pids: Vec<u32>) -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ended);
        let look = move || {
            let mut seen = vec![Seen::default(); pids.len()];
            while !asked.load(Ordering::Acquire) {
                for (pid, seen) in pids.iter().zip(&mut seen) {
                    // A process that has ended gives no more samples.
                    if let (Ok(read_bytes), Ok(memory)) = (machine::read_bytes(*pid), machine::memory(*pid)) {
                        let unreclaimable = memory.unreclaimable;
                        seen.0.push(Look { at: Instant::now(), read_bytes, unreclaimable });
                    }
                }
                std::thread::sleep(PERIOD);
            }
            seen
        };
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(look);
        Ok(Self { ended, thread: thread.context("start a thread that looks at processes")? })
    }

    /// Stops sampling, and returns the samples in the order of the processes.
    pub(super) fn finish(self) -> Result<Vec<Seen>> {
        self.ended.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow!("the thread that looks at processes has ended before"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_looks_bytes_are_in_proportion() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let look = |ms, read_bytes| Look { at: after(ms), read_bytes, unreclaimable: ms };
        let seen = Seen(vec![look(0, 100), look(100, 300), look(200, 300)]);
        assert!((seen.read_between(after(50), after(300)) - 100.0).abs() < 1e-6);
        assert!((seen.read_between(after(0), after(100)) - 200.0).abs() < 1e-6);
        assert_eq!((seen.unreclaimable(), Seen::default().unreclaimable()), (200, 0));
        assert!(Seen::default().read_between(begun, after(1)).abs() < 1e-9);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_seen() {
        let sampler = Sampler::start(vec![std::process::id()]).unwrap();
        std::thread::sleep(PERIOD * 5);
        assert!(sampler.finish().unwrap()[0].unreclaimable() > 0);
    }
}
