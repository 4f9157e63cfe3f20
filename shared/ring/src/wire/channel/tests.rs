//! Channels over real sockets: handshakes, strangers, port scanners, forged records, and readers that must
//! wait.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::handshake::parse_preamble;
use super::record::{MinimumRate, RECORD_BYTES, RECORDS_MAX, first_record};
use super::*;

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(50);

/// Returns a new identity.
pub(in crate::wire) fn identity() -> Identity {
    Identity::generate("device".parse().unwrap()).unwrap()
}

/// Returns a socket that listens on loopback, and its address.
pub(in crate::wire) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

type Accepted = Result<(Channel, Purpose), ChannelError>;

/// Returns the results of both sides: what `call` returns, and how a listening device with these rules
/// answers it.
fn meet<T: Send>(
    identity: &Identity,
    admission: impl Fn() -> Rules + Send,
    call: impl FnOnce(SocketAddr) -> T + Send,
) -> (T, Accepted) {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let answered = scope.spawn(move || {
            let rules = admission();
            let allowed = |key: &PublicKey| rules.known.contains(key);
            let admission = Admission {
                allowed: &allowed,
                strangers: rules.strangers,
                present: rules.present.as_ref(),
                evicted: None,
            };
            Channel::accept_by(listener.accept().unwrap().0, identity, &admission, rules.timeout)
        });
        let called = call(address);
        (called, answered.join().unwrap())
    })
}

struct Rules {
    known: Vec<PublicKey>,
    strangers: bool,
    present: Option<Instances>,
    timeout: Duration,
}

fn knowing(known: &[&Identity]) -> Rules {
    let known = known.iter().map(|identity| *identity.public()).collect();
    Rules { known, strangers: false, present: None, timeout: LONG }
}

/// Returns both ends of a channel between two pinned devices.
fn channel() -> (Channel, Channel) {
    let (caller, called) = (identity(), identity());
    let (near, far) = meet(
        &called,
        || knowing(&[&caller]),
        |address| Channel::connect(address, &caller, called.public(), Purpose::Ring, LONG).unwrap(),
    );
    let (far, purpose) = far.unwrap();
    assert_eq!((near.peer(), far.peer(), purpose), (called.public(), caller.public(), Purpose::Ring));
    assert_eq!(
        (near.hash(), near.instance(), far.instance()),
        (far.hash(), called.instance(), caller.instance())
    );
    (near, far)
}

fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let step = |state: &mut u32| {
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        *state as u8
    };
    (0..len).map(|_| step(&mut state)).collect()
}

#[test]
fn frames_of_all_sizes_go_both_ways_whole_and_in_order() {
    let (near, far) = channel();
    let ((mut out, mut back), (mut out_far, mut in_far)) = (near.split(), far.split());
    let sizes =
        [0, 1, 16_384, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 2 * RECORD_BYTES, 1_000_000, 0, 7];
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in sizes {
                let frame = in_far.receive(LONG).unwrap();
                out_far.send(&frame, LONG).unwrap();
            }
            let ended = in_far.receive(LONG);
            assert!(matches!(ended, Err(ChannelError::Closed)), "{ended:?}");
        });
        scope.spawn(move || {
            for (seed, len) in sizes.into_iter().enumerate() {
                out.send(&bytes(len, seed as u32), LONG).unwrap();
            }
        });
        let mut frame = vec![9; 5];
        for (seed, len) in sizes.into_iter().enumerate() {
            back.receive_into(&mut frame, LONG).unwrap();
            assert!(frame == bytes(len, seed as u32), "frame {seed} of {len} bytes");
        }
        back.close();
        assert!(matches!(back.receive(LONG), Err(ChannelError::Closed)));
    });
}

