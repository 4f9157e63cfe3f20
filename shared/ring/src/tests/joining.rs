//! Devices that join: those without the model, those that come later, heads that come back.

use super::*;
use crate::core::head::RingFault;
use crate::host::RingError;
use crate::wire::frame::Frame;
use crate::wire::link::Purpose;
use crate::wire::memory::Fate;
use baton_engine::Residency;

fn want(ids: &[TokenId]) -> Vec<f32> {
    written(&mut one_engine(), ids, 3).0
}

#[test]
fn a_device_without_the_model_gets_its_layers_and_keeps_them() {
    let mut home = home_of(0);
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
    let mut home = home_of(0);
    home.add_within(1, vec![model_path()], Some(0));
    home.add_within(2, Vec::new(), Some(40_000));
    let ids = prompt(6, 50);
    for rounds in [1, 2] {
        let mut head = home.head(first(plan(rounds, &[("head", 1), ("w1", 2), ("w2", 2)])));
        assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "weights from the disk");
        assert_eq!(head.handle().stats().recoveries, 0);
    }
}

#[test]
fn a_head_keeps_the_layers_of_its_plan_within_its_memory() {
    // No layers before the first plan, and the ends.
    let residency = Residency { budget_bytes: 30_000, layers: Some(Vec::new()), ..Residency::default() };
    let own = Model::open_within(&model_path(), &residency).unwrap();
    let home = home_of(1);
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
    let mut home = home_of(0);
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
fn a_worker_serves_one_head_at_a_time_and_then_the_next() {
    let home = home_of(1);
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
    let home = home_of(1);
    // The worker knows only the head's key.
    let stranger: Arc<dyn Network> = home.hub.node(9);
    let mut link = stranger.connect(&Home::node(1), Purpose::Control, Duration::from_secs(120)).unwrap();
    let heard = link.receiver.receive(Duration::from_secs(120));
    assert!(matches!(heard, Err(crate::wire::link::LinkError::Closed)), "{heard:?}");
}

#[test]
fn plans_and_names_that_do_not_fit_are_refused() {
    let home = home_of(1);
    let connect = |planner: Planner, name: &str| {
        let options = RingOptions::new(name, engine_options(64), Arc::new(TestMachine::default()));
        RingHead::connect(home.hub.node(0), &home.nodes(), model(), planner, options).err().unwrap()
    };
    let wrong = connect(Box::new(|_| Ok(plan(1, &[("head", 2), ("w1", 2)]))), "head");
    assert!(matches!(wrong, RingError::Fault(RingFault::Layout(_))), "{wrong}");
    let unknown = connect(Box::new(|_| Ok(plan(1, &[("head", 2), ("w7", 3)]))), "head");
    assert!(unknown.to_string().contains("names a device that is not there"), "{unknown}");
    let twice = connect(Box::new(even(1, LAYERS)), "w1");
    assert!(matches!(twice, RingError::Fault(RingFault::TwoNames { name }) if name == "w1"));
}

#[test]
fn a_device_goes_by_the_name_that_it_has_here() {
    let home = home_of(1);
    let planner = first(plan(1, &[("head", 2), ("desk", 3)]));
    let mut head = home.head_with(model(), Box::new(planner), |options| {
        options.names = Names::new(|key| (*key == DeviceId([1; 32])).then(|| "desk".to_owned()));
    });
    let ids = prompt(4, 20);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "under its name here");
    let stats = head.handle().stats();
    let names: Vec<&str> = stats.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["head", "desk"]);
}

#[test]
fn a_device_of_another_version_takes_no_part() {
    let home = home_of(1);
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
fn a_device_that_comes_back_is_found_and_serves_again() {
    let home = home_of(2);
    let mut head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let around = HubHome { hub: Arc::clone(&home.hub), workers: vec![1, 2] };
    spawn_rejoin(&handle, Box::new(around), Duration::from_millis(10)).unwrap();
    let ids = prompt(8, 40);
    home.hub.kill(1);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "without it");
    home.hub.revive(1);
    until_serves(&handle, "w1", || head.between_answers());
    assert!(handle.joining().is_empty() && handle.stats().fetching.is_empty());
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "with it again");
    assert_eq!(handle.stats().lost.len(), 1);
}

#[test]
fn a_plan_that_is_found_wrong_between_answers_is_made_anew_and_changes_no_bit() {
    let home = home_of(1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&asked);
    let mut head = home.head(even(2, LAYERS)).with_reviser(Box::new(move |shown| {
        own.lock().unwrap().push(shown.to_vec());
        own.lock().unwrap().len() == 1
    }));
    let ids = prompt(3, 40);
    let epoch = head.handle().stats().epoch;
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "by the first plan");
    assert_eq!(head.handle().stats().epoch, epoch);
    head.between_answers();
    assert_eq!(head.handle().stats().epoch, epoch + 1);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want(&ids), "by the next plan");
    let asked = asked.lock().unwrap();
    // The worker is named as soon as it has told its counts.
    assert_eq!(asked[0][0].name, "head");
    assert!(asked[0][0].memory_bytes.is_some_and(|bytes| bytes > 0.0), "the head's own: {asked:?}");
}
