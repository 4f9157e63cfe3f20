//! The same ring over encrypted channels on loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::home::identity::{DeviceName, Identity, PublicKey};
use crate::wire::link::{LinkError, Purpose};
use crate::wire::tcp::HomeNetwork;

fn identity(name: &str) -> Identity {
    Identity::generate(DeviceName::nearest(name)).unwrap()
}

/// Opens a device at a free port that is paired with these keys.
fn network(own: Identity, paired: Vec<PublicKey>) -> Arc<dyn Network> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    Arc::new(HomeNetwork::open(own, listener, Box::new(move |key| paired.contains(key))).unwrap())
}

struct Workers {
    stops: Vec<Arc<AtomicBool>>,
    threads: Vec<JoinHandle<()>>,
    nodes: Vec<Node>,
    folder: tempfile::TempDir,
}

/// Starts workers that know only the head.
fn workers(identities: &[Identity], head: PublicKey) -> Workers {
    let folder = tempfile::tempdir().unwrap();
    let mut workers = Workers { stops: Vec::new(), threads: Vec::new(), nodes: Vec::new(), folder };
    for identity in identities {
        let network = network(identity.clone(), vec![head]);
        workers.nodes.push(network.own());
        let mut options = WorkerOptions::new(
            identity.name().as_str(),
            workers.folder.path().join(identity.name().as_str()),
            Arc::new(TestMachine::default()),
        );
        options.threads = NonZeroUsize::new(1);
        let stop = Arc::new(AtomicBool::new(false));
        workers.stops.push(Arc::clone(&stop));
        let said: crate::host::EventSink = Arc::new(|_| {});
        workers.threads.push(std::thread::spawn(move || {
            serve(&network, &options, &|key| key.0 == head.0, &said, &stop).unwrap();
        }));
    }
    workers
}

#[test]
fn a_ring_over_encrypted_channels_fetches_computes_and_outlives_a_worker() {
    let own = identity("head");
    let others = [identity("w1"), identity("w2")];
    let mut home = workers(&others, *own.public());
    let paired = others.iter().map(|identity| *identity.public()).collect();
    let mut options = RingOptions::new("head", engine_options(1024), Arc::new(TestMachine::default()));
    options.heartbeat = Duration::from_secs(5);
    options.floor = Duration::from_secs(60);
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let network = network(own, paired);
    let mut head = RingHead::connect(network, &home.nodes, model(), planner, options).unwrap();
    let ids = prompt(6, 80);
    let want = written(&mut one_engine(), &ids, 4);
    let have = written(&mut head, &ids, 4);
    assert_same_bits(&have.0, &want.0, "over channels");
    let stats = head.handle().stats();
    assert_eq!((stats.devices.len(), stats.recoveries), (3, 0), "{stats:?}");
    // The second worker ends, like a program that is stopped.
    home.stops[1].store(true, Ordering::Release);
    home.threads.remove(1).join().unwrap();
    let have = written(&mut head, &ids, 4);
    assert_same_bits(&have.0, &want.0, "after a loss");
    let stats = head.handle().stats();
    assert_eq!(stats.lost.iter().map(|lost| lost.name.as_str()).collect::<Vec<_>>(), ["w2"]);
    drop(head);
    home.stops.iter().for_each(|stop| stop.store(true, Ordering::Release));
    home.threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn only_paired_devices_get_control_and_only_guests_a_ring_link() {
    let (own, friend, stranger) = (identity("own"), identity("friend"), identity("stranger"));
    let home = network(own, vec![*friend.public()]);
    let wait = Duration::from_secs(120);
    let connect =
        |from: &Identity, purpose| network(from.clone(), Vec::new()).connect(&home.own(), purpose, wait);
    assert!(connect(&friend, Purpose::Control).is_ok());
    assert!(matches!(home.accept(wait), Ok((_, Purpose::Control))));
    assert!(matches!(connect(&stranger, Purpose::Ring), Err(LinkError::Refused | LinkError::Closed)));
    home.allow(&[DeviceId(stranger.public().0)]);
    let mut link = connect(&stranger, Purpose::Ring).unwrap();
    let (mut there, purpose) = home.accept(wait).unwrap();
    assert_eq!((purpose, there.peer), (Purpose::Ring, DeviceId(stranger.public().0)));
    link.sender.send(b"a frame", wait).unwrap();
    drop(link.receiver);
    assert_eq!(there.receiver.receive(wait).unwrap(), b"a frame");
    assert!(matches!(there.receiver.receive(Duration::ZERO), Err(LinkError::TimedOut)));
    drop(link.sender);
    assert!(matches!(there.receiver.receive(wait), Err(LinkError::Closed)));
    // A guest of the ring may not open a control channel.
    let control = connect(&stranger, Purpose::Control);
    let heard = control.and_then(|mut link| link.receiver.receive(wait));
    assert!(heard.is_err());
    assert!(matches!(home.accept(Duration::from_millis(1)), Err(LinkError::TimedOut)));
}

#[test]
fn idle_connections_keep_no_paired_device_out_and_are_told_why_they_end() {
    let (own, friend) = (identity("own"), identity("friend"));
    let home = network(own, vec![*friend.public()]);
    let address = home.own().address;
    // One caller begins as a device would and then sends nothing; forty send nothing at all.
    let mut begun = TcpStream::connect(&address).unwrap();
    begun.write_all(b"BTNR\x00\x01\x01").unwrap();
    let idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let wait = Duration::from_secs(120);
    let link = network(friend, Vec::new()).connect(&home.own(), Purpose::Control, wait);
    assert!(link.is_ok(), "{link:?}");
    assert!(matches!(home.accept(wait), Ok((_, Purpose::Control))));
    // Only as many callers were ended as necessary; the worker still waits for some of the idle ones.
    let mut told = Vec::new();
    begun.set_read_timeout(Some(wait)).unwrap();
    // The end of the connection may come as a reset, after the answer.
    let _ended = begun.read_to_end(&mut told);
    assert_eq!(told, b"BTNR\x00\x01\xff");
    drop(idle);
}
