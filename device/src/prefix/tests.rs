//! What is kept is found again, bit for bit; what is torn, foreign or too much is missing.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use baton_engine::engine::KvFormat;
use baton_engine::{
    Engine, EngineOptions, GpuLayers, GpuUse, Model, PrefixScope, SeqId, Sequences, StepSeq, Wanted,
};
use baton_kernels_gpu::GpuError;
use baton_kernels_gpu::cases::HostDevice;
use baton_random::SplitMix64;

use super::*;
use crate::local::tests::{adapter, model};
use crate::secrets::{KeyError, Keys};

/// A folder with a store's files and settings.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn blocks(&self) -> PathBuf {
        self.0.path().join("blocks")
    }

    fn open(&self, capacity: u64) -> Store {
        Store::open(self.blocks(), &keys(&self.0.path().join("settings")), capacity).unwrap()
    }

    /// Returns the paths of all files of blocks.
    fn files(&self) -> Vec<PathBuf> {
        fn inside(folder: &Path) -> Vec<PathBuf> {
            fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        }
        inside(&self.blocks()).iter().flat_map(|folder| inside(folder)).collect()
    }
}

fn name(number: u8) -> Name {
    Name([number; 32])
}

#[test]
fn a_name_tells_every_cause_of_a_block_from_others() {
    let root = Name::root(&[1; 32], "kind", &[2; 32], None);
    let others = [
        Name::root(&[9; 32], "kind", &[2; 32], None),
        Name::root(&[1; 32], "kinds", &[2; 32], None),
        Name::root(&[1; 32], "kind", &[9; 32], None),
        Name::root(&[1; 32], "kind", &[2; 32], Some(&[3; 32])),
    ];
    assert!(others.iter().all(|other| *other != root), "{others:?}");
    let ids: Vec<TokenId> = (0..100).collect();
    let all: Vec<Name> = names(root, &ids, 0).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(names(all[0], &ids, 1).collect::<Vec<_>>(), all[1..]);
    let mut changed = ids.clone();
    changed[40] = 7;
    let other: Vec<Name> = names(root, &changed, 0).collect();
    assert_eq!(other[0], all[0]);
    assert!(other[1] != all[1] && other[2] != all[2]);
}

#[test]
fn a_block_comes_back_and_no_file_holds_it_openly() {
    let place = Place::new();
    let store = place.open(1 << 20);
    let block: Vec<u8> = (0..5000).map(|at| (at % 7) as u8).collect();
    assert!(!store.has(&name(1)) && store.get(&name(1)).is_none());
    store.put(&name(1), block.clone()).unwrap();
    assert!(store.has(&name(1)));
    assert_eq!(store.get(&name(1)), Some(block.clone()));
    // Another program with the same settings reads it; one with others does not.
    assert_eq!(place.open(1 << 20).get(&name(1)), Some(block.clone()));
    let file = fs::read(&place.files()[0]).unwrap();
    assert!(!file.windows(64).any(|window| window == &block[..64]));
    let other = Store::open(place.blocks(), &keys(&place.0.path().join("others")), 1 << 20).unwrap();
    assert_eq!(other.get(&name(1)), None);
}

#[cfg(unix)]
#[test]
fn files_and_key_are_the_users_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.open(1 << 20).put(&name(1), vec![1; 100]).unwrap();
    let key = place.0.path().join("settings/prefix.key");
    for file in [place.files().remove(0), key] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn a_torn_changed_or_renamed_file_is_missing_and_goes() {
    for damage in 0..4 {
        let place = Place::new();
        let store = place.open(1 << 20);
        store.put(&name(1), vec![5; 1000]).unwrap();
        let path = place.files().remove(0);
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            0 => bytes.truncate(400),
            1 => bytes.clear(),
            2 => bytes[500] ^= 1,
            _ => bytes[0] = b'b',
        }
        fs::write(&path, bytes).unwrap();
        assert_eq!(store.get(&name(1)), None, "damage {damage}");
        assert!(!store.has(&name(1)), "damage {damage}");
        assert_eq!(place.files(), Vec::<PathBuf>::new());
    }
    let place = Place::new();
    let store = place.open(1 << 20);
    store.put(&name(1), vec![5; 1000]).unwrap();
    let hex = hex::encode([2; 32]);
    fs::create_dir_all(place.blocks().join(&hex[..2])).unwrap();
    fs::rename(place.files().remove(0), place.blocks().join(&hex[..2]).join(&hex)).unwrap();
    assert_eq!(store.get(&name(2)), None, "the bytes of another name");
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let place = Place::new();
    let store = place.open(10_000);
    for number in 0..9 {
        store.put(&name(number), vec![number; 1000]).unwrap();
        // Times of files may be coarse.
        let hex = hex::encode([number; 32]);
        let file = fs::File::options().write(true).open(place.blocks().join(&hex[..2]).join(&hex)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(number))).unwrap();
    }
    // A program that starts now knows the files' times only; it uses the oldest one.
    let later = place.open(10_000);
    assert!(later.bytes() > 9000 && later.bytes() <= 10_000, "{}", later.bytes());
    assert!(later.get(&name(0)).is_some());
    later.put(&name(20), vec![1; 1000]).unwrap();
    let left: Vec<u8> = (0..21).filter(|number| later.has(&name(*number))).collect();
    assert_eq!(left, [0, 3, 4, 5, 6, 7, 8, 20]);
    assert!(later.bytes() <= 9000);
    let on_disk: u64 = place.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!(later.bytes(), on_disk);
    // Nothing fits: nothing is kept, and nothing is broken.
    let tiny = place.open(10);
    tiny.put(&name(30), vec![1; 100]).unwrap();
    assert_eq!(tiny.bytes(), 0);
}

