//! Requests without faults, and what is tested while no answer runs.

use baton_engine::Wanted;

use super::super::*;
use super::home::{Home, node};
use crate::core::Note;

fn idle_for(home: &mut Home, seconds: u64) {
    for _ in 0..seconds {
        home.pass_time(Duration::from_secs(1));
        home.idle();
    }
}

#[test]
fn a_head_alone_forms_no_ring_and_asks_its_engine_once_a_step() {
    let mut home = Home::connected(0, 4, 1, 1);
    assert_eq!((home.core.epoch(), home.core.pass_tokens_min()), (None, 1));
    let seq = home.create();
    assert_eq!(home.batch(&[(seq, vec![1, 2], Wanted::All)]).map(|logits| logits.len()), Ok(2));
    assert_eq!(home.events, 1);
    let stats = home.core.stats();
    assert_eq!((stats.steps, stats.tokens, stats.epoch, stats.rounds), (1, 2, 0, 1));
    assert_eq!(stats.devices.len(), 1);
    assert!((stats.devices[0].compute_ms - 1.0).abs() < 1e-9);
    assert_eq!(home.batch(&[]), Ok(vec![]));
}

#[test]
fn a_ring_shows_what_its_devices_do() {
    let mut home = Home::connected(2, 6, 2, 1);
    assert_eq!(home.core.epoch(), Some(Epoch(1)));
    assert_eq!(home.core.pass_tokens_min(), 2 * 128 * 3);
    let seq = home.create();
    assert!(home.batch(&[(seq, vec![1, 2], Wanted::All)]).is_ok());
    let stats = home.core.stats();
    let names: Vec<&str> = stats.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["head", "w1", "w2"]);
    assert_eq!((stats.epoch, stats.rounds, stats.epoch_steps), (1, 2, 1));
    assert_eq!(stats.devices[1].layers, [1, 4]);
    assert!(stats.step_ms > stats.devices[0].compute_ms && stats.devices[0].compute_ms > 0.0);
}

#[test]
fn devices_that_are_not_there_are_left_out_and_two_of_one_name_are_an_error() {
    let mut home = Home::new(2, 4, 1, 1);
    home.kill(2);
    assert_eq!(home.run(Event::Connect(vec![node(1), node(2)])), Ok(Outputs::None));
    assert_eq!(home.core.present(), [DeviceId([1; 32])]);
    assert!(home.notes.iter().any(|note| matches!(note, Note::NotIn { .. })));
    let mut home = Home::new(2, 4, 1, 1);
    let mut second = node(2);
    second.address = "w1".to_owned();
    let clash = home.run(Event::Connect(vec![node(1), second]));
    assert_eq!(clash, Err(RingFault::TwoNames { name: "w1".to_owned() }));
}

#[test]
fn a_token_goes_round_an_idle_ring_and_nothing_of_it_stays() {
    let mut home = Home::connected(2, 6, 1, 1);
    let seq = home.create();
    assert!(home.batch(&[(seq, vec![1, 2], Wanted::All)]).is_ok());
    let before = home.core.stats();
    idle_for(&mut home, 35);
    let after = home.core.stats();
    let tokens = after.tokens - before.tokens;
    assert!((2..=4).contains(&tokens), "{tokens} in 35 s");
    assert!(home.frames > 12, "{} frames, most of them of audits", home.frames);
    assert_eq!(home.core.seqs().collect::<Vec<_>>(), [seq]);
    home.check_workers();
}

#[test]
fn a_device_that_computes_wrong_is_found_named_and_not_taken_in_again() {
    let mut home = Home::connected(2, 6, 1, 1);
    home.computes_wrong(2);
    idle_for(&mut home, 30);
    assert_eq!(home.core.present(), [DeviceId([1; 32])]);
    let lost = home.core.stats().lost;
    assert!(lost[0].words.starts_with("`w2` computes layer"), "{}", lost[0].words);
    home.revive(2);
    home.step(Event::Join(node(2)));
    home.idle();
    assert_eq!(home.core.present(), [DeviceId([1; 32])]);
    assert!(home.notes.iter().any(|note| matches!(note, Note::Barred { .. })));
}