#[test]
fn a_frame_over_the_bound_is_not_sent_and_the_channel_stays() {
    let (near, far) = channel();
    let ((mut out, _back), (_, mut in_far)) = (near.split(), far.split());
    let refused = out.send(&vec![0; FRAME_BYTES_MAX + 1], LONG);
    assert!(
        matches!(refused, Err(ChannelError::TooLarge { bytes: 67_108_865, max: 67_108_864 })),
        "{refused:?}"
    );
    out.send(b"small", LONG).unwrap();
    assert_eq!(in_far.receive(LONG).unwrap(), b"small");
}

#[test]
fn a_frame_that_never_ends_is_cut_at_the_bound() {
    let (near, far) = channel();
    let ((mut out, _back), (out_far, mut in_far)) = (near.split(), far.split());
    thread::scope(|scope| {
        scope.spawn(move || {
            // Sends full records without end, which our sender never does, until the other side cuts the
            // channel.
            let piece = vec![0; RECORD_BYTES];
            let mut record = Vec::new();
            for _ in 0..2 * FRAME_BYTES_MAX / RECORD_BYTES {
                let end = out.sealer_for_tests().seal(&piece, &mut record, 0).unwrap();
                if out.stream_for_tests().write_all(&record[..end]).is_err() {
                    return;
                }
            }
            panic!("twice the bound was taken");
        });
        let cut = in_far.receive(4 * LONG);
        assert!(matches!(cut, Err(ChannelError::TooLarge { max: FRAME_BYTES_MAX, .. })), "{cut:?}");
        assert!(matches!(in_far.receive(LONG), Err(ChannelError::Closed)));
        // Bytes that are still in transit fail only after the connection is closed.
        drop((out_far, in_far));
    });
}

#[test]
fn a_device_that_is_not_pinned_is_refused_and_told_so() {
    let (caller, called) = (identity(), identity());
    let (told, answered) = meet(
        &called,
        || knowing(&[]),
        |address| Channel::connect(address, &caller, called.public(), Purpose::Control, LONG),
    );
    assert!(matches!(told, Err(ChannelError::Refused)), "{told:?}");
    assert!(matches!(answered, Err(ChannelError::Refused)), "{answered:?}");
    let (told, answered) =
        meet(&called, || knowing(&[]), |address| Channel::probe(address, &caller, called.public(), LONG));
    assert!(
        matches!((&told, &answered), (Err(ChannelError::Refused), Err(ChannelError::Refused))),
        "{told:?}"
    );
}

#[test]
fn a_device_with_another_key_is_found_out_and_learns_nothing() {
    let (caller, called, meant) = (identity(), identity(), identity());
    let (told, answered) = meet(
        &called,
        || knowing(&[&caller]),
        |address| Channel::connect(address, &caller, meant.public(), Purpose::Control, LONG),
    );
    assert!(matches!(told, Err(ChannelError::Unproven)), "{told:?}");
    assert!(matches!(answered, Err(ChannelError::Unproven)), "{answered:?}");
}

#[test]
fn a_probe_answers_and_leaves() {
    let (caller, called) = (identity(), identity());
    let (told, answered) = meet(
        &called,
        || knowing(&[&caller]),
        |address| Channel::probe(address, &caller, called.public(), LONG),
    );
    assert!(told.unwrap() > Duration::ZERO);
    assert!(matches!(answered, Err(ChannelError::Closed)), "{answered:?}");
}

#[test]
fn strangers_are_let_in_only_while_somebody_pairs() {
    let (caller, called) = (identity(), identity());
    let stranger = |address| Channel::connect_stranger(address, &caller, LONG);
    let (told, answered) = meet(&called, || knowing(&[&caller]), stranger);
    assert!(matches!(told, Err(ChannelError::Unproven)), "{told:?}");
    assert!(matches!(answered, Err(ChannelError::Unproven)), "{answered:?}");
    let (told, answered) = meet(&called, || Rules { strangers: true, ..knowing(&[]) }, stranger);
    let (answered, purpose) = answered.unwrap();
    let told = told.unwrap();
    assert_eq!((told.peer(), answered.peer(), purpose), (called.public(), caller.public(), Purpose::Pairing));
    // A pinned key cannot use the strangers' pattern, and a stranger cannot use the pattern of pinned keys.
    let (told, _) = meet(
        &called,
        || Rules { strangers: true, ..knowing(&[&caller]) },
        |address| Channel::connect(address, &caller, called.public(), Purpose::Pairing, LONG),
    );
    assert!(matches!(told, Err(ChannelError::Unproven)), "{told:?}");
}

