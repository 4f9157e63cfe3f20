//! A worker's core and its real disk, against a head that gives pieces of a real file: only what layers need
//! is fetched, and only once, whatever happens in between.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use baton_engine::engine::Hidden;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};

use super::*;
use crate::core::worker::{Effect, WorkerNews, WorkerSetup};
use crate::core::{DeviceId, Digest, Gone, LinkEffect, LinkEvent, LinkId, Node, Purpose};
use crate::weights::CheckedPieces;
use crate::weights::tests::{Head, head, rot};
use crate::wire::frame::{Frame, Hello, PieceData, Provide};

const CONTROL: LinkId = LinkId(1);

/// Gives pieces of the head's file; may stop early, and may send false bytes.
struct Giver<'a> {
    head: &'a Head,
    model: Digest,
    /// Pieces that it sends before its link ends.
    until: usize,
    forged: Option<u32>,
    lists: usize,
    bytes: u64,
}

fn giver(head: &Head) -> Giver<'_> {
    let model = head.manifest.digest();
    Giver { head, model, until: usize::MAX, forged: None, lists: 0, bytes: 0 }
}

impl Giver<'_> {
    /// Answers a frame of the worker.
    fn answers(&mut self, frame: &Frame) -> Vec<Event> {
        let heard = |frame| Event::Link(LinkEvent::Heard(CONTROL, frame));
        match frame {
            Frame::FetchManifest => {
                self.lists += 1;
                vec![heard(Frame::Manifest(self.head.manifest.bytes()))]
            }
            Frame::FetchPieces { first, count } => {
                let file = File::open(&self.head.path).unwrap();
                let mut events = Vec::new();
                for index in *first..first + count {
                    if self.until == 0 {
                        let gone = Gone::Closed("cut off".into());
                        events.push(Event::Link(LinkEvent::Gone(CONTROL, gone)));
                        break;
                    }
                    self.until -= 1;
                    let mut bytes = self.head.manifest.piece(&file, &self.head.path, index).unwrap();
                    if self.forged == Some(index) {
                        bytes[0] ^= 1;
                    }
                    self.bytes += bytes.len() as u64;
                    events.push(heard(Frame::Piece(PieceData { index, bytes })));
                }
                events
            }
            _ => Vec::new(),
        }
    }
}

/// What came of a fetch. Progress is in bytes: done, and all.
#[derive(Default)]
struct Fetched {
    /// The message of the failure; `None` if the head's link ended before.
    done: Option<Result<(), String>>,
    checking: Vec<(u64, u64)>,
    fetching: Vec<(u64, u64)>,
}

fn places(folder: &Path, checked: &CheckedPieces) -> Places {
    Places { files: Vec::new(), folder: folder.to_owned(), checked: checked.clone() }
}

/// Lets a worker that was just started fetch what these layers need.
fn fetch(folder: &Path, checked: &CheckedPieces, giver: &mut Giver<'_>, layers: &[u16]) -> Fetched {
    let node = Node { device: DeviceId([8; 32]), address: "at:8".into() };
    let hello = Hello { name: "desk".into(), device: None };
    let times = (Duration::from_secs(10), Duration::from_secs(15));
    let setup = WorkerSetup { own: node, hello, patience: times.0, silence: times.1 };
    let mut core = WorkerCore::new(setup, Duration::ZERO);
    let mut disk = DiskWorker::new(places(folder, checked));
    let provide = Provide { model: giver.model, layers: layers.to_vec(), others: Vec::new() };
    let mut events = VecDeque::from(
        [
            LinkEvent::Arrived { link: CONTROL, from: DeviceId([1; 32]), purpose: Purpose::Control },
            LinkEvent::Heard(CONTROL, Frame::Provide(Box::new(provide))),
        ]
        .map(Event::Link),
    );
    let mut fetched = Fetched::default();
    while let Some(event) = events.pop_front() {
        for effect in core.step(event, Duration::ZERO) {
            match effect {
                Effect::Disk(id, work) => {
                    let mut told = Vec::new();
                    let mut progress = |done, total| told.push(DiskEvent::Progress { done, total });
                    let last = disk.perform(work, &mut || false, &mut progress);
                    told.push(last);
                    told.into_iter().rev().for_each(|event| events.push_front(Event::Disk(id, event)));
                }
                Effect::Link(LinkEffect::Send(CONTROL, Frame::Provided)) => fetched.done = Some(Ok(())),
                Effect::Link(LinkEffect::Send(CONTROL, Frame::Failed(failure))) => {
                    fetched.done = Some(Err(failure.words));
                }
                Effect::Link(LinkEffect::Send(CONTROL, frame)) => events.extend(giver.answers(&frame)),
                Effect::Tell(WorkerNews::Checking { done, total }) => fetched.checking.push((done, total)),
                Effect::Tell(WorkerNews::Fetching { done, total }) => fetched.fetching.push((done, total)),
                _ => {}
            }
        }
    }
    fetched
}

