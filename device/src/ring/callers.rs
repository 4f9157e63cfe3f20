//! Connections whose callers have not yet shown who they are: how many are listened to at once, and who gives way.
//!
//! A device says all it has to say within a few round trips; who stays longer is slow or says nothing. So no new caller
//! is turned away: if there is no place left, the caller that has been there longest is ended. One address
//! has few places, so that a stranger pushes out only its own calls, and addresses at which known devices were met
//! have places that strangers cannot take. Addresses prove nothing: they only decide who waits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Callers of one address.
const OF_ONE_ADDRESS: usize = 16;
/// Callers of all addresses at which no known device was met, and again of all others.
const OF_ONE_KIND: usize = 32;

/// The callers that are listened to now.
#[derive(Debug, Clone, Default)]
pub(super) struct Callers(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// In the order in which they came.
    taken: BTreeMap<u64, Place>,
    next: u64,
    /// Addresses at which known devices were met.
    known: BTreeSet<IpAddr>,
}

#[derive(Debug)]
struct Place {
    from: IpAddr,
    known: bool,
    stream: TcpStream,
    gave_way: Arc<AtomicBool>,
}

/// A caller's place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    callers: Callers,
    number: u64,
    gave_way: Arc<AtomicBool>,
}

impl Seat {
    /// Whether this caller was ended in favour of a newer one: nothing more can be read from it.
    pub(super) fn gave_way(&self) -> bool {
        self.gave_way.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.callers.places().taken.remove(&self.number);
    }
}

impl Callers {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a known device was met at this address.
    pub(super) fn met(&self, address: IpAddr) {
        self.places().known.insert(address.to_canonical());
    }

    /// A place for a caller, with the stream by which it is ended if it must give way.
    ///
    /// # Errors
    /// What the system says if it has no file handle left.
    pub(super) fn seat(&self, stream: &TcpStream, from: SocketAddr) -> std::io::Result<Seat> {
        let stream = stream.try_clone()?;
        let mut places = self.places();
        let from = from.ip().to_canonical();
        let known = places.known.contains(&from);
        places.make_room(OF_ONE_ADDRESS, |place| place.from == from);
        places.make_room(OF_ONE_KIND, |place| place.known == known);
        let (number, gave_way) = (places.next, Arc::new(AtomicBool::new(false)));
        places.next += 1;
        places.taken.insert(number, Place { from, known, stream, gave_way: Arc::clone(&gave_way) });
        Ok(Seat { callers: self.clone(), number, gave_way })
    }

    /// Ends all callers.
    pub(super) fn end_all(&self) {
        for place in self.places().taken.values() {
            let _ended_before = place.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Places {
    /// Ends the oldest of these callers until there is room for one more of `most`.
    fn make_room(&mut self, most: usize, among: impl Fn(&Place) -> bool) {
        let mut numbers = self.taken.iter().filter(|(_, place)| among(place)).map(|(number, _)| *number);
        let Some(oldest) = numbers.next() else { return };
        if numbers.count() + 1 < most {
            return;
        }
        if let Some(place) = self.taken.remove(&oldest) {
            place.gave_way.store(true, Ordering::Release);
            // Only what it may still say: its thread wakes, and can tell it why.
            let _ended_before = place.stream.shutdown(Shutdown::Read);
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
    use crate::ring::channel::{Admission, Channel, ChannelError, Purpose};
    use crate::ring::identity::{Identity, PublicKey};

    const LONG: Duration = Duration::from_secs(120);

    fn identity() -> Identity {
        Identity::generate("device".parse().unwrap()).unwrap()
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Both ends of a connection.
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
        let other = callers.seat(&stream, at(2)).unwrap();
        let mut seats = Vec::new();
        for _ in 0..OF_ONE_ADDRESS + 3 {
            let (caller, stream) = connection(&listener);
            seats.push((callers.seat(&stream, at(1)).unwrap(), caller, stream));
        }
        let ended: Vec<bool> = seats.iter().map(|(seat, ..)| seat.gave_way()).collect();
        assert_eq!(ended, [vec![true; 3], vec![false; OF_ONE_ADDRESS]].concat());
        assert!(!other.gave_way());
        // Its reader wakes and sees the end.
        let mut byte = [0];
        assert_eq!((&seats[0].2).read(&mut byte).unwrap(), 0);
        // A place that is free again is nobody's to lose.
        drop(seats.pop());
        let (_caller, stream) = connection(&listener);
        let _newest = callers.seat(&stream, at(1)).unwrap();
        assert_eq!(seats.iter().filter(|(seat, ..)| seat.gave_way()).count(), 3);
    }

    #[test]
    fn many_strangers_take_no_place_of_a_known_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let callers = Callers::default();
        callers.met("::ffff:10.0.0.250".parse().unwrap());
        let (_known, stream) = connection(&listener);
        let known = callers.seat(&stream, at(250)).unwrap();
        let mut seats = Vec::new();
        for stranger in 0..OF_ONE_KIND as u8 * 2 {
            let (caller, stream) = connection(&listener);
            seats.push((callers.seat(&stream, at(stranger)).unwrap(), caller, stream));
        }
        assert!(!known.gave_way());
        assert_eq!(seats.iter().filter(|(seat, ..)| !seat.gave_way()).count(), OF_ONE_KIND);
        assert!(seats.iter().rev().take(OF_ONE_KIND).all(|(seat, ..)| !seat.gave_way()), "the newest stay");
    }

    #[test]
    fn a_caller_that_gave_way_hears_so() {
        let (caller, called) = (identity(), identity());
        let (listener, address) = listener();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                // Ended before its first message was read.
                stream.shutdown(Shutdown::Read).unwrap();
                let (nobody, gave_way) = (|_: &PublicKey| false, || true);
                let admission =
                    Admission { allowed: &nobody, strangers: true, present: None, gave_way: Some(&gave_way) };
                let answered = Channel::accept_by(stream, &called, &admission, LONG);
                assert!(matches!(answered, Err(ChannelError::Busy)), "{answered:?}");
            });
            let heard = Channel::connect(address, &caller, called.public(), Purpose::Control, LONG);
            assert!(heard.is_err());
        });
        // What it hears once it has shown that it is a device.
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
