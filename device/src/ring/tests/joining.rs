//! Devices that join: those without the model, those that come later, heads that come back.

use super::*;
use crate::residency::{self, Layers, Share};
use crate::ring::frame::Frame;
use crate::ring::head::RingError;
use crate::ring::link::Purpose;
use crate::ring::link::memory::Fate;
use crate::ring::profile::this_memory;

fn want(ids: &[TokenId]) -> Vec<f32> {
    written(&mut one_engine(), ids, 3).0
}

#[test]
fn a_device_without_the_model_gets_its_layers_and_keeps_them() {
    let mut home = Home::new(0);
    home.add(1, Vec::new());
    let ids = prompt(4, 30);
    let pieces = Arc::new(Mutex::new(0));
    let own = Arc::clone(&pieces);
    home.hub.hook(move |passing| {
        *own.lock().unwrap() += usize::from(matches!(Frame::decode(passing.frame), Ok(Frame::Piece(_))));
        Fate::Pass
    });
    for again in [false, true] {
        let mut head = home.head(first(plan(1, &[("head", 2), ("w1", 3)])));
        assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "with fetched weights");
        let fetched = std::mem::take(&mut *pieces.lock().unwrap());
        assert_eq!(fetched == 0, again, "{fetched} pieces, again {again}");
    }
    let events = home.events.lock().unwrap();
    assert!(events.iter().any(|(_, event)| matches!(event, WorkerEvent::Fetching { .. })));
    assert!(events.iter().any(|(_, event)| matches!(event, WorkerEvent::HeadGone { .. })));
}

#[test]
fn devices_whose_layers_do_not_fit_their_memory_read_them_and_change_no_bit() {
    let mut home = Home::new(0);
    home.add_within(1, vec![model_path()], MemoryFor::Bytes(0));
    home.add_within(2, Vec::new(), MemoryFor::Bytes(40_000));
    let ids = prompt(6, 50);
    for rounds in [1, 2] {
        let mut head = home.head(first(plan(rounds, &[("head", 1), ("w1", 2), ("w2", 2)])));
        assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "weights from the disk");
        assert_eq!(head.handle().stats().recoveries, 0);
    }
}

#[test]
fn a_head_keeps_the_layers_of_its_plan_within_its_memory() {
    let share = Share { kv_tokens: 1024, layers: Layers::Planned, reads_ahead: true };
    let own = residency::open(&model_path(), MemoryFor::Bytes(30_000), 0, &share).unwrap();
    let home = Home::new(1);
    let planner = first(plan(2, &[("head", 2), ("w1", LAYERS - 2)]));
    let mut head = home.head_with(Arc::clone(&own), Box::new(planner), |_| {});
    let ids = prompt(7, 50);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "in two rounds, weights from the disk");
    let weights = own.streamed().unwrap();
    let (layers, part) = (weights.layers(), weights.stats());
    assert!(layers.len() == 2 && part.resident_bytes <= 30_000 && part.bytes_read > 0, "{layers:?} {part:?}");
    home.hub.kill(1);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "alone, weights from the disk");
    let whole = weights.stats();
    assert!(whole.weight_bytes > part.weight_bytes && whole.resident_bytes <= 30_000, "{whole:?}");
    assert_eq!(weights.layers(), (0..LAYERS).collect::<Vec<_>>());
}

#[test]
fn a_device_that_is_given_forged_weights_takes_no_part() {
    let mut home = Home::new(0);
    home.add(1, Vec::new());
    home.hub.hook(|passing| match Frame::decode(passing.frame) {
        Ok(Frame::Piece(mut piece)) => {
            piece.bytes[0] ^= 1;
            Fate::Instead(vec![Frame::Piece(piece).encode()])
        }
        _ => Fate::Pass,
    });
    let ids = prompt(4, 30);
    let mut head = home.head(first(plan(1, &[("head", 2), ("w1", 3)])));
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "alone");
    let stats = head.handle().stats();
    assert!(stats.lost[0].words.contains("has other bytes than the list"), "{stats:?}");
}