/// Fetches like a program that was just started; returns the bytes that came.
#[track_caller]
fn fetched(folder: &Path, head: &Head, layers: &[u16]) -> u64 {
    let mut giver = giver(head);
    let fetched = fetch(folder, &CheckedPieces::default(), &mut giver, layers);
    assert_eq!(fetched.done, Some(Ok(())));
    giver.bytes
}

fn store(folder: &Path, head: &Head) -> PieceStore {
    places(folder, &CheckedPieces::default()).store(head.manifest.digest()).unwrap().unwrap()
}

fn file_in(folder: &Path, head: &Head) -> PathBuf {
    store(folder, head).path().to_owned()
}

#[test]
fn a_device_gets_its_layers_and_computes_with_them() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let mut from = giver(&head);
    let heard = fetch(folder.path(), &CheckedPieces::default(), &mut from, &[1, 4]);
    assert_eq!((heard.done, heard.checking), (Some(Ok(())), Vec::new()), "nothing is there to be checked");
    let whole = head.manifest.file_len();
    assert!(from.bytes < whole / 2, "{} of {whole} bytes for two of six layers", from.bytes);
    let grows = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0 || pair[0].1 != pair[1].1;
    assert!(heard.fetching.windows(2).all(grows), "{:?}", heard.fetching);
    assert_eq!(heard.fetching.last().map(|(done, all)| done == all), Some(true));
    let [all, part] =
        [head.path.clone(), file_in(folder.path(), &head)].map(|path| Model::open(&path).unwrap());
    let run = |model| {
        let options = EngineOptions { layers: Some(vec![1, 4]), ..EngineOptions::default() };
        let mut engine = Engine::new(model, options).unwrap();
        let seq = engine.create();
        let entry = StepSeq { seq, ids: &[1, 2, 3], logits: Wanted::None, capture: None };
        let step = engine.open_step(&[entry]).unwrap();
        let width = engine.model().config().d_model;
        let values = (0..3 * width).map(|at| (at % 7) as f32 - 3.0).collect();
        let hidden = Hidden { rows: 3, width, values };
        let hidden = engine.run_layers(&step, 0..3, hidden, 1..2, &mut ()).unwrap();
        engine.run_layers(&step, 0..3, hidden, 4..5, &mut ()).unwrap()
    };
    let (want, have) = (run(all), run(part));
    assert!(want.values.iter().any(|value| *value != 0.0));
    assert_eq!(have, want);
}

#[test]
fn a_second_start_moves_nothing_and_more_layers_only_what_is_new() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let first = fetched(folder.path(), &head, &[0, 1]);
    assert!(first > 0);
    assert_eq!(fetched(folder.path(), &head, &[0, 1]), 0);
    let mut again = giver(&head);
    fetch(folder.path(), &CheckedPieces::default(), &mut again, &[1]);
    assert_eq!((again.bytes, again.lists), (0, 0));
    let more = fetched(folder.path(), &head, &[1, 2]);
    assert!(more > 0 && more < first, "{more} bytes for one layer more, {first} for two");
}

#[test]
fn runs_that_came_before_a_cut_are_not_fetched_again() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let all = fetched(tempfile::tempdir().unwrap().path(), &head, &[2]);
    for until in [1, 7, 30] {
        let before = there(folder.path(), &head).len();
        let mut cut = Giver { until, ..giver(&head) };
        let broken = fetch(folder.path(), &CheckedPieces::default(), &mut cut, &[2]);
        assert_eq!(broken.done, None, "{until} pieces");
        let now = there(folder.path(), &head).len();
        // The run under way is lost: less than sixteen pieces.
        assert!((before + until.saturating_sub(15)..=before + until).contains(&now), "{now} of {until}");
    }
    let kept: u64 = there(folder.path(), &head).into_iter().map(|piece| len_of(&head, piece)).sum();
    assert!(kept > 0);
    assert_eq!(kept + fetched(folder.path(), &head, &[2]), all);
}

/// Returns the pieces that count as present.
fn there(folder: &Path, head: &Head) -> Vec<u32> {
    let store = places(folder, &CheckedPieces::default()).store(head.manifest.digest()).unwrap();
    store
        .map_or_else(Vec::new, |store| (0..head.manifest.count()).filter(|piece| store.has(*piece)).collect())
}

