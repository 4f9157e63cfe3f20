//! Paths that are measured while the ring's own links arrive, and devices that are slow to answer or never
//! ready.

use std::time::Instant;

use super::*;
use crate::ring::edges::{self, EdgeTable};
use crate::ring::frame::{Activations, Configure, Frame};
use crate::ring::link::memory::Fate;
use crate::ring::link::{Link, Purpose};

/// Longer than anything in these tests takes.
const LONG: Duration = Duration::from_secs(120);
/// Long enough for several checks by a thread that waits.
const WHILE: Duration = Duration::from_millis(100);

/// Waits for the next frame that is `wanted`, and ignores others.
#[track_caller]
fn until(link: &mut Link, wanted: impl Fn(&Frame) -> bool) {
    let begun = Instant::now();
    loop {
        let frame = Frame::decode(&link.receiver.receive(LONG).unwrap()).unwrap();
        if wanted(&frame) {
            return;
        }
        assert!(begun.elapsed() < LONG, "it did not come; the last was {frame:?}");
    }
}

/// Opens the control channel of worker 1; the test acts as its head.
fn control(home: &Home) -> Link {
    let head: Arc<dyn Network> = home.hub.node(0);
    let mut link = head.connect(&Home::node(1), Purpose::Control, LONG).unwrap();
    until(&mut link, |frame| matches!(frame, Frame::Hello(_)));
    link
}

/// Returns a part of worker 1 that only relays, from device 2 to the head.
fn relaying(epoch: u64) -> Frame {
    Frame::Configure(Box::new(Configure {
        epoch,
        place: 1,
        n_layers: LAYERS as u16,
        width: 64,
        prefetch_bytes: 0,
        reads_ahead: false,
        windows: vec![baton_plan::Window { round: 0, place: 0, begin: 0, end: LAYERS, gpu: 0 }],
        model: [0; 32],
        kv_tokens: 1024,
        kv_format: EngineOptions::default().kv_format,
        prefix_percent: 0,
        window: None,
        next: Home::node(0),
        before: [2; 32],
        others: Vec::new(),
        activations: Activations::F32,
        heartbeat: Duration::from_millis(300),
        hop: Duration::from_secs(5),
    }))
}

/// Opens a link to worker 1 for this epoch.
fn entering(from: &Arc<dyn Network>, epoch: u64) -> Link {
    let mut link = from.connect(&Home::node(1), Purpose::Ring, LONG).unwrap();
    link.sender.send(&Frame::Enter { epoch, place: 0 }.encode(), LONG).unwrap();
    link
}

#[test]
fn a_ring_link_that_comes_while_a_way_is_measured_is_the_rings() {
    let home = Home::new(1);
    let mut control = control(&home);
    let other: Arc<dyn Network> = home.hub.node(2);
    control.sender.send(&Frame::AwaitEdge { from: [2; 32] }.encode(), LONG).unwrap();
    let mut edge = other.connect(&Home::node(1), Purpose::Edge, LONG).unwrap();
    // The worker answers, so it is busy with that when the link of the ring arrives.
    let latency_s = edges::latency(edge.sender.as_mut(), edge.receiver.as_mut(), LONG).unwrap();
    assert!(latency_s >= 0.0);
    drop(edge);
    let _ring = entering(&other, 1);
    std::thread::sleep(WHILE);
    control.sender.send(&relaying(1).encode(), LONG).unwrap();
    until(&mut control, |frame| *frame == Frame::Ready { epoch: 1 });
}

#[test]
fn a_link_of_an_older_epoch_that_comes_late_keeps_nobody_from_the_newer_one() {
    let home = Home::new(1);
    let mut control = control(&home);
    let other: Arc<dyn Network> = home.hub.node(2);
    let _links = [3, 2].map(|epoch| entering(&other, epoch));
    std::thread::sleep(WHILE);
    control.sender.send(&relaying(3).encode(), LONG).unwrap();
    until(&mut control, |frame| *frame == Frame::Ready { epoch: 3 });
}

#[test]
fn a_device_that_hears_late_of_another_one_is_measured_all_the_same() {
    let home = Home::new(2);
    home.hub.refuse(Purpose::Edge, 3);
    let table = EdgeTable::default();
    let kept = table.clone();
    let planner = Box::new(even(1, LAYERS));
    let head = home.head_with(model(), planner, |options| options.edges = table);
    let edges = kept.network().edges;
    assert!(edges.iter().any(|edge| edge.from == "w1" && edge.to == "w2"), "{edges:?}");
    assert_eq!(head.handle().stats().devices.len(), 3);
}

#[test]
fn a_device_whose_way_cannot_be_measured_takes_part() {
    let home = Home::new(1);
    home.hub.hook(|passing| match Frame::decode(passing.frame) {
        Ok(Frame::Echoed(_)) => Fate::Instead(Vec::new()),
        _ => Fate::Pass,
    });
    let mut head = home.head(first(plan(1, &[("head", 2), ("w1", 3)])));
    let ids = prompt(4, 30);
    let want = written(&mut one_engine(), &ids, 3).0;
    assert_same_bits(&written(&mut head, &ids, 3).0, &want, "over a way that nobody measured");
    let stats = head.handle().stats();
    assert_eq!((stats.devices.len(), stats.lost.len()), (2, 0), "{stats:?}");
}

/// Acts as a worker that reports progress again and again, but is never ready.
fn never_ready(network: &dyn Network, stop: &AtomicBool) {
    let (mut controls, mut others) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Acquire) {
        match network.accept(Duration::from_millis(1)) {
            Ok((mut link, Purpose::Control)) => {
                let hello = Frame::Hello(Hello { name: "w1".to_owned(), device: None });
                link.sender.send(&hello.encode(), LONG).unwrap();
                controls.push((link, false));
            }
            // Kept, so that the ring sees no link end.
            Ok((link, _)) => others.push(link),
            Err(_) => {}
        }
        for (link, configured) in &mut controls {
            while let Ok(bytes) = link.receiver.receive(Duration::from_millis(1)) {
                match Frame::decode(&bytes) {
                    Ok(Frame::Echo(echo)) => {
                        link.sender.send(&edges::answer(&echo).encode(), LONG).unwrap();
                    }
                    Ok(Frame::Configure(_)) => *configured = true,
                    _ => {}
                }
            }
            let frame = if *configured { Frame::FetchProgress } else { Frame::Heartbeat(Default::default()) };
            // After it was left out, nobody receives it.
            let _left_out = link.sender.send(&frame.encode(), LONG);
        }
    }
}

#[test]
fn a_device_that_is_fed_for_ever_keeps_no_ring_from_being_formed() {
    let home = Home::new(0);
    let (network, stop) = (home.hub.node(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| never_ready(&*network, &stop));
        let mut options = RingOptions::new("head", engine_options(1024));
        options.heartbeat = Duration::from_secs(5);
        options.patience = Duration::from_secs(2);
        let planner = Box::new(first(plan(1, &[("head", 2), ("w1", 3)])));
        let formed = RingHead::connect(home.hub.node(0), &[Home::node(1)], model(), planner, options);
        stop.store(true, Ordering::Release);
        let stats = formed.unwrap().handle().stats();
        assert_eq!((stats.devices.len(), stats.lost.len()), (1, 1), "{stats:?}");
        assert!(stats.lost[0].words.starts_with("not ready within"), "{stats:?}");
    });
}