#[test]
fn versions_that_differ_are_told_to_both() {
    let called = identity();
    let (told, answered) = meet(
        &called,
        || knowing(&[]),
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"BTNR\x00\x07\x01 and whatever version seven says next").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        },
    );
    assert!(
        matches!(answered, Err(ChannelError::Version { ours: PROTOCOL_VERSION, theirs: 7 })),
        "{answered:?}"
    );
    assert_eq!(parse_preamble(&told.try_into().unwrap()), Some((PROTOCOL_VERSION, 0)));
    // The caller's side, with a device of version 7.
    let (listener, address) = listener();
    let caller = identity();
    let told = thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 120]).unwrap();
            stream.write_all(b"BTNR\x00\x07\x00").unwrap();
        });
        Channel::connect(address, &caller, called.public(), Purpose::Ring, LONG)
    });
    assert!(matches!(told, Err(ChannelError::Version { ours: PROTOCOL_VERSION, theirs: 7 })), "{told:?}");
}

#[test]
fn a_scanner_learns_nothing_and_is_cut() {
    let called = identity();
    let mut scans = vec![
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"BTNX\x00\x01\x01".to_vec(),
        // The mark, followed by bytes that prove no key.
        [&b"BTNR\x00\x01\x01"[..], &bytes(113, 3)].concat(),
        [&b"BTNR\x00\x01\x02"[..], &bytes(113, 4)].concat(),
        [&b"BTNR\x00\x01\x03"[..], &bytes(113, 5)].concat(),
    ];
    scans.extend((0..20).map(|seed| bytes(200, 100 + seed)));
    for scan in scans {
        let (heard, answered) = meet(
            &called,
            || knowing(&[]),
            |address| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&scan).unwrap();
                let mut heard = Vec::new();
                // A reset is not an answer either.
                let _reset = stream.read_to_end(&mut heard);
                heard
            },
        );
        assert!(
            matches!(answered, Err(ChannelError::Unproven | ChannelError::Closed)),
            "{scan:?}: {answered:?}"
        );
        assert_eq!(heard, b"", "{scan:?}");
    }
}

#[test]
fn a_caller_that_says_nothing_is_cut_in_time() {
    let called = identity();
    let (_, answered) = meet(
        &called,
        || Rules { timeout: SHORT, ..knowing(&[]) },
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"BTN").unwrap();
            let mut heard = Vec::new();
            let _reset = stream.read_to_end(&mut heard);
            assert_eq!(heard, b"");
        },
    );
    assert!(matches!(answered, Err(ChannelError::TimedOut)), "{answered:?}");
    // A device that never answers is given up as well.
    let (_listener, address) = listener();
    let told = Channel::connect(address, &identity(), called.public(), Purpose::Ring, SHORT);
    assert!(matches!(told, Err(ChannelError::TimedOut)), "{told:?}");
}

/// Forwards the bytes of one direction, and reports them.
fn pass(mut from: TcpStream, mut to: TcpStream, tell: mpsc::Sender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let _nobody_asks = tell.send(buffer[..bytes].to_vec());
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ended = to.shutdown(Shutdown::Write);
}

