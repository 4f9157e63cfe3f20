//! Devices whose weights are corrupted, before they are opened or while they are used.

use std::path::Path;

use baton_engine::gguf::Gguf;
use baton_engine::platform;

use super::*;
use crate::weights::{Manifest, PIECE_BYTES};
use crate::wire::frame::Frame;
use crate::wire::memory::Fate;

/// Makes a copy of the model, with its list of pieces.
fn copy(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::copy(model_path(), &path).unwrap();
    Manifest::of_file(&path, PIECE_BYTES).unwrap();
    path
}

/// Flips a low bit of some weights of a matrix; the file's length and time of change stay the same.
fn rot(path: &Path, matrix: &str) {
    let place = Gguf::open(path).unwrap().tensors().find(|tensor| tensor.name() == matrix).unwrap().place();
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let changed = file.metadata().unwrap().modified().unwrap();
    for at in place.range().step_by(256) {
        let mut byte = [0];
        // The second lowest byte of a 32-bit number.
        platform::read_exact_at(&file, &mut byte, at as u64 + 1).unwrap();
        platform::write_all_at(&file, &[byte[0] ^ 1], at as u64 + 1).unwrap();
    }
    file.set_modified(changed).unwrap();
}

/// Makes a head that audits at every opportunity.
fn watching(home: &Home, model: Arc<Model>) -> RingHead {
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    home.head_with(model, planner, |options| options.health = Duration::ZERO)
}

fn lost(handle: &RingHandle) -> Vec<String> {
    handle.stats().lost.into_iter().map(|lost| lost.name).collect()
}

/// Lets the head check its devices until `is_so` returns true.
#[track_caller]
fn until(head: &mut RingHead, what: &str, is_so: impl Fn(&RingHead) -> bool) {
    let begun = std::time::Instant::now();
    while !is_so(head) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}: {:?}", head.handle().stats());
        head.idle();
    }
}

/// Checks that a change of one worker's weights on its disk is found while it computes with them.
#[track_caller]
fn check_rot_while_computing(number: u8, matrix: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut home = home_of(0);
    let files: Vec<PathBuf> = (1..=2).map(|number| copy(folder.path(), &format!("w{number}.gguf"))).collect();
    for (number, file) in (1..).zip(&files) {
        home.add(number, vec![file.clone()]);
    }
    let mut head = watching(&home, model());
    let handle = head.handle();
    let ids = prompt(9, 40);
    let want = written(&mut one_engine(), &ids, 3);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "before");
    (0..3).for_each(|_| head.idle());
    assert_eq!((lost(&handle), handle.stats().recoveries), (Vec::new(), 0), "nobody is suspected");
    rot(&files[usize::from(number) - 1], matrix);
    // The last words are slower than the end of the other links.
    home.hub.hook(|passing| {
        if matches!(Frame::decode(passing.frame), Ok(Frame::Failed(_))) {
            std::thread::sleep(Duration::from_millis(300));
        }
        Fate::Pass
    });
    until(&mut head, matrix, |_| !lost(&handle).is_empty());
    let culprit = format!("w{number}");
    let stats = handle.stats();
    assert_eq!(lost(&handle), std::slice::from_ref(&culprit), "{stats:?}");
    assert!(stats.lost[0].words.contains(&format!("`{culprit}` computes layer")), "{stats:?}");
    assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "after");
    // It is told why, and stays out however often it comes.
    let begun = std::time::Instant::now();
    let heard = |(from, event): &(u8, WorkerEvent)| {
        *from == number
            && matches!(event, WorkerEvent::Failed { words, .. } if words.contains("computes layer"))
    };
    while !home.events.lock().unwrap().iter().any(heard) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", home.events.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    handle.join(Home::node(number));
    (0..3).for_each(|_| head.idle());
    assert!(!handle.present().contains(&DeviceId([number; 32])) && handle.joining().is_empty());
    assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "and later");
    drop((head, home));
}

#[test]
fn a_device_whose_weights_rot_while_it_computes_is_found_named_and_left_out() {
    // With two rounds, w1 has layers 1 and 3, w2 has 2 and 4. Keys matter only if a token attends to
    // another.
    check_rot_while_computing(1, "blk.3.ffn_down.weight");
    check_rot_while_computing(2, "blk.4.attn_k.weight");
}

#[test]
fn weights_that_rotted_before_they_were_opened_are_not_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = copy(folder.path(), "whole.gguf");
    rot(&file, "blk.2.ffn_up.weight");
    let mut home = home_of(0);
    home.add(1, vec![file]);
    home.add(2, vec![model_path()]);
    let mut head = watching(&home, model());
    let ids = prompt(9, 40);
    let want = written(&mut one_engine(), &ids, 3);
    assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "with what it fetched instead");
    let events = home.events.lock().unwrap();
    let count = |number: u8, is: fn(&WorkerEvent) -> bool| {
        events.iter().filter(|(from, event)| *from == number && is(event)).count()
    };
    let checking = |event: &WorkerEvent| matches!(event, WorkerEvent::Checking { .. });
    let fetching = |event: &WorkerEvent| matches!(event, WorkerEvent::Fetching { .. });
    assert!(count(1, checking) > 0 && count(2, checking) > 0, "{events:?}");
    assert!(count(1, fetching) > 0 && count(2, fetching) == 0, "{events:?}");
    assert!(head.handle().stats().lost.is_empty());
}

/// Checks that a change in a layer of the head's own file is found while the ring serves.
#[track_caller]
fn check_own_rot(matrix: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = copy(folder.path(), "head.gguf");
    let home = home_of(2);
    let mut head = watching(&home, Model::open(&file).unwrap());
    let handle = head.handle();
    head.idle();
    rot(&file, matrix);
    let asked = |head: &mut RingHead| {
        let seq = head.create_in(PrefixScope::default(), None).unwrap();
        let done = head.step(&[step(seq, &[1, 2], Wanted::Last)], &mut ()).map(drop);
        head.release(seq);
        done
    };
    let begun = std::time::Instant::now();
    let refused = loop {
        head.idle();
        match asked(&mut head) {
            Err(err) => break baton_terminal::chain(&err),
            Ok(()) => assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", handle.stats()),
        }
    };
    assert!(refused.contains("the head's own model") && refused.contains("head.gguf"), "{refused}");
    assert_eq!(lost(&handle), Vec::<String>::new());
}

#[test]
fn a_head_whose_own_file_rots_says_so_and_blames_nobody_else() {
    // A layer that a worker computes too.
    check_own_rot("blk.3.ffn_up.weight");
}

#[test]
fn a_head_reads_its_own_layers_again_before_it_goes_on_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = copy(folder.path(), "head.gguf");
    // Corrupted before the ring was formed; the list beside the file belongs to the sound file. The third
    // layer is the head's.
    rot(&file, "blk.2.attn_q.weight");
    let home = home_of(2);
    let mut head = watching(&home, Model::open(&file).unwrap());
    let begun = std::time::Instant::now();
    let refused = loop {
        head.idle();
        let seq = head.create_in(PrefixScope::default(), None).unwrap();
        let done = head.step(&[step(seq, &[1, 2], Wanted::Last)], &mut ()).map(drop);
        head.release(seq);
        match done {
            Err(err) => break baton_terminal::chain(&err),
            Ok(()) => assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", head.handle().stats()),
        }
    };
    assert!(refused.contains("the head's own model") && refused.contains("head.gguf"), "{refused}");
    assert_eq!(lost(&head.handle()), Vec::<String>::new());
}
