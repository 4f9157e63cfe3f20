//! Devices that come, come back, and do not get in.

use baton_engine::Wanted;

use super::fake;
use super::home::{Home, node};
use super::*;
use crate::core::Note;
use crate::wire::frame::Operation;

const LAYERS: usize = 7;

/// A head with `connected` of its `workers` in the ring, and an engine that does the same alone.
struct Pair {
    home: Home,
    reference: fake::Device,
    seq: SeqNo,
}

impl Pair {
    fn of(workers: u8, connected: u8) -> Self {
        let mut home = Home::new(workers, LAYERS, 1, 7);
        let nodes = (1..=connected).map(node).collect();
        assert_eq!(home.run(Event::Connect(nodes)), Ok(Outputs::None));
        let (seq, mut reference) = (home.create(), fake::Device::default());
        reference.apply(&Operation::Create { seq });
        let mut pair = Self { home, reference, seq };
        pair.step(40);
        pair
    }

    /// Some tokens go through the ring, and give what one device alone gives.
    fn step(&mut self, tokens: u32) {
        let seqs = [(self.seq, (0..tokens).collect::<Vec<_>>(), Wanted::All)];
        let found = self.home.batch(&seqs);
        assert_eq!(found, Ok(self.reference.whole(&seqs, LAYERS)));
        assert_eq!(self.home.core.ids(self.seq), self.reference.ids().get(&self.seq).map(Vec::as_slice));
    }

    /// What devices have sent comes in, and then an answer begins.
    fn between(&mut self) {
        self.home.pass_time(Duration::from_millis(100));
        self.home.between();
    }

    fn join(&mut self, at: u8) {
        self.home.step(Event::Join(node(at)));
    }

    /// The devices that a step goes through, besides the head.
    fn places(&self) -> Vec<String> {
        let stats = self.home.core.stats();
        stats
            .devices
            .into_iter()
            .skip(1)
            .filter(|device| !device.layers.is_empty())
            .map(|device| device.name)
            .collect()
    }

    fn lost(&self) -> Vec<String> {
        self.home.core.stats().lost.into_iter().map(|lost| lost.name).collect()
    }

    fn said(&self, is_it: impl Fn(&Note) -> bool) -> bool {
        self.home.notes.iter().any(is_it)
    }
}

#[test]
fn a_device_fetches_its_weights_while_the_ring_goes_on_and_then_takes_part() {
    let mut pair = Pair::of(2, 1);
    let epoch = pair.home.core.epoch();
    pair.join(2);
    assert_eq!(pair.home.core.joining(), [DeviceId([2; 32])]);
    pair.step(3);
    assert_eq!(pair.home.core.joining().len(), 1, "not while an answer runs");
    pair.between();
    assert_eq!((pair.home.core.joining().len(), pair.home.core.present().len()), (0, 2));
    assert_eq!(pair.home.core.stats().fetching, ["w2"]);
    assert_eq!((pair.home.core.epoch(), pair.places()), (epoch, vec!["w1".to_owned()]));
    pair.step(3);
    pair.between();
    assert!(pair.home.core.stats().fetching.is_empty());
    assert_eq!(pair.places(), ["w1", "w2"]);
    pair.step(20);
    assert!(pair.lost().is_empty());
}

#[test]
fn a_head_alone_gets_help() {
    let mut pair = Pair::of(2, 0);
    assert_eq!(pair.home.core.epoch(), None);
    pair.join(1);
    pair.join(2);
    pair.home.idle();
    pair.step(5);
    assert_eq!((pair.home.core.epoch(), pair.home.core.stats().fetching.len()), (None, 2));
    pair.home.pass_time(Duration::from_millis(100));
    pair.home.idle();
    assert_eq!(pair.places(), ["w1", "w2"]);
    pair.step(5);
}

#[test]
fn a_device_that_comes_while_others_fetch_waits_for_them() {
    let mut pair = Pair::of(3, 1);
    pair.join(2);
    pair.between();
    pair.join(3);
    pair.between();
    assert_eq!(
        (pair.places(), pair.home.core.stats().fetching),
        (vec!["w1".into(), "w2".into()], vec!["w3".into()])
    );
    pair.between();
    assert_eq!(pair.places(), ["w1", "w2", "w3"]);
    pair.step(9);
}

#[test]
fn a_device_that_is_lost_before_it_took_part_costs_the_others_nothing() {
    let mut pair = Pair::of(2, 1);
    let epoch = pair.home.core.epoch();
    pair.join(2);
    pair.between();
    pair.home.kill(2);
    pair.home.pass_time(Duration::from_millis(100));
    pair.between();
    assert_eq!((pair.home.core.epoch(), pair.lost()), (epoch, vec!["w2".to_owned()]));
    assert!(pair.said(|note| matches!(note, Note::LeftBefore { .. })));
    pair.step(3);
}

