//! Decides which model computes its pass, if several models share one machine.
//!
//! Always: one pass computes at a time, so that each has all cores. Hosts get their turns in the order in
//! which they came. So a busy model never makes another one wait for more than one of its passes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The queue of hosts.
#[derive(Debug, Default)]
pub struct Turns {
    tickets: Mutex<Tickets>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// Tickets given out so far.
    given: u64,
    /// Tickets whose turn is over.
    done: u64,
}

/// One host's turn on the machine, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for this host's turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut tickets = self.lock();
        let own = tickets.given;
        tickets.given += 1;
        let waits = |tickets: &mut Tickets| tickets.done < own;
        drop(self.called.wait_while(tickets, waits).unwrap_or_else(PoisonError::into_inner));
        Turn(self)
    }

    /// The lock is used even after a panic, because both counters are still correct.
    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().done += 1;
        self.0.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn one_at_a_time_and_nobody_is_passed_over() {
        let (turns, inside) = (Turns::default(), AtomicUsize::new(0));
        let (said, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = turns.take();
            for worker in 0..3 {
                let (turns, inside, said) = (&turns, &inside, said.clone());
                scope.spawn(move || {
                    let turn = turns.take();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    said.send(worker).unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                });
                // It must be in the queue before the next one comes.
                while turns.lock().given < worker + 2 {
                    std::thread::yield_now();
                }
            }
            assert!(heard.try_recv().is_err(), "nobody is let in beside the first");
            drop(first);
            let order: Vec<u64> = (0..3).map(|_| heard.recv().unwrap()).collect();
            assert_eq!(order, [0, 1, 2]);
        });
    }
}
