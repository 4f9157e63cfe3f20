//! Pairing over real sockets: right and wrong codes, a relay between the two, locks, and invalid messages.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;

use super::host::{Host, HostEvent, HostLimits};
use super::*;
use crate::home::peers::Peers;
use crate::home::state::StateFolder;
use crate::wire::channel::{Admission, Purpose};

const LONG: Duration = Duration::from_secs(120);

fn identity(name: &str) -> Identity {
    Identity::generate(name.parse().unwrap()).unwrap()
}

fn profile(name: &str, port: u16) -> PairingInfo {
    PairingInfo { name: name.parse().unwrap(), port, ring: RingId([3; 8]) }
}

fn code(text: &str) -> Code {
    text.parse().unwrap()
}

/// Returns a channel between two strangers: the caller's end and the called end.
fn strangers(caller: &Identity, called: &Identity) -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let nobody = |_: &PublicKey| false;
            let admission = Admission { allowed: &nobody, strangers: true, present: None, evicted: None };
            let stream = listener.accept().unwrap().0;
            let (channel, purpose) = Channel::accept_by(stream, called, &admission, LONG).unwrap();
            assert_eq!(purpose, Purpose::Pairing);
            channel
        });
        let called = Channel::connect_stranger(address, caller, LONG).unwrap();
        (called, answered.join().unwrap())
    })
}

type Pinned = Vec<(PublicKey, PairingInfo)>;

/// Returns the results of the joining device and of the head, and what each of them has pinned.
fn pair(
    codes: &PairingCodes,
    guess: &str,
    now: Duration,
) -> (Result<PairingInfo, PairingError>, Result<PairingInfo, PairingError>, Pinned, Pinned) {
    let (joiner, head) = (identity("phone"), identity("laptop"));
    let (caller, called) = strangers(&joiner, &head);
    assert_eq!(caller.hash(), called.hash());
    thread::scope(|scope| {
        let admitting = scope.spawn(|| {
            let mut pinned = Vec::new();
            let mut pin = |key: &PublicKey, profile: &PairingInfo| {
                pinned.push((*key, profile.clone()));
                Ok(())
            };
            let got = admit(called, &head, codes, now, &profile("laptop", 1), &mut pin);
            (got, pinned)
        });
        let mut pinned = Vec::new();
        let mut pin = |key: &PublicKey, profile: &PairingInfo| {
            pinned.push((*key, profile.clone()));
            Ok(())
        };
        let joined = join(caller, &joiner, &code(guess), &profile("phone", 2), &mut pin);
        let (admitted, head_pinned) = admitting.join().unwrap();
        if joined.is_ok() {
            assert_eq!((pinned[0].0, head_pinned[0].0), (*head.public(), *joiner.public()));
        }
        (joined, admitted, pinned, head_pinned)
    })
}

#[test]
fn codes_are_read_as_people_write_them() {
    for text in ["482913", "482 913", "482-913", " 482 913 "] {
        assert_eq!(code(text).to_string(), "482 913", "{text}");
    }
    for bad in ["", "48291", "4829133", "48291a", "４82913"] {
        assert_eq!(bad.parse::<Code>(), Err(InvalidCode), "{bad}");
    }
    let codes: Vec<Code> = (0..200).map(|_| Code::random().unwrap()).collect();
    for at in 0..DIGITS {
        let digits: std::collections::BTreeSet<u8> = codes.iter().map(|code| code.0[at]).collect();
        assert_eq!(digits.len(), 10, "digit {at} takes {digits:?}");
    }
    assert!(!format!("{:?}", code("482913")).contains("482"));
}

#[test]
fn the_right_code_pins_both_keys_and_is_used_up() {
    let codes = PairingCodes::default();
    codes.offer(code("482913"), Duration::ZERO).unwrap();
    let (joined, admitted, pinned, head_pinned) = pair(&codes, "482 913", Duration::ZERO);
    assert_eq!((joined.unwrap(), admitted.unwrap()), (profile("laptop", 1), profile("phone", 2)));
    assert_eq!((pinned.len(), head_pinned.len(), codes.wrong()), (1, 1, 0));
    let (joined, _, pinned, head_pinned) = pair(&codes, "482913", Duration::ZERO);
    assert!(matches!(joined, Err(PairingError::Refused(Refusal::NoCode))), "{joined:?}");
    assert!(pinned.is_empty() && head_pinned.is_empty());
}

