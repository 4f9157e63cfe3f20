//! Tests what happens between two checks of the engine's thread: requests that come and readers that
//! disconnect at a bad moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_cloud::Clock;
use baton_cloud::service::{ServiceOptions, Terms};
use baton_protocol::{AssistEvent, ErrorCode};

use crate::client::HANG;
use crate::quotas::{gate, tenant};
use crate::world::{by_hand, document, drain, options, request, run_all};

type Deed = Box<dyn FnOnce() + Send>;

/// A clock that tests move by hand, and that runs a function when it is read the next time.
#[derive(Clone, Default)]
struct Trap(Arc<Inner>);

#[derive(Default)]
struct Inner {
    now_ms: AtomicU64,
    deed: Mutex<Option<Deed>>,
}

impl Trap {
    fn clock(&self) -> Clock {
        let inner = self.0.clone();
        Clock::from_fn(move || {
            let deed = inner.deed.lock().unwrap().take();
            if let Some(deed) = deed {
                deed();
            }
            Duration::from_millis(inner.now_ms.load(Ordering::SeqCst))
        })
    }

    fn advance(&self, ms: u64) {
        self.0.now_ms.fetch_add(ms, Ordering::SeqCst);
    }

    fn set(&self, deed: impl FnOnce() + Send + 'static) {
        *self.0.deed.lock().unwrap() = Some(Box::new(deed));
    }
}

#[test]
fn a_request_that_expires_before_it_was_looked_at_is_told_so() {
    let trap = Trap::default();
    let (service, mut host) = by_hand(ServiceOptions { clock: trap.clock(), ..options() });
    let (gate, asked) = (gate(), Arc::new(Mutex::new(None)));
    trap.set({
        let (trap, service, gate, asked) = (trap.clone(), service.clone(), gate.clone(), asked.clone());
        move || {
            let permit = gate.admit(&tenant(Some(100_000))).unwrap();
            let terms = Terms { deadline: Some(Duration::from_millis(1)), ..Terms::default() };
            let request = request("doc-qa", &document(3), 4);
            let stream = service.assist_for(&request, terms, Some(permit.payer())).unwrap();
            *asked.lock().unwrap() = Some((permit, stream));
            trap.advance(50);
        }
    });
    assert!(host.turn().is_none());
    let (_permit, mut stream) = asked.lock().unwrap().take().expect("it was asked while a turn began");
    let events = drain(&mut stream);
    let [AssistEvent::Error(body)] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(body.error.code, ErrorCode::Timeout), "{body}");
    let stats = service.stats();
    assert_eq!((stats.expired_total, stats.closed_total, stats.waiting), (1, 1, 0));
    let reserved: u64 = gate.deltas().iter().map(|delta| delta.reserved).sum();
    assert_eq!(reserved, 0, "nothing stays set aside");
}

#[tokio::test]
async fn nobody_waits_for_an_engine_that_is_gone() {
    let (service, host) = by_hand(options());
    let mut stream = service.assist(&request("doc-qa", &document(3), 4)).unwrap();
    drop(host);
    let next = tokio::time::timeout(HANG, stream.next()).await.expect("it ends");
    assert!(next.is_none(), "{next:?}");
    assert!(service.assist(&request("doc-qa", &document(3), 4)).is_err());
}

#[test]
fn a_reader_that_goes_while_its_answer_is_parked_leaves_nothing_behind() {
    let long = request("doc-qa", &document(6), 1200);
    let trap = Trap::default();
    let start = || by_hand(ServiceOptions { slots: 1, clock: trap.clock(), ..options() });
    let (service, mut host) = start();
    let stream = service.assist(&long).unwrap();
    let passes = run_all(&mut host);
    assert_eq!(service.stats().parked, 1);
    drop(stream);

    let (service, mut host) = start();
    let stream = service.assist(&long).unwrap();
    for _ in 0..passes {
        let pass = host.turn().unwrap();
        host.commit(pass);
    }
    // The next turn parks it. Another answer is cancelled, so that the turn has something to do in any order.
    drop(service.assist(&long).unwrap());
    trap.set(move || drop(stream));
    assert!(host.turn().is_none());
    let stats = service.stats();
    assert_eq!((stats.parked, stats.running, stats.waiting, stats.closed_total), (0, 0, 0, 2));
}