#[test]
fn a_head_with_a_rotten_file_blames_nobody_and_forms_no_ring() {
    let mut home = Home::connected(2, 6, 1, 1);
    let seq = home.create();
    home.rotten = true;
    idle_for(&mut home, 30);
    assert_eq!(home.core.present().len(), 2);
    let err = home.batch(&[(seq, vec![1], Wanted::Last)]);
    assert_eq!(err, Err(RingFault::Damaged { words: "a test".to_owned() }));
}

#[test]
fn a_plan_that_no_longer_fits_is_made_anew_and_sequences_move() {
    let mut home = Home::connected(2, 6, 1, 1);
    let seq = home.create();
    for token in 0..20 {
        assert!(home.batch(&[(seq, vec![token], Wanted::Last)]).is_ok());
    }
    home.judged = true;
    home.between();
    assert_eq!(home.core.epoch(), Some(Epoch(2)));
    assert!(home.core.is_cached());
    let shown = &home.judgements[0];
    assert_eq!(shown[0].name, "head");
    assert!(shown[0].token_s.is_some_and(|seconds| seconds > 0.0));
    assert_eq!(shown[0].memory_bytes, Some(1e9));
    assert!(home.batch(&[(seq, vec![3], Wanted::Last)]).is_ok());
    assert_eq!(home.core.ids(seq).map(<[u32]>::len), Some(21));
}

#[test]
fn an_adapter_keeps_the_head_alone() {
    let mut home = Home::connected(1, 4, 1, 1);
    assert_eq!(home.ask(SeqAsk::AddAdapter), Err(RingFault::Adapters));
    assert_eq!(home.ask(SeqAsk::Create { adapter: true }), Err(RingFault::Adapters));
    let mut home = Home::new(1, 4, 1, 1);
    assert_eq!(home.run(Event::Connect(Vec::new())), Ok(Outputs::None));
    assert_eq!(home.ask(SeqAsk::AddAdapter), Ok(Outputs::None));
    let Ok(Outputs::Seq(seq)) = home.ask(SeqAsk::Create { adapter: true }) else { panic!() };
    home.step(Event::Join(node(1)));
    for _ in 0..3 {
        home.between();
        home.idle();
    }
    assert_eq!((home.core.epoch(), home.core.present().len()), (None, 0));
    assert!(home.batch(&[(seq, vec![3], Wanted::Last)]).is_ok());
}

#[test]
fn a_head_alone_takes_a_device_in_and_reads_its_model_first() {
    let mut home = Home::new(1, 4, 1, 1);
    assert_eq!(home.run(Event::Connect(Vec::new())), Ok(Outputs::None));
    let seq = home.create();
    assert!(home.batch(&[(seq, vec![3, 4], Wanted::Last)]).is_ok());
    home.step(Event::Join(node(1)));
    home.between();
    assert_eq!(home.core.stats().fetching, ["w1"]);
    home.pass_time(Duration::from_millis(50));
    home.between();
    assert_eq!(home.core.epoch(), Some(Epoch(1)));
    home.check_workers();
    assert!(home.batch(&[(seq, vec![5], Wanted::Last)]).is_ok());
}

#[test]
fn after_the_end_nothing_is_looked_at() {
    let mut home = Home::connected(2, 6, 1, 1);
    let links =
        |effects: &[Effect]| effects.iter().filter(|effect| matches!(effect, Effect::Link(_))).count();
    let effects = home.core.step(Event::End, home.now);
    assert!(links(&effects) >= 4, "{effects:?}");
    assert!(matches!(effects.last(), Some(Effect::WakeAt(None))));
    let effects = home.core.step(Event::Tick, home.now + Duration::from_secs(100));
    assert_eq!((effects.len(), links(&effects)), (1, 0));
}