#[test]
fn a_recorded_handshake_opens_nothing() {
    let (caller, called) = (identity(), identity());
    let present = Instances::default();
    let rules = || Rules { present: Some(present.clone()), ..knowing(&[&caller]) };
    let ((channel, recorded), answered) = meet(&called, rules, |address| {
        let (relay, relay_address) = listener();
        let (tell, recorded) = mpsc::channel();
        thread::spawn(move || {
            let near = relay.accept().unwrap().0;
            let far = TcpStream::connect(address).unwrap();
            let (near_copy, far_copy) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || pass(far_copy, near_copy, mpsc::channel().0));
            pass(near, far, tell);
        });
        (Channel::connect(relay_address, &caller, called.public(), Purpose::Control, LONG), recorded)
    });
    assert!(channel.is_ok() && answered.is_ok(), "{channel:?} {answered:?}");
    drop((channel, answered));
    let recorded: Vec<u8> = recorded.iter().flatten().collect();
    assert_eq!(recorded.len(), 120 + 18, "first message and proof");
    // The same bytes again: the first message is answered, but the proof belongs to other keys.
    let (heard, answered) = meet(&called, rules, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&recorded).unwrap();
        let mut heard = Vec::new();
        let _reset = stream.read_to_end(&mut heard);
        heard
    });
    assert!(matches!(answered, Err(ChannelError::Forged)), "{answered:?}");
    assert!(heard.len() <= 72, "{} bytes came back", heard.len());
    // The replay does not lock out the device itself.
    let (told, answered) = meet(&called, rules, |address| {
        Channel::connect(address, &caller, called.public(), Purpose::Control, LONG)
    });
    assert!(told.is_ok() && answered.is_ok(), "{told:?} {answered:?}");
}

#[test]
fn two_devices_with_one_key_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = crate::home::state::StateFolder::open(Some(dir.path().to_owned())).unwrap();
    // The same folder opened twice, as by two devices with a copy of it.
    let first = Identity::open(&folder, None).unwrap();
    let second = Identity::open(&folder, None).unwrap();
    let called = identity();
    let present = Instances::default();
    let rules = || Rules { present: Some(present.clone()), ..knowing(&[&first]) };
    let call = |identity: &Identity, purpose| {
        meet(&called, rules, |address| Channel::connect(address, identity, called.public(), purpose, LONG))
    };
    let (control, held) = call(&first, Purpose::Control);
    let held = held.unwrap().0.split();
    // A second channel of the same process is not a clone.
    let (ring, held_too) = call(&first, Purpose::Ring);
    assert!(ring.is_ok() && held_too.is_ok());
    let (told, answered) = call(&second, Purpose::Control);
    assert!(matches!((&told, &answered), (Err(ChannelError::Cloned), Err(ChannelError::Cloned))), "{told:?}");
    // One half of a channel keeps its entry. After all halves are dropped, the other process is accepted.
    drop((control, ring, held_too, held.0));
    assert!(matches!(call(&second, Purpose::Control).0, Err(ChannelError::Cloned)));
    drop(held.1);
    assert!(call(&second, Purpose::Control).0.is_ok());
    // Two copies that call each other.
    let (told, _) = meet(
        &first,
        || knowing(&[&first]),
        |address| {
            let own = Channel::connect(address, &second, first.public(), Purpose::Ring, LONG);
            drop(TcpStream::connect(address));
            own
        },
    );
    assert!(matches!(told, Err(ChannelError::Cloned)), "{told:?}");
}

/// Sends frames. Returns the encrypted bytes of each as they were on the wire, and a receiver that has seen
/// none of them.
fn sealed(frames: &[&[u8]]) -> (Vec<Vec<u8>>, TcpStream, Receiver) {
    let (near, far) = channel();
    let ((mut out, _), (_, receiver)) = (near.split(), far.split());
    let mut records = Vec::new();
    for frame in frames {
        let mut record = Vec::new();
        let end = out.sealer_for_tests().seal(frame, &mut record, 0).unwrap();
        record.truncate(end);
        records.push(record);
    }
    let stream = out.stream_for_tests().try_clone().unwrap();
    (records, stream, receiver)
}