#[test]
fn a_wrong_code_is_one_guess_and_three_lock() {
    let codes = PairingCodes::default();
    for guess in 1..=WRONG_MAX {
        codes.offer(code("482913"), Duration::ZERO).unwrap();
        let (joined, admitted, pinned, head_pinned) = pair(&codes, "482914", Duration::ZERO);
        assert!(matches!(joined, Err(PairingError::Refused(Refusal::WrongCode))), "{joined:?}");
        assert!(matches!(admitted, Err(PairingError::Refused(Refusal::WrongCode))), "{admitted:?}");
        assert!(pinned.is_empty() && head_pinned.is_empty());
        assert_eq!((codes.wrong(), codes.locked()), (guess, guess == WRONG_MAX));
        // The guess has used the code up: even the right code comes too late.
        let (late, ..) = pair(&codes, "482913", Duration::ZERO);
        let want = if guess == WRONG_MAX { Refusal::Locked } else { Refusal::NoCode };
        assert!(matches!(late, Err(PairingError::Refused(refusal)) if refusal == want), "{late:?}");
    }
    assert_eq!(codes.offer(code("111111"), Duration::ZERO), Err(Refusal::Locked));
    assert!(!codes.wants_code(Duration::ZERO));
}

#[test]
fn codes_expire_and_one_device_pairs_at_a_time() {
    let codes = PairingCodes::default();
    assert!(codes.wants_code(Duration::ZERO));
    codes.offer(code("482913"), Duration::ZERO).unwrap();
    assert!(!codes.wants_code(CODE_LIFE - Duration::from_secs(1)) && codes.wants_code(CODE_LIFE));
    let (joined, ..) = pair(&codes, "482913", CODE_LIFE);
    assert!(matches!(joined, Err(PairingError::Refused(Refusal::NoCode))), "{joined:?}");
    codes.offer(code("482913"), CODE_LIFE).unwrap();
    let offered = codes.look(CODE_LIFE).unwrap();
    let mut taken = codes.take(&offered).unwrap();
    let (joined, ..) = pair(&codes, "482913", CODE_LIFE);
    assert!(matches!(joined, Err(PairingError::Refused(Refusal::Busy))), "{joined:?}");
    assert!(
        !codes.wants_code(CODE_LIFE) && codes.offer(code("1 1 1 1 1 1"), CODE_LIFE) == Err(Refusal::Busy)
    );
    taken.right = true;
    drop(taken);
    assert!(codes.take(&offered).is_err(), "a code is good for one guess");
    codes.offer(code("111111"), CODE_LIFE).unwrap();
    assert!(matches!(codes.take(&offered), Err(Refusal::NoCode)), "and not for another one's");
    assert_eq!(codes.wrong(), 0);
}

#[test]
fn who_begins_and_does_not_guess_keeps_nobody_else_from_pairing() {
    let codes = PairingCodes::default();
    codes.offer(code("482913"), Duration::ZERO).unwrap();
    let (stranger, head) = (identity("stranger"), identity("laptop"));
    let (caller, called) = strangers(&stranger, &head);
    let (mut sender, mut receiver) = caller.split();
    thread::scope(|scope| {
        let mut pin =
            |_: &PublicKey, _: &PairingInfo| -> Result<(), StateError> { panic!("a key was pinned") };
        let (head, shared_codes) = (&head, &codes);
        let admitting = scope.spawn(move || {
            admit(called, head, shared_codes, Duration::ZERO, &profile("laptop", 1), &mut pin)
        });
        let none = spake2::Identity::new(b"");
        let (_, point) = Spake2::<Ed25519Group>::start_a(&Password::new(b"000000"), &none, &none);
        sender.send(&point, LONG).unwrap();
        assert_eq!(receiver.receive(LONG).unwrap()[0], 1, "it is being listened to");
        // Meanwhile another device comes that knows the code.
        let (joined, ..) = pair(&codes, "482913", Duration::ZERO);
        assert!(joined.is_ok(), "{joined:?}");
        // Its guess comes too late to count.
        sender.send(&[0; PROOF + 20], LONG).unwrap();
        assert_eq!(receiver.receive(LONG).unwrap(), [Refusal::NoCode.byte()]);
        let admitted = admitting.join().unwrap();
        assert!(matches!(admitted, Err(PairingError::Refused(Refusal::NoCode))), "{admitted:?}");
    });
    assert_eq!(codes.wrong(), 0);
}