#[test]
fn a_key_that_is_none_and_a_folder_that_is_a_file_are_told() {
    let place = Place::new();
    let settings = place.0.path().join("settings");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("prefix.key"), "short").unwrap();
    let err = Store::open(place.blocks(), &keys(&settings), 1).unwrap_err();
    assert!(matches!(err, StoreError::Key(KeyError::NoKey { .. })), "{err}");
    let err = Store::open(settings.join("prefix.key"), &keys(&place.0.path().join("new")), 1).unwrap_err();
    assert!(matches!(err, StoreError::File { .. }), "{err}");
}

fn keys(folder: &Path) -> Keys {
    Keys::new(folder, None)
}

fn options(kv_format: KvFormat) -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(1), kv_tokens: 1024, kv_format, ..EngineOptions::default() }
}

fn remembering(model: &Arc<Model>, place: &Place, kv_format: KvFormat) -> Remembering {
    let engine = Engine::new(Arc::clone(model), options(kv_format)).unwrap();
    Remembering::new(engine, Arc::new(place.open(1 << 30)), Arc::default()).unwrap()
}

fn ids(seed: u64, len: usize) -> Vec<TokenId> {
    let mut random = SplitMix64::new(seed);
    (0..len).map(|_| (random.next_u64() % 256) as TokenId).collect()
}

