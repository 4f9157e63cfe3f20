//! Limits how many callers that have not yet proved who they are may be connected at once, and ends the
//! oldest if there are too many.
//!
//! A device finishes its handshake within a few round trips; a caller that stays longer is slow or sends
//! nothing. So no new caller is turned away: if there is no free slot, the oldest caller is ended. One
//! address has few slots, so a stranger evicts only its own calls. Addresses at which known devices were
//! met have slots that strangers cannot take. An address proves nothing: it only decides who may wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most callers from one address.
const PER_ADDRESS_MAX: usize = 16;
/// Most callers from all addresses at which no known device was met; the addresses of known devices share
/// as many again.
const PER_KIND_MAX: usize = 32;

/// The callers that are connected now; clones share one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    /// In the order of arrival.
    taken: BTreeMap<u64, Slot>,
    next: u64,
    /// Addresses at which known devices were met.
    known: BTreeSet<IpAddr>,
}

#[derive(Debug)]
struct Slot {
    from: IpAddr,
    known: bool,
    stream: TcpStream,
    evicted: Arc<AtomicBool>,
}

/// A caller's slot. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct CallerSlot {
    callers: Callers,
    number: u64,
    evicted: Arc<AtomicBool>,
}

impl CallerSlot {
    /// Returns whether this caller was ended in favour of a newer one. Then nothing more can be read from
    /// it.
    pub(crate) fn evicted(&self) -> bool {
        self.evicted.load(Ordering::Acquire)
    }
}

impl Drop for CallerSlot {
    fn drop(&mut self) {
        self.callers.slots().taken.remove(&self.number);
    }
}

impl Callers {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a known device was met at this address.
    pub(crate) fn met(&self, address: IpAddr) {
        self.slots().known.insert(address.to_canonical());
    }

    /// Gives a caller a slot. If the caller must be evicted later, `stream` is shut down.
    ///
    /// # Errors
    /// Fails if the system has no file handle left.
    pub(crate) fn take_slot(&self, stream: &TcpStream, from: SocketAddr) -> std::io::Result<CallerSlot> {
        let stream = stream.try_clone()?;
        let mut slots = self.slots();
        let from = from.ip().to_canonical();
        let known = slots.known.contains(&from);
        slots.make_room(PER_ADDRESS_MAX, |slot| slot.from == from);
        slots.make_room(PER_KIND_MAX, |slot| slot.known == known);
        let (number, evicted) = (slots.next, Arc::new(AtomicBool::new(false)));
        slots.next += 1;
        slots.taken.insert(number, Slot { from, known, stream, evicted: Arc::clone(&evicted) });
        Ok(CallerSlot { callers: self.clone(), number, evicted })
    }

    /// Ends all callers.
    pub(crate) fn end_all(&self) {
        for slot in self.slots().taken.values() {
            let _ended_before = slot.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Slots {
    /// Ends the oldest of these callers if there are already `most` of them.
    fn make_room(&mut self, most: usize, among: impl Fn(&Slot) -> bool) {
        let mut numbers = self.taken.iter().filter(|(_, slot)| among(slot)).map(|(number, _)| *number);
        let Some(oldest) = numbers.next() else { return };
        if numbers.count() + 1 < most {
            return;
        }
        if let Some(slot) = self.taken.remove(&oldest) {
            slot.evicted.store(true, Ordering::Release);
            // Only the reading half: the caller's thread wakes up and can still tell the caller why.
            let _ended_before = slot.stream.shutdown(Shutdown::Read);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::home::identity::PublicKey;
    use crate::wire::channel::tests::{identity, listener};
    use crate::wire::channel::{Admission, Channel, ChannelError, Purpose};

    const LONG: Duration = Duration::from_secs(120);

    /// Returns both ends of a connection.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 1))
    }

    #[test]
    fn the_oldest_caller_of_an_address_gives_way_and_nobody_elses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let callers = Callers::default();
        let (_other, stream) = connection(&listener);
        let other = callers.take_slot(&stream, at(2)).unwrap();
        let mut slots = Vec::new();
        for _ in 0..PER_ADDRESS_MAX + 3 {
            let (caller, stream) = connection(&listener);
            slots.push((callers.take_slot(&stream, at(1)).unwrap(), caller, stream));
        }
        let ended: Vec<bool> = slots.iter().map(|(slot, ..)| slot.evicted()).collect();
        assert_eq!(ended, [vec![true; 3], vec![false; PER_ADDRESS_MAX]].concat());
        assert!(!other.evicted());
        // The thread that reads from it wakes up and sees the end.
        let mut byte = [0];
        assert_eq!((&slots[0].2).read(&mut byte).unwrap(), 0);
        // A slot that was freed is not counted as evicted.
        drop(slots.pop());
        let (_caller, stream) = connection(&listener);
        let _newest = callers.take_slot(&stream, at(1)).unwrap();
        assert_eq!(slots.iter().filter(|(slot, ..)| slot.evicted()).count(), 3);
    }

    #[test]
    fn many_strangers_take_no_place_of_a_known_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let callers = Callers::default();
        callers.met("::ffff:10.0.0.250".parse().unwrap());
        let (_known, stream) = connection(&listener);
        let known = callers.take_slot(&stream, at(250)).unwrap();
        let mut slots = Vec::new();
        for stranger in 0..PER_KIND_MAX as u8 * 2 {
            let (caller, stream) = connection(&listener);
            slots.push((callers.take_slot(&stream, at(stranger)).unwrap(), caller, stream));
        }
        assert!(!known.evicted());
        assert_eq!(slots.iter().filter(|(slot, ..)| !slot.evicted()).count(), PER_KIND_MAX);
        assert!(slots.iter().rev().take(PER_KIND_MAX).all(|(slot, ..)| !slot.evicted()), "the newest stay");
    }

    #[test]
    fn a_caller_that_gave_way_hears_so() {
        let (caller, called) = (identity(), identity());
        let (listener, address) = listener();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                // The caller is ended before its first message was read.
                stream.shutdown(Shutdown::Read).unwrap();
                let (nobody, evicted) = (|_: &PublicKey| false, || true);
                let admission =
                    Admission { allowed: &nobody, strangers: true, present: None, evicted: Some(&evicted) };
                let answered = Channel::accept_by(stream, &called, &admission, LONG);
                assert!(matches!(answered, Err(ChannelError::Busy)), "{answered:?}");
            });
            let heard = Channel::connect(address, &caller, called.public(), Purpose::Control, LONG);
            assert!(heard.is_err());
        });
        // What a caller is told after it has shown that it is a device.
        let (listener, address) = self::listener();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut opening = [0; 7];
                stream.read_exact(&mut opening).unwrap();
                stream.write_all(b"BTNR\x00\x01\xff").unwrap();
                let _until_it_goes = stream.read_to_end(&mut Vec::new());
            });
            let heard = Channel::connect(address, &caller, called.public(), Purpose::Control, LONG);
            assert!(matches!(heard, Err(ChannelError::Busy)), "{heard:?}");
        });
    }
}