#[test]
fn someone_between_the_two_pairs_with_neither() {
    let never = |_: &PublicKey, _: &PairingInfo| -> Result<(), StateError> { panic!("a key was pinned") };
    let (joiner, head, between) = (identity("phone"), identity("laptop"), identity("evil"));
    let codes = PairingCodes::default();
    codes.offer(code("482913"), Duration::ZERO).unwrap();
    let (caller, first) = strangers(&joiner, &between);
    let (second, called) = strangers(&between, &head);
    let ((mut to_joiner, mut from_joiner), (mut to_head, mut from_head)) = (first.split(), second.split());
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(frame) = from_joiner.receive(LONG) {
                if to_head.send(&frame, LONG).is_err() {
                    return;
                }
            }
        });
        scope.spawn(move || {
            while let Ok(frame) = from_head.receive(LONG) {
                if to_joiner.send(&frame, LONG).is_err() {
                    return;
                }
            }
        });
        let admitted = scope.spawn(|| {
            let mut pin = never;
            admit(called, &head, &codes, Duration::ZERO, &profile("laptop", 1), &mut pin)
        });
        let mut pin = never;
        let joined = join(caller, &joiner, &code("482913"), &profile("phone", 2), &mut pin);
        assert!(joined.is_err(), "{joined:?}");
        let admitted = admitted.join().unwrap();
        assert!(matches!(admitted, Err(PairingError::Refused(Refusal::WrongCode))), "{admitted:?}");
    });
    assert_eq!(codes.wrong(), 1);
}

#[test]
fn a_false_head_is_found_out() {
    let (joiner, head) = (identity("phone"), identity("evil"));
    let (caller, called) = strangers(&joiner, &head);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut sender, mut receiver) = called.split();
            let point = receiver.receive(LONG).unwrap();
            assert_eq!(point.len(), POINT);
            let none = spake2::Identity::new(b"");
            let (_, point) = Spake2::<Ed25519Group>::start_b(&Password::new(b"000000"), &none, &none);
            sender.send(&[&[1], point.as_slice()].concat(), LONG).unwrap();
            receiver.receive(LONG).unwrap();
            let mut answer = vec![1; 1 + PROOF];
            answer.extend_from_slice(&profile("laptop", 1).to_bytes());
            sender.send(&answer, LONG).unwrap();
            // The joining device hangs up; until then the connection stays.
            assert!(receiver.receive(LONG).is_err());
        });
        let mut pin =
            |_: &PublicKey, _: &PairingInfo| -> Result<(), StateError> { panic!("a key was pinned") };
        let joined = join(caller, &joiner, &code("482913"), &profile("phone", 2), &mut pin);
        assert!(matches!(joined, Err(PairingError::Impostor)), "{joined:?}");
    });
}

#[test]
fn messages_that_are_none_end_a_pairing_and_are_no_guess() {
    for first in [&b""[..], b"A", &[0x41; 33], &[0x42; 33], &[0xff; 34]] {
        let (joiner, head) = (identity("phone"), identity("laptop"));
        let (caller, called) = strangers(&joiner, &head);
        let codes = PairingCodes::default();
        codes.offer(code("482913"), Duration::ZERO).unwrap();
        let (mut sender, mut receiver) = caller.split();
        let admitted = thread::scope(|scope| {
            let mut pin =
                |_: &PublicKey, _: &PairingInfo| -> Result<(), StateError> { panic!("a key was pinned") };
            let admitting = scope.spawn({
                let (head, codes) = (&head, &codes);
                move || admit(called, head, codes, Duration::ZERO, &profile("laptop", 1), &mut pin)
            });
            sender.send(first, LONG).unwrap();
            // The bytes may be a valid point by chance; then there is an answer, but no proof.
            let _answer = receiver.receive(LONG);
            sender.close();
            admitting.join().unwrap()
        });
        assert!(
            matches!(admitted, Err(PairingError::Malformed { .. } | PairingError::Channel(_))),
            "{admitted:?}"
        );
        assert_eq!(codes.wrong(), 0, "{first:?}");
        assert!(!codes.wants_code(Duration::ZERO), "the code is still out");
    }
}

proptest! {
    #[test]
    fn profiles_are_read_back_and_others_refused(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
        if let Some(profile) = PairingInfo::from_bytes(&bytes) {
            prop_assert_eq!(profile.to_bytes(), bytes);
        }
        let own = profile("a phone", 8018);
        prop_assert_eq!(PairingInfo::from_bytes(&own.to_bytes()), Some(own));
    }
}

/// Events of a head, taken in the order in which a test asks for them.
struct Events {
    coming: std::sync::mpsc::Receiver<HostEvent>,
    seen: Vec<HostEvent>,
}

impl Events {
    /// Returns the first event that is wanted and not yet taken.
    fn wait<T>(&mut self, wanted: impl Fn(&HostEvent) -> Option<T>) -> T {
        loop {
            if let Some((at, found)) =
                self.seen.iter().enumerate().find_map(|(at, event)| Some((at, wanted(event)?)))
            {
                self.seen.remove(at);
                return found;
            }
            self.seen.push(self.coming.recv_timeout(LONG).expect("the head says what happens"));
        }
    }