/// Runs what is left of `ids`, and returns the last logits.
fn run(engine: &mut impl Sequences, seq: SeqId, ids: &[TokenId]) -> Vec<u32> {
    let held = engine.len(seq).unwrap();
    let batch = [StepSeq { seq, ids: &ids[held..], logits: Wanted::Last, capture: None }];
    engine.step(&batch, &mut ()).unwrap().remove(0).logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Opens a sequence as an answer does; returns it and how many of its tokens were known.
fn begin(engine: &mut impl Sequences, ids: &[TokenId]) -> (SeqId, usize) {
    let seq = engine.create_in(PrefixScope::default(), None).unwrap();
    let known = engine.reuse_prefix(seq, ids);
    assert_eq!(engine.len(seq).unwrap(), known);
    assert_eq!(engine.ids(seq).unwrap(), &ids[..known]);
    (seq, known)
}

fn wait_until_kept(engine: &mut impl Sequences) {
    while engine.idle_every().is_some() {
        engine.idle();
        std::thread::yield_now();
    }
}

#[test]
fn a_new_engine_computes_only_what_is_new() {
    for kv_format in KvFormat::ALL {
        let (place, model) = (Place::new(), model());
        let turn = ids(1, 150);
        let longer = [&turn[..], &ids(2, 70)].concat();
        let branched = [&turn[..100], &ids(3, 40)].concat();
        let mut plain = Engine::new(model.clone(), options(kv_format)).unwrap();
        let want = [&longer, &branched].map(|ids| {
            let seq = plain.create();
            run(&mut plain, seq, ids)
        });

        let mut first = remembering(&model, &place, kv_format);
        let (seq, known) = begin(&mut first, &turn);
        assert_eq!(known, 0);
        run(&mut first, seq, &turn);
        wait_until_kept(&mut first);
        // What was not handed over yet is handed over at the end.
        let (seq, _) = begin(&mut first, &longer);
        run(&mut first, seq, &longer[..200]);
        drop(first);
        assert_eq!(place.files().len(), 200 / BLOCK_TOKENS);

        let mut second = remembering(&model, &place, kv_format);
        for (ids, want, least) in [(&longer, &want[0], 192), (&branched, &want[1], 96)] {
            let (seq, known) = begin(&mut second, ids);
            assert!((least..least + 4 + BLOCK_TOKENS).contains(&known), "{known} of {}", ids.len());
            assert!(run(&mut second, seq, ids) == *want, "{kv_format}");
        }
        // All whole blocks of it are known, and one token is left to compute logits from.
        let (seq, known) = begin(&mut second, &longer[..192]);
        assert!((160..192).contains(&known), "{known}");
        second.release(seq);
    }
}

#[test]
fn an_answer_that_may_know_only_a_beginning_takes_no_more_of_it() {
    let (place, model) = (Place::new(), model());
    let turn = ids(1, 150);
    let all = PrefixScope::default();
    let mut first = remembering(&model, &place, KvFormat::F16);
    let seq = first.create_in(all, None).unwrap();
    let want = run(&mut first, seq, &turn);
    let known = |engine: &mut Remembering, scope| {
        let seq = engine.create_in(scope, None).unwrap();
        let known = engine.reuse_prefix(seq, &turn);
        assert!(run(engine, seq, &turn) == want, "{known} tokens known");
        engine.release(seq);
        known
    };
    let bounded = |owner, shared_tokens| PrefixScope { owner, shared_tokens };
    // From memory, then from the disk.
    assert_eq!(known(&mut first, bounded(7, 70)), 64);
    wait_until_kept(&mut first);
    drop(first);
    let mut second = remembering(&model, &place, KvFormat::F16);
    assert_eq!(known(&mut second, bounded(8, 70)), 64);
    assert_eq!(known(&mut second, bounded(9, 0)), 0);
    assert_eq!(known(&mut second, all), 128);
}

#[test]
fn conversations_at_random_are_as_without_a_store() {
    let (place, model) = (Place::new(), model());
    let mut random = SplitMix64::new(5);
    let mut plain = Engine::new(model.clone(), options(KvFormat::F16)).unwrap();
    let mut talk = vec![ids(9, 40)];
    let mut saved = 0;
    let mut engine = remembering(&model, &place, KvFormat::F16);
    for turn in 0..60 {
        // Goes on with an earlier conversation, from anywhere in it.
        let before = &talk[random.next_u64() as usize % talk.len()];
        let cut = 1 + random.next_u64() as usize % before.len();
        let mut next = before[..cut].to_vec();
        next.extend(ids(turn, 1 + random.next_u64() as usize % 60));
        next.truncate(400);
        let seq = plain.create();
        let want = run(&mut plain, seq, &next);
        plain.release(seq);
        let (seq, known) = begin(&mut engine, &next);
        saved += known;
        assert!(run(&mut engine, seq, &next) == want, "turn {turn}, {known} of {} known", next.len());
        match random.next_u64() % 5 {
            0 => wait_until_kept(&mut engine),
            1 => {
                drop(engine);
                engine = remembering(&model, &place, KvFormat::F16);
            }
            2 => {
                // A crash, or a failing disk.
                wait_until_kept(&mut engine);
                if let Some(file) = place.files().first() {
                    fs::write(file, b"BATONKV1").unwrap();
                }
                engine.release(seq);
            }
            3 => engine.truncate(seq, cut).unwrap(),
            _ => engine.release(seq),
        }
        talk.push(next);
    }
    assert!(saved > 500, "{saved} tokens were known");
}

#[test]
fn an_adapter_has_blocks_of_its_own() {
    let (place, model) = (Place::new(), model());
    let turn = ids(1, 100);
    let [one, other] = [1, 2].map(adapter);
    let mut first = remembering(&model, &place, KvFormat::F16);
    let id = first.add_adapter(one.clone()).unwrap();
    let seq = first.create_in(PrefixScope::default(), Some(id)).unwrap();
    run(&mut first, seq, &turn);
    drop(first);
    let known = |adapter| {
        let mut engine = remembering(&model, &place, KvFormat::F16);
        let id = Option::map(adapter, |adapter| engine.add_adapter(adapter).unwrap());
        let seq = engine.create_in(PrefixScope::default(), id).unwrap();
        engine.reuse_prefix(seq, &turn)
    };
    assert_eq!(known(Some(one)), 96);
    assert_eq!(known(Some(other)), 0);
    assert_eq!(known(None), 0);
}

#[test]
fn what_two_kinds_of_engine_have_computed_is_not_kept() {
    let (place, model) = (Place::new(), model());
    let device = Arc::new(HostDevice::new(None));
    let gpu = GpuUse { device: device.clone(), layers: GpuLayers::Fit, on_loss: |_| () };
    let on_gpu = EngineOptions { gpu: Some(gpu), ..options(KvFormat::F16) };
    let engine = Engine::new(model.clone(), on_gpu).unwrap();
    let mut engine = Remembering::new(engine, Arc::new(place.open(1 << 30)), Arc::default()).unwrap();
    let (turn, other) = (ids(1, 300), ids(2, 100));
    let (seq, _) = begin(&mut engine, &turn);
    run(&mut engine, seq, &turn[..200]);
    wait_until_kept(&mut engine);
    // What was handed over is written soon after; the loop guards against a hang alone.
    let begun = Instant::now();
    while place.files().len() < 200 / BLOCK_TOKENS && begun.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert_eq!(place.files().len(), 200 / BLOCK_TOKENS);
    device.fail(GpuError::Lost("unplugged".to_owned()));
    run(&mut engine, seq, &turn);
    // What begins now has the CPU's blocks.
    let (new, known) = begin(&mut engine, &other);
    assert_eq!(known, 0);
    run(&mut engine, new, &other);
    drop(engine);
    assert_eq!(place.files().len(), 200 / BLOCK_TOKENS + 100 / BLOCK_TOKENS);
    let mut second = remembering(&model, &place, KvFormat::F16);
    assert_eq!(begin(&mut second, &turn).1, 0, "they are a GPU's");
    assert_eq!(begin(&mut second, &other).1, 96);
}
