//! Handles Ctrl-C and requests to terminate.
//!
//! While a [`Watch`] lives, its owner gets the first signal and cleans up. A signal without an owner, and any
//! later signal before the owner has finished, ends the program at once. So Ctrl-C works in every step of a
//! command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::models::pull::Stop;

/// What the user or the system asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// A request to terminate.
    Terminate,
}

impl Signal {
    /// Returns the exit status of a program that the signal ended: 128 plus the signal's number.
    pub fn status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// A signal stopped the command, and it has cleaned up. There is no message, only an exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped(pub Signal);

/// Decides who gets a signal. Pure.
#[derive(Debug, Default)]
struct Listeners {
    watches: usize,
    /// The owners of watches were told, and have not finished.
    told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Tell the owners of the watches.
    Tell,
    /// End the program at once.
    End,
}

impl Listeners {
    fn hear(&mut self) -> Verdict {
        if self.watches == 0 || self.told {
            return Verdict::End;
        }
        self.told = true;
        Verdict::Tell
    }

    fn begin(&mut self) {
        self.watches += 1;
    }

    fn finish(&mut self) {
        self.watches -= 1;
        self.told &= self.watches > 0;
    }
}

#[derive(Debug)]
struct Shared {
    listeners: Mutex<Listeners>,
    told: watch::Sender<Option<Signal>>,
}

impl Shared {
    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, signal: Signal) {
        // Told under the lock, so that a watch that ends at the same time does not leave the signal behind.
        let mut listeners = self.listeners();
        match listeners.hear() {
            Verdict::Tell => drop(self.told.send_replace(Some(signal))),
            Verdict::End => {
                baton_terminal::leave();
                std::process::exit(signal.status().into());
            }
        }
    }
}

/// The signals of this process, from its start on.
#[derive(Debug, Clone)]
pub(super) struct Interrupts(Arc<Shared>);

impl Interrupts {
    /// Starts to listen for signals.
    pub(super) fn listen() -> Self {
        let shared = Arc::new(Shared { listeners: Mutex::default(), told: watch::Sender::new(None) });
        let heard = Arc::clone(&shared);
        let mut signals = Signals::open();
        tokio::spawn(async move {
            loop {
                heard.hear(signals.next().await);
            }
        });
        Self(shared)
    }

    /// Makes the caller the owner of signals while the result lives.
    pub(super) fn watch(&self) -> Watch {
        let mut listeners = self.0.listeners();
        listeners.begin();
        if listeners.watches == 1 {
            self.0.told.send_replace(None);
        }
        Watch { told: self.0.told.subscribe(), shared: Arc::clone(&self.0) }
    }

    /// Does work that can be stopped. At a signal, stops it and waits until it has cleaned up; returns the
    /// signal too.
    pub(super) async fn stopping<T>(&self, work: impl AsyncFnOnce(Stop) -> T) -> (T, Option<Signal>) {
        let ((stopper, stop), mut watch) = (Stop::new(), self.watch());
        let mut work = std::pin::pin!(work(stop));
        tokio::select! {
            done = &mut work => (done, None),
            signal = watch.signal() => {
                stopper.send_replace(true);
                (work.await, Some(signal))
            }
        }
    }
}

/// The right to clean up after a signal.
#[derive(Debug)]
pub(super) struct Watch {
    told: watch::Receiver<Option<Signal>>,
    shared: Arc<Shared>,
}

impl Watch {
    /// Waits for a signal.
    pub(super) async fn signal(&mut self) -> Signal {
        let told = self.told.wait_for(Option::is_some).await.map(|signal| *signal);
        // The sender lives in `shared`, so waiting never fails.
        told.ok().flatten().unwrap_or(Signal::Interrupt)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.listeners().finish();
    }
}

/// The system's signal handlers. If a handler cannot be installed, the system's default action stays.
#[cfg(unix)]
struct Signals {
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn open() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            () = heard(&mut self.interrupt) => Signal::Interrupt,
            () = heard(&mut self.terminate) => Signal::Terminate,
        }
    }
}

#[cfg(unix)]
async fn heard(signals: &mut Option<tokio::signal::unix::Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// The events of the console. If a handler cannot be installed, the system's default action stays.
#[cfg(windows)]
struct Signals {
    interrupt: Option<tokio::signal::windows::CtrlC>,
    stop: Option<tokio::signal::windows::CtrlBreak>,
    /// The window is closed. The system ends the program a few seconds later.
    close: Option<tokio::signal::windows::CtrlClose>,
}

#[cfg(windows)]
impl Signals {
    fn open() -> Self {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close};
        Self { interrupt: ctrl_c().ok(), stop: ctrl_break().ok(), close: ctrl_close().ok() }
    }

    async fn next(&mut self) -> Signal {
        let (interrupt, stop, close) = (&mut self.interrupt, &mut self.stop, &mut self.close);
        tokio::select! {
            Some(Some(())) = async { Some(interrupt.as_mut()?.recv().await) } => Signal::Interrupt,
            Some(Some(())) = async { Some(stop.as_mut()?.recv().await) } => Signal::Terminate,
            Some(Some(())) = async { Some(close.as_mut()?.recv().await) } => Signal::Terminate,
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobodys_signal_and_a_second_one_end_the_program() {
        let mut listeners = Listeners::default();
        assert_eq!(listeners.hear(), Verdict::End);
        listeners.begin();
        assert_eq!((listeners.hear(), listeners.hear()), (Verdict::Tell, Verdict::End));
        listeners.finish();
        assert_eq!(listeners.hear(), Verdict::End);
        // A watch that begins later gets signals again.
        listeners.begin();
        assert_eq!(listeners.hear(), Verdict::Tell);
        listeners.begin();
        listeners.finish();
        assert_eq!(listeners.hear(), Verdict::End, "the first owner has not finished");
    }

    #[tokio::test]
    async fn each_watch_is_told_of_its_own_signals_only() {
        let interrupts =
            Interrupts(Arc::new(Shared { listeners: Mutex::default(), told: watch::Sender::new(None) }));
        let mut first = interrupts.watch();
        interrupts.0.hear(Signal::Terminate);
        assert_eq!(first.signal().await, Signal::Terminate);
        drop(first);
        let mut second = interrupts.watch();
        let unheard =
            tokio::select! { biased; _ = second.signal() => false, () = std::future::ready(()) => true };
        assert!(unheard, "the signal before was the first watch's");
        interrupts.0.hear(Signal::Interrupt);
        assert_eq!(second.signal().await, Signal::Interrupt);
    }
}