#[test]
fn without_a_plan_for_it_a_device_leaves_and_the_ring_goes_on() {
    let mut pair = Pair::of(2, 1);
    let epoch = pair.home.core.epoch();
    pair.join(2);
    pair.home.planless = true;
    pair.between();
    pair.home.planless = false;
    assert!(pair.said(|note| matches!(note, Note::NoRingWith { .. })));
    assert_eq!(pair.home.core.present(), [DeviceId([1; 32])]);
    assert_eq!((pair.home.core.epoch(), pair.lost().len()), (epoch, 0), "it is no loss");
    pair.step(3);
    pair.join(2);
    pair.between();
    pair.between();
    assert_eq!(pair.places(), ["w1", "w2"], "it may come again");
}

#[test]
fn if_no_ring_can_be_formed_with_a_device_it_is_formed_without() {
    let mut pair = Pair::of(2, 1);
    pair.join(2);
    pair.between();
    let epoch = pair.home.core.epoch();
    pair.home.planless = true;
    pair.home.then = Some((0, Box::new(|home| home.planless = false)));
    pair.between();
    assert!(pair.said(|note| matches!(note, Note::NoRingWith { .. })));
    assert_eq!((pair.places(), pair.home.core.present()), (vec!["w1".to_owned()], vec![DeviceId([1; 32])]));
    assert!(pair.home.core.epoch() > epoch && pair.lost().is_empty());
    pair.step(3);
}

#[test]
fn a_device_that_was_lost_comes_back() {
    let mut pair = Pair::of(2, 2);
    pair.home.kill(2);
    pair.step(3);
    assert_eq!((pair.places(), pair.lost()), (vec!["w1".to_owned()], vec!["w2".to_owned()]));
    pair.home.revive(2);
    pair.join(2);
    pair.between();
    pair.between();
    assert_eq!(pair.places(), ["w1", "w2"]);
    pair.step(3);
}

#[test]
fn a_device_that_computed_wrong_stays_out() {
    let mut pair = Pair::of(2, 2);
    pair.home.computes_wrong(2);
    for _ in 0..8 {
        pair.home.pass_time(Duration::from_secs(11));
        pair.home.idle();
    }
    assert_eq!((pair.places(), pair.lost()), (vec!["w1".to_owned()], vec!["w2".to_owned()]));
    pair.home.revive(2);
    pair.join(2);
    pair.between();
    pair.between();
    assert!(pair.said(|note| matches!(note, Note::Barred { address } if address == "w2")));
    assert_eq!(pair.home.core.present(), [DeviceId([1; 32])]);
}

#[test]
fn devices_that_do_not_answer_are_left_out() {
    let mut home = Home::new(2, LAYERS, 1, 7);
    home.kill(1);
    assert_eq!(home.run(Event::Connect(vec![node(1), node(2)])), Ok(Outputs::None));
    assert_eq!(home.core.present(), [DeviceId([2; 32])]);
    assert!(home.notes.iter().any(|note| matches!(note, Note::NotIn { address, .. } if address == "w1")));
}

#[test]
fn two_devices_of_one_name_form_no_first_ring_and_the_second_cannot_join() {
    let twin = Node { address: "w1".to_owned(), ..node(2) };
    let mut home = Home::new(2, LAYERS, 1, 7);
    let name = "w1".to_owned();
    assert_eq!(home.run(Event::Connect(vec![node(1), twin.clone()])), Err(RingFault::TwoNames { name }));
    let mut pair = Pair::of(2, 1);
    pair.home.step(Event::Join(twin));
    pair.between();
    assert!(pair.said(|note| matches!(note, Note::NotIn { words, .. } if words.contains("`w1`"))));
    assert_eq!(pair.home.core.present(), [DeviceId([1; 32])]);
    pair.step(3);
}

#[test]
fn a_head_with_an_adapter_stays_alone() {
    let mut pair = Pair::of(1, 0);
    assert_eq!(pair.home.ask(SeqAsk::AddAdapter), Ok(Outputs::None));
    pair.join(1);
    for _ in 0..3 {
        pair.between();
        pair.home.idle();
    }
    assert_eq!((pair.home.core.joining().len(), pair.home.core.present().len()), (1, 0), "it waits");
    assert!(matches!(pair.home.ask(SeqAsk::Create { adapter: true }), Ok(Outputs::Seq(_))));
    pair.step(3);
    let mut ring = Pair::of(1, 1);
    assert_eq!(ring.home.ask(SeqAsk::AddAdapter), Err(RingFault::Adapters));
    assert_eq!(ring.home.ask(SeqAsk::Create { adapter: true }), Err(RingFault::Adapters));
}

#[test]
fn an_end_closes_everything_and_nothing_follows() {
    let mut pair = Pair::of(2, 2);
    pair.home.step(Event::End);
    assert!(pair.home.core.present().is_empty() && pair.home.core.epoch().is_none());
    assert!(matches!(pair.home.core.step(Event::Tick, pair.home.now)[..], [Effect::WakeAt(None)]));
}