#[test]
fn a_file_that_was_cut_is_fetched_anew() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let all = fetched(folder.path(), &head, &[0]);
    let path = file_in(folder.path(), &head);
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!(fetched(folder.path(), &head, &[0]), all);
}

#[test]
fn forged_pieces_and_lists_are_refused_and_not_kept() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let refused = |giver: &mut Giver<'_>| {
        let done = fetch(folder.path(), &CheckedPieces::default(), giver, &[0]).done;
        done.unwrap().unwrap_err()
    };
    let words = refused(&mut Giver { model: [7; 32], ..giver(&head) });
    assert!(words.contains("not that of the model"), "{words}");
    let words = refused(&mut Giver { forged: Some(0), ..giver(&head) });
    assert!(words.contains("piece 0 has other bytes"), "{words}");
    assert!(!store(folder.path(), &head).has(0));
}

#[test]
fn rotten_pieces_are_found_at_the_next_start_and_fetched_again() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    fetched(folder.path(), &head, &[2, 3]);
    let path = file_in(folder.path(), &head);
    let sound = std::fs::read(&path).unwrap();
    let there = there(folder.path(), &head);
    // One piece of the header, and two of the layers.
    for piece in [there[0], there[there.len() / 2], there[there.len() - 1]] {
        rot(&path, &head.manifest, piece);
        assert_ne!(std::fs::read(&path).unwrap(), sound);
        let mut from = giver(&head);
        let heard = fetch(folder.path(), &CheckedPieces::default(), &mut from, &[2, 3]);
        assert_eq!(heard.done, Some(Ok(())));
        assert_eq!(from.bytes, len_of(&head, piece), "piece {piece} and no other");
        assert!(std::fs::read(&path).unwrap() == sound, "piece {piece} is mended");
        let bytes: u64 = there.iter().map(|piece| len_of(&head, *piece)).sum();
        assert!(heard.checking.iter().any(|(done, all)| done == all), "progress is told to the end");
        assert!(heard.checking.iter().all(|(_, all)| *all <= bytes));
    }
    assert_eq!(fetched(folder.path(), &head, &[2, 3]), 0, "nothing is left to mend");
}

#[test]
fn a_piece_is_read_once_in_a_run_of_the_program_unless_its_file_changes() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let checked = CheckedPieces::default();
    let checks = |layers: &[u16]| {
        let heard = fetch(folder.path(), &checked, &mut giver(&head), layers);
        assert_eq!(heard.done, Some(Ok(())));
        heard.checking.iter().map(|(_, all)| *all).max().unwrap_or(0)
    };
    assert_eq!(checks(&[0, 1]), 0, "what was fetched just now was hashed just now");
    assert_eq!(checks(&[0, 1]), 0);
    assert_eq!(checks(&[0, 1, 2]), 0, "more layers");
    checked.forget();
    let all = checks(&[0, 1]);
    assert!(all > 0);
    assert_eq!(checks(&[0, 1]), 0);
    let path = file_in(folder.path(), &head);
    File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(checks(&[0, 1]) > 0, "somebody wrote into it");
}

#[test]
fn a_work_that_panics_is_answered_and_the_next_one_is_done() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let mut disk = DiskWorker::new(places(folder.path(), &CheckedPieces::default()));
    let digest = head.manifest.digest();
    let keep = DiskWork::Keep { model: digest, list: head.manifest.bytes() };
    assert_eq!(disk.perform_caught(keep, &mut || false, &mut |_, _| {}), DiskEvent::Done);
    let look = || DiskWork::Look { model: digest, part: PartOf::Header, layers: Vec::new() };
    assert!(matches!(disk.perform_caught(look(), &mut || false, &mut |_, _| {}), DiskEvent::Lacks { .. }));
    disk.perform(
        DiskWork::Put { index: 0, bytes: piece(&head, 0), missing: 0 },
        &mut || false,
        &mut |_, _| {},
    );
    disk.perform(DiskWork::Sync { missing: 0 }, &mut || false, &mut |_, _| {});
    disk.perform(DiskWork::ForgetChecked, &mut || false, &mut |_, _| {});
    let event = disk.perform_caught(look(), &mut || panic!("odd"), &mut |_, _| {});
    assert_eq!(event, DiskEvent::Failed("the disk's thread panicked: odd".into()));
    assert!(matches!(disk.perform_caught(look(), &mut || false, &mut |_, _| {}), DiskEvent::Lacks { .. }));
}

fn piece(head: &Head, index: u32) -> Vec<u8> {
    head.manifest.piece(&File::open(&head.path).unwrap(), &head.path, index).unwrap()
}

fn len_of(head: &Head, index: u32) -> u64 {
    piece(head, index).len() as u64
}