#[test]
fn a_device_that_comes_later_serves_from_the_next_answer_on() {
    let mut home = Home::new(1);
    let mut head = home.head(even(2, LAYERS));
    let ids = prompt(5, 40);
    let kept = head.create_with(None).unwrap();
    head.step(&[step(kept, &ids, Wanted::None)], &mut ()).unwrap();
    home.add(2, vec![model_path()]);
    let handle = head.handle();
    handle.join(Home::node(2));
    assert_eq!(handle.stats().devices.len(), 2, "not while an answer may run");
    until_serves(&handle, "w2", || head.between_answers());
    let mut engine = one_engine();
    let seq = engine.create();
    engine.step(&[step(seq, &ids, Wanted::None)], &mut ()).unwrap();
    let want = engine.step(&[step(seq, &[9], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    let have = head.step(&[step(kept, &[9], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    assert_same_bits(&have, &want, "a sequence from before");
    assert!(handle.stats().lost.is_empty());
}

#[test]
fn a_device_that_comes_back_is_found_and_serves_again() {
    let home = Home::new(2);
    let mut head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let around = HubHome { hub: Arc::clone(&home.hub), workers: vec![1, 2] };
    spawn_rejoin(&handle, Box::new(around), Duration::from_millis(10)).unwrap();
    let ids = prompt(8, 40);
    let kept = head.create_with(None).unwrap();
    head.step(&[step(kept, &ids, Wanted::None)], &mut ()).unwrap();
    home.hub.kill(1);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "without it");
    assert_eq!((handle.stats().devices.len(), handle.present()), (2, vec![[2; 32]]));
    home.hub.revive(1);
    let begun = std::time::Instant::now();
    while handle.joining().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody found it");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(handle.stats().devices.len(), 2, "not while an answer may run");
    until_serves(&handle, "w1", || head.between_answers());
    assert!(handle.joining().is_empty() && handle.stats().fetching.is_empty());
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "with it again");
    let mut engine = one_engine();
    let seq = engine.create();
    engine.step(&[step(seq, &ids, Wanted::None)], &mut ()).unwrap();
    let want = engine.step(&[step(seq, &[9], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    let have = head.step(&[step(kept, &[9], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    assert_same_bits(&have, &want, "a sequence from before all that");
    assert_eq!(handle.stats().lost.len(), 1);
}

#[test]
fn a_device_that_fetches_its_weights_keeps_nobody_waiting() {
    let mut home = Home::new(1);
    home.patience = Duration::from_secs(300);
    let mut head = home.head(even(1, LAYERS));
    let (handle, ids) = (head.handle(), prompt(8, 40));
    home.add(2, Vec::new());
    let slow = Arc::new(AtomicBool::new(true));
    let own = Arc::clone(&slow);
    home.hub.hook(move |passing| {
        let asks = matches!(Frame::decode(passing.frame), Ok(Frame::FetchPieces { .. }));
        if asks && own.load(Ordering::Acquire) { Fate::Instead(Vec::new()) } else { Fate::Pass }
    });
    let epoch = handle.stats().epoch;
    handle.join(Home::node(2));
    for _ in 0..3 {
        head.between_answers();
        assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "while it fetches");
        let stats = handle.stats();
        assert_eq!(
            (stats.devices.len(), stats.epoch, &stats.fetching[..]),
            (2, epoch, &["w2".to_owned()][..])
        );
        assert_eq!(handle.present(), [[1; 32], [2; 32]], "nobody has to look for it");
    }
    // It leaves, comes back, and continues fetching.
    home.hub.kill(2);
    let begun = std::time::Instant::now();
    while handle.stats().lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", handle.stats());
        head.between_answers();
    }
    assert_eq!((handle.stats().fetching.len(), handle.present()), (0, vec![[1; 32]]));
    slow.store(false, Ordering::Release);
    home.hub.revive(2);
    handle.join(Home::node(2));
    until_serves(&handle, "w2", || head.between_answers());
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "with it");
    let stats = handle.stats();
    assert_eq!((stats.lost.len(), stats.fetching.len(), stats.epoch), (1, 0, epoch + 1), "{stats:?}");
}

#[test]
fn a_device_with_which_no_ring_can_be_formed_costs_nobody_the_ring() {
    let home = Home::new(2);
    let mut rest = even(1, LAYERS);
    let planner = move |workers: &[Hello]| match workers.iter().any(|hello| hello.name == "w2") {
        true => Err("w2 has no rate for F32".to_owned()),
        false => rest(workers),
    };
    let mut options = RingOptions::new("head", engine_options(1024));
    options.heartbeat = Duration::from_secs(5);
    let nodes = [Home::node(1)];
    let mut head = RingHead::connect(home.hub.node(0), &nodes, model(), Box::new(planner), options).unwrap();
    let handle = head.handle();
    handle.join(Home::node(2));
    // Nobody answers at this address.
    handle.join(Home::node(7));
    let epoch = handle.stats().epoch;
    head.between_answers();
    let stats = handle.stats();
    assert_eq!((stats.devices.len(), handle.present()), (2, vec![[1; 32]]), "{stats:?}");
    assert_eq!(stats.epoch, epoch, "the ring goes on as it was");
    let ids = prompt(5, 40);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "without it");
    handle.join(Home::node(7));
    handle.join(Home::node(1));
    head.between_answers();
    assert_eq!(handle.stats().epoch, epoch, "who is not there, or there already, costs nothing");
}

#[test]
fn devices_that_are_not_there_are_left_out() {
    let home = Home::new(1);
    home.hub.kill(1);
    let mut head = home.head(even(1, LAYERS));
    let ids = prompt(4, 30);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "alone");
}

#[test]
fn a_worker_serves_one_head_at_a_time_and_then_the_next() {
    let home = Home::new(1);
    let ids = prompt(4, 30);
    {
        let mut head = home.head(even(1, LAYERS));
        assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "the first head");
        assert_eq!(head.handle().stats().devices.len(), 2);
    }
    let mut head = home.head(even(1, LAYERS));
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "the next");
    assert_eq!(head.handle().stats().devices.len(), 2);
}

#[test]
fn strangers_get_no_control() {
    let home = Home::new(1);
    // The worker knows only the head's key.
    let stranger: Arc<dyn Network> = home.hub.node(9);
    let mut link = stranger.connect(&Home::node(1), Purpose::Control, Duration::from_secs(120)).unwrap();
    let heard = link.receiver.receive(Duration::from_secs(120));
    assert!(matches!(heard, Err(crate::ring::link::LinkError::Closed)), "{heard:?}");
}

#[test]
fn plans_and_names_that_do_not_fit_are_refused() {
    let home = Home::new(1);
    let connect = |planner: Planner, name: &str| {
        let options = RingOptions::new(name, engine_options(64));
        RingHead::connect(home.hub.node(0), &home.nodes(), model(), planner, options).err().unwrap()
    };
    let wrong = connect(Box::new(|_| Ok(plan(1, &[("head", 2), ("w1", 2)]))), "head");
    assert!(matches!(wrong, RingError::Layout(_)), "{wrong}");
    let unknown = connect(Box::new(|_| Ok(plan(1, &[("head", 2), ("w7", 3)]))), "head");
    assert!(unknown.to_string().contains("names a device that is not there"), "{unknown}");
    let twice = connect(Box::new(even(1, LAYERS)), "w1");
    assert!(matches!(twice, RingError::TwoNames { name } if name == "w1"));
}

#[test]
fn a_device_goes_by_the_name_that_it_has_here() {
    let home = Home::new(1);
    let planner = first(plan(1, &[("head", 2), ("desk", 3)]));
    let mut head = home.head_with(model(), Box::new(planner), |options| {
        options.names = Names::new(|key| (*key == [1; 32]).then(|| "desk".to_owned()));
    });
    let ids = prompt(4, 20);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "under its name here");
    let stats = head.handle().stats();
    let names: Vec<&str> = stats.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["head", "desk"]);
}

#[test]
fn every_way_is_measured_once_and_known_by_name() {
    let mut home = Home::new(2);
    let echoes = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&echoes);
    home.hub.hook(move |passing| {
        if let Ok(Frame::Echo(echo)) = Frame::decode(passing.frame) {
            own.lock().unwrap().push((
                passing.from[0],
                passing.to[0],
                echo.bytes.len() + echo.reply as usize,
            ));
        }
        Fate::Pass
    });
    let table = crate::ring::edges::EdgeTable::default();
    let kept = table.clone();
    let planner = Box::new(even(1, LAYERS));
    let mut head = home.head_with(model(), planner, |options| options.edges = table);
    let names = |table: &crate::ring::edges::EdgeTable| {
        let edge = |edge: &baton_plan::Edge| format!("{}>{}", edge.from, edge.to);
        let mut names: Vec<String> = kept_edges(table).iter().map(edge).collect();
        names.sort();
        names
    };
    assert_eq!(names(&kept), ["head>w1", "head>w2", "w1>head", "w1>w2", "w2>head", "w2>w1"]);
    let said = std::mem::take(&mut *echoes.lock().unwrap());
    for pair in [(0, 1), (0, 2), (1, 2)] {
        let bytes: usize = said.iter().filter(|(a, b, _)| (*a, *b) == pair).map(|(_, _, bytes)| bytes).sum();
        assert!((2 * 65_536..=2 * (7 << 20)).contains(&bytes), "{bytes} bytes between {pair:?}");
    }
    let ids = prompt(2, 30);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "on a measured ring");
    home.add(3, vec![model_path()]);
    let handle = head.handle();
    handle.join(Home::node(3));
    until_serves(&handle, "w3", || head.between_answers());
    assert_eq!(names(&kept).len(), 12);
    let said = std::mem::take(&mut *echoes.lock().unwrap());
    assert!(
        said.iter().all(|(a, b, _)| [*a, *b].contains(&3)),
        "what is known is not measured again: {said:?}"
    );
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "with a third worker");
    assert_eq!(head.handle().stats().lost.len(), 0);
}