    fn code(&mut self) -> Code {
        self.wait(|event| match event {
            HostEvent::Code { code, life } => {
                assert_eq!(*life, CODE_LIFE);
                Some(code.clone())
            }
            _ => None,
        })
    }
}

/// Stops a head when dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a head in a thread beside its guests. Returns how many joined, and the devices that it has pinned.
fn with_host(limits: HostLimits, guests: impl FnOnce(SocketAddr, &mut Events)) -> (usize, Peers) {
    let dir = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(Some(dir.path().to_owned())).unwrap();
    let head = identity("laptop");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, coming) = std::sync::mpsc::channel();
    let stop = AtomicBool::new(false);
    let joined = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let host = Host { identity: &head, ring: RingId([3; 8]), folder: &folder, limits };
            host.run(&listener, &stop, &mut move |event| {
                // The guests may have seen enough.
                let _gone = tell.send(event);
            })
        });
        {
            // Also if a guest fails: otherwise the head would wait for ever.
            let _stopping = Stopping(&stop);
            guests(address, &mut Events { coming, seen: Vec::new() });
        }
        running.join().unwrap().unwrap()
    });
    (joined, Peers::load(&folder).unwrap())
}

fn guest(address: SocketAddr, name: &str, guess: &Code) -> Result<PairingInfo, PairingError> {
    let own = identity(name);
    let channel = Channel::connect_stranger(address, &own, LONG)?;
    join(channel, &own, guess, &profile(name, 7000), &mut |_, _| Ok(()))
}

#[test]
fn a_head_admits_devices_one_code_each_though_scanners_hang_on() {
    let limits = HostLimits { devices: Some(2), time: None };
    let (joined, peers) = with_host(limits, |address, events| {
        // Two callers that send nothing; they wait until they are cut off.
        let _silent = (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
        for _ in 0..2 {
            let code = events.code();
            let profile = guest(address, "phone", &code).unwrap();
            assert_eq!((profile.ring, profile.port), (RingId([3; 8]), address.port()));
            let port = events.wait(|event| match event {
                HostEvent::Joined { address, .. } => Some(address.port()),
                _ => None,
            });
            assert_eq!(port, 7000);
        }
    });
    let names: Vec<String> = peers.iter().map(|peer| peer.name.to_string()).collect();
    assert_eq!((joined, names), (2, vec!["phone".to_owned(), "phone-2".to_owned()]));
}

#[test]
fn forty_idle_connections_of_a_stranger_keep_nobody_from_pairing() {
    let limits = HostLimits { devices: Some(1), time: None };
    let (joined, peers) = with_host(limits, |address, events| {
        let _idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let code = events.code();
        guest(address, "phone", &code).unwrap();
        events.wait(|event| matches!(event, HostEvent::Joined { .. }).then_some(()));
        // A stranger cannot fill the screen: such a failure is reported once per address.
        let failed = events.seen.iter().filter(|event| matches!(event, HostEvent::Failed { .. })).count();
        assert!(failed <= 1, "{failed} notes");
    });
    assert_eq!((joined, peers.len()), (1, 1));
}

#[test]
fn a_head_locks_after_three_wrong_codes() {
    let (joined, peers) = with_host(HostLimits::default(), |address, events| {
        for _ in 0..WRONG_MAX {
            let right = events.code();
            let wrong = if right == code("000000") { code("000001") } else { code("000000") };
            let refused = guest(address, "phone", &wrong);
            assert!(matches!(refused, Err(PairingError::Refused(Refusal::WrongCode))), "{refused:?}");
            events.wait(|event| match event {
                HostEvent::Failed { error: PairingError::Refused(Refusal::WrongCode), .. } => Some(()),
                _ => None,
            });
        }
        events.wait(|event| matches!(event, HostEvent::Locked).then_some(()));
    });
    assert_eq!((joined, peers.len()), (0, 0));
}

#[test]
fn a_head_stops_when_its_time_is_over() {
    let limits = HostLimits { devices: None, time: Some(Duration::from_millis(1)) };
    let (joined, peers) = with_host(limits, |_, events| {
        // The sender of events is dropped when the head ends without having been stopped.
        let ended = loop {
            match events.coming.recv_timeout(LONG) {
                Ok(HostEvent::Code { .. }) => {}
                other => break other,
            }
        };
        assert!(matches!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected)), "{ended:?}");
    });
    assert_eq!((joined, peers.len()), (0, 0));
}
