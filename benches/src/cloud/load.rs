//! A closed loop: a fixed number of clients, each of which sends its next request as soon as its answer has
//! ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::service::{Ask, Service, TEMPLATE_TOKENS, Took};
use crate::engine::letters::Letters;

/// The shape of every request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Number of tokens in the prompt.
    pub prompt_tokens: usize,
    /// L.
    pub answer_tokens: usize,
}

impl Shape {
    /// Makes a request whose prompt shares no prefix with others.
    pub(super) fn ask(self, letters: &mut Letters) -> Ask {
        let user = letters.prompt(self.prompt_tokens - TEMPLATE_TOKENS);
        Ask { system: None, user, tokens: self.answer_tokens }
    }
}

/// The result of a closed loop in its steady state.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    /// Requests per second.
    pub per_s: f64,
    /// The counted requests.
    pub took: Vec<Took>,
}

/// Keeps `clients` requests running until `clients + counted` requests have ended. The first `clients` of
/// them do not count.
///
/// The first ones are left out because all clients start together, which never happens in the steady state.
pub(super) fn closed_loop(
    service: &Service,
    shape: Shape,
    clients: usize,
    counted: usize,
) -> Result<Settled> {
    let enough = AtomicBool::new(false);
    let ended: Mutex<Vec<(Instant, Took)>> = Mutex::new(Vec::new());
    let client = |at: usize| -> Result<()> {
        let mut letters = Letters::new(1000 + at as u64);
        while !enough.load(Ordering::Relaxed) {
            let took = service
                .assist(&shape.ask(&mut letters))
                .inspect_err(|_| enough.store(true, Ordering::Relaxed))?;
            let mut ended = ended.lock().expect("no holder of this lock panics");
            ended.push((Instant::now(), took));
            if ended.len() >= clients + counted {
                enough.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients)
            .map(|at| {
                scope.spawn({
                    let client = &client;
                    move || client(at)
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a client's thread does not panic"))
    })?;
    let ended = ended.into_inner().expect("no holder of this lock panics");
    settled(&ended, clients, counted).context("the loop ended too early")
}

fn settled(ended: &[(Instant, Took)], clients: usize, counted: usize) -> Option<Settled> {
    // From the end of the last answer that does not count to the end of the last one that counts.
    let begun = ended.get(clients - 1)?.0;
    let last = ended.get(clients + counted - 1)?.0;
    let took = ended[clients..clients + counted].iter().map(|(_, took)| *took).collect();
    Some(Settled {
        per_s: counted as f64 / last.duration_since(begun).max(Duration::from_nanos(1)).as_secs_f64(),
        took,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answers_do_not_count() {
        let took = Took { ttft: Duration::ZERO, slot: Duration::ZERO, prompt_tokens: 1, cached_tokens: 0 };
        let begun = Instant::now();
        let at = |ms: u64| (begun + Duration::from_millis(ms), took);
        let ended = [at(900), at(1000), at(1500), at(2000), at(2500), at(3000)];
        let settled = settled(&ended, 2, 4).unwrap();
        assert!((settled.per_s - 2.0).abs() < 1e-9 && settled.took.len() == 4, "{settled:?}");
        assert!(super::settled(&ended, 2, 5).is_none());
    }
}