#[test]
fn records_that_are_repeated_moved_changed_or_left_out_cut_the_channel() {
    let cases: [(&str, &[usize], usize); 4] =
        [("repeated", &[0, 0], 1), ("moved", &[1, 0], 0), ("left out", &[0, 2], 1), ("whole", &[0, 1, 2], 3)];
    for (what, order, good) in cases {
        let (records, mut stream, mut receiver) = sealed(&[b"one", b"two", b"three"]);
        for record in order {
            stream.write_all(&records[*record]).unwrap();
        }
        for (at, want) in [b"one".as_slice(), b"two", b"three"].into_iter().take(good).enumerate() {
            assert_eq!(receiver.receive(LONG).unwrap(), want, "{what}: frame {at}");
        }
        if good < order.len() {
            let forged = receiver.receive(LONG);
            assert!(matches!(forged, Err(ChannelError::Forged)), "{what}: {forged:?}");
            assert!(matches!(receiver.receive(LONG), Err(ChannelError::Closed)), "{what}");
        }
    }
    // Changes any one byte except those of the length, which move the record's end.
    let len = sealed(&[b"one"]).0[0].len();
    for at in 2..len {
        let (mut records, mut stream, mut receiver) = sealed(&[b"one"]);
        records[0][at] ^= 1;
        stream.write_all(&records[0]).unwrap();
        assert!(matches!(receiver.receive(LONG), Err(ChannelError::Forged)), "byte {at}");
    }
}

#[test]
fn records_too_short_to_be_any_are_refused_and_claims_reserve_nothing() {
    for length in [0_u16, 1, 15] {
        let (_, mut stream, mut receiver) = sealed(&[]);
        stream.write_all(&length.to_be_bytes()).unwrap();
        stream.write_all(&[0; 16]).unwrap();
        assert!(matches!(receiver.receive(LONG), Err(ChannelError::Forged)), "{length}");
    }
    // The largest possible length, and no more bytes: the receiver waits, and can go on waiting.
    let (_, mut stream, mut receiver) = sealed(&[]);
    stream.write_all(&[0xff, 0xff, 1, 2, 3]).unwrap();
    let mut frame = Vec::new();
    assert!(matches!(receiver.receive_into(&mut frame, SHORT), Err(ChannelError::TimedOut)));
    assert_eq!(frame.capacity(), 0);
    drop(stream);
}

#[test]
fn a_wait_that_is_over_loses_nothing() {
    let (records, mut stream, mut receiver) = sealed(&[b"one", b"two"]);
    assert!(matches!(receiver.receive(SHORT), Err(ChannelError::TimedOut)));
    let (begin, end) = records[0].split_at(9);
    stream.write_all(begin).unwrap();
    assert!(matches!(receiver.receive(SHORT), Err(ChannelError::TimedOut)));
    stream.write_all(end).unwrap();
    stream.write_all(&records[1]).unwrap();
    assert_eq!(
        (receiver.receive(LONG).unwrap(), receiver.receive(LONG).unwrap()),
        (b"one".to_vec(), b"two".to_vec())
    );
}