fn kept_edges(table: &crate::ring::edges::EdgeTable) -> Vec<baton_plan::Edge> {
    table.network().edges
}

#[test]
fn a_device_of_another_version_takes_no_part() {
    let home = Home::new(1);
    // The worker's introduction, as an older program writes it.
    home.hub.hook(|passing| match Frame::decode(passing.frame) {
        Ok(Frame::Hello(_)) => {
            let mut old = passing.frame.to_vec();
            old[0] = 1;
            Fate::Instead(vec![old])
        }
        _ => Fate::Pass,
    });
    let mut head = home.head(even(1, LAYERS));
    assert!(head.handle().present().is_empty());
    let ids = prompt(2, 30);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "alone");
}

#[test]
fn what_devices_show_is_asked_for_between_answers_and_a_new_plan_changes_no_bit() {
    let home = Home::new(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&seen);
    let mut head = home
        .head_with(model(), Box::new(even(2, LAYERS)), |options| options.heartbeat = Duration::from_secs(2))
        .with_reviser(Box::new(move |shown| {
            own.lock().unwrap().push(shown.to_vec());
            shown.iter().any(|device| device.name == "w1" && device.token_s.is_some())
        }));
    let ids = prompt(3, 40);
    let want = written(&mut one_engine(), &ids, 40);
    let epoch = head.handle().stats().epoch;
    head.between_answers();
    assert_eq!(head.handle().stats().epoch, epoch, "nothing is shown yet");
    assert!(seen.lock().unwrap().concat().iter().all(|device| device.token_s.is_none()));
    let memory = seen.lock().unwrap()[0].iter().find(|device| device.name == "head").unwrap().memory_bytes;
    assert_eq!(memory.is_some_and(|bytes| bytes > 0.0), this_memory().is_ok(), "the head's own: {memory:?}");
    assert_same_bits(&written(&mut head, &ids, 40).0, &want.0, "by the first plan");
    // The worker's counts come with its heartbeats.
    let begun = std::time::Instant::now();
    while head.handle().stats().epoch == epoch {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", seen.lock().unwrap().last());
        std::thread::sleep(Duration::from_millis(20));
        head.between_answers();
    }
    let names: Vec<Vec<String>> =
        seen.lock().unwrap().iter().map(|shown| shown.iter().map(|one| one.name.clone()).collect()).collect();
    assert!(names.contains(&vec!["head".to_owned(), "w1".to_owned()]), "{names:?}");
    assert_same_bits(&written(&mut head, &ids, 40).0, &want.0, "by the next plan");
    assert!(head.handle().stats().lost.is_empty());
}