#[test]
fn a_sender_of_single_bytes_is_cut_however_patient_the_reader_is() {
    let (records, mut stream, mut receiver) = sealed(&[&[7; 4000]]);
    receiver.minimum_rate = MinimumRate { grace: Duration::from_millis(100), bytes_per_s: 32_768.0 };
    thread::scope(|scope| {
        scope.spawn(move || {
            for byte in &records[0] {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        // Calls receive again and again, as a thread does that also watches something else.
        let cut = loop {
            match receiver.receive(SHORT) {
                Err(ChannelError::TimedOut) => {}
                other => break other,
            }
        };
        assert!(matches!(cut, Err(ChannelError::Closed)), "{cut:?}");
    });
    let minimum_rate = MinimumRate { grace: Duration::from_secs(10), bytes_per_s: 1000.0 };
    assert_eq!(minimum_rate.left(Duration::from_secs(4), 0), Some(Duration::from_secs(6)));
    assert_eq!(minimum_rate.left(Duration::from_secs(14), 5000), Some(Duration::from_secs(1)));
    assert_eq!(minimum_rate.left(Duration::from_secs(15), 5000), None);
}

#[test]
fn a_reader_that_never_reads_keeps_no_sender() {
    let (near, far) = channel();
    let (mut out, _back) = near.split();
    let frame = vec![1; 32 << 20];
    let stuck = out.send(&frame, Duration::from_millis(200));
    assert!(matches!(stuck, Err(ChannelError::TimedOut)), "{stuck:?}");
    assert!(matches!(out.send(b"more", LONG), Err(ChannelError::Closed)));
    drop(far);
}

#[test]
fn closing_wakes_a_thread_that_waits() {
    let (near, far) = channel();
    let ((mut out, mut back), _far) = (near.split(), far);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || back.receive(LONG));
        thread::sleep(SHORT);
        out.close();
        assert!(matches!(waiting.join().unwrap(), Err(ChannelError::Closed)));
    });
    assert!(matches!(out.send(b"more", LONG), Err(ChannelError::Closed)));
}

#[test]
fn keys_that_are_used_up_end_a_channel_on_both_sides() {
    let (near, far) = channel();
    let ((mut out, _back), (_out_far, mut in_far)) = (near.split(), far.split());
    out.sealer_for_tests().nonce = RECORDS_MAX - 1;
    in_far.opener_for_tests().nonce = RECORDS_MAX - 1;
    out.send(b"last", LONG).unwrap();
    assert_eq!(in_far.receive(LONG).unwrap(), b"last");
    let over = out.send(b"one more", LONG);
    assert!(matches!(over, Err(ChannelError::Exhausted(RECORDS_MAX))), "{over:?}");
    let (near, far) = channel();
    let ((mut out, _back), (_out_far, mut in_far)) = (near.split(), far.split());
    in_far.opener_for_tests().nonce = RECORDS_MAX;
    out.send(b"one more", LONG).unwrap();
    assert!(matches!(in_far.receive(LONG), Err(ChannelError::Exhausted(RECORDS_MAX))));
}

fn fixed(cases: u32) -> ProptestConfig {
    // The same cases in every run.
    ProptestConfig { cases, rng_seed: proptest::test_runner::RngSeed::Fixed(6), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(fixed(2000))]

    #[test]
    fn any_bytes_are_a_preamble_or_none(head in any::<[u8; 7]>()) {
        let parsed = parse_preamble(&head);
        prop_assert_eq!(parsed.is_some(), &head[..4] == b"BTNR");
    }

    #[test]
    fn any_bytes_split_into_records_within_them(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut rest = raw.as_slice();
        let mut taken = 0;
        while let Some(record) = first_record(rest) {
            let claimed = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
            prop_assert_eq!(record.len(), claimed);
            taken += 2 + record.len();
            rest = &raw[taken..];
        }
        prop_assert!(rest.len() < 2 || rest.len() - 2 < usize::from(u16::from_be_bytes([rest[0], rest[1]])));
    }
}

#[test]
fn no_bytes_on_an_open_channel_are_taken_for_a_frame() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::new(fixed(1));
    let garbage = proptest::collection::vec(any::<u8>(), 18..400);
    for case in 0..60 {
        let noise = garbage.new_tree(&mut runner).unwrap().current();
        let (records, mut stream, mut receiver) = sealed(&[b"one", b"two"]);
        // After a good record, and inside one.
        let at = case % records[1].len();
        stream.write_all(&records[0]).unwrap();
        stream.write_all(&records[1][..at]).unwrap();
        stream.write_all(&noise).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receiver.receive(LONG).unwrap(), b"one");
        let refused = receiver.receive(LONG);
        assert!(
            matches!(refused, Err(ChannelError::Forged | ChannelError::Closed)),
            "case {case}: {refused:?}"
        );
    }
}
