//! Weights on demand: only what layers need is fetched, and only once, whatever happens in between.

use super::*;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use std::fs::File;

/// Small pieces, so that a layer of a small model has several.
const PIECE: u32 = 4096;

struct Head {
    _folder: tempfile::TempDir,
    path: PathBuf,
    manifest: Manifest,
}

fn head() -> Head {
    let model = SyntheticModel { n_layers: 6, tied: false, ..SyntheticModel::small("llama", Format::F32, 3) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.gguf");
    std::fs::write(&path, model.to_gguf().unwrap()).unwrap();
    let manifest = Manifest::of_file(&path, PIECE).unwrap();
    Head { _folder: folder, path, manifest }
}

/// Serves pieces of the head's file; may stop early, and may send false bytes.
struct Source<'a> {
    head: &'a Head,
    manifests: usize,
    bytes: u64,
    /// Pieces that it sends before it stops.
    until: usize,
    forged: Option<u32>,
}

fn source(head: &Head) -> Source<'_> {
    Source { head, manifests: 0, bytes: 0, until: usize::MAX, forged: None }
}

impl PieceSource for Source<'_> {
    fn manifest(&mut self) -> Result<Vec<u8>, WeightsError> {
        self.manifests += 1;
        Ok(self.head.manifest.bytes())
    }

    fn pieces(&mut self, pieces: Range<u32>, take: Take<'_>) -> Result<(), WeightsError> {
        assert!(pieces.len() <= BATCH as usize);
        let file = File::open(&self.head.path).unwrap();
        for index in pieces {
            if self.until == 0 {
                return Err(WeightsError::Source("cut off".into()));
            }
            self.until -= 1;
            let mut bytes = self.head.manifest.piece(&file, &self.head.path, index)?;
            if self.forged == Some(index) {
                bytes[0] ^= 1;
            }
            self.bytes += bytes.len() as u64;
            take(index, &bytes)?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), WeightsError> {
        Ok(())
    }
}

/// Like a program that was just started.
fn provide_anew(
    folder: &Path,
    model: Digest,
    layers: &[usize],
    source: &mut Source<'_>,
    progress: Progress<'_>,
) -> Result<PathBuf, WeightsError> {
    provide((folder, &CheckedPieces::default()), model, layers, source, progress)
}

fn fetched(folder: &Path, head: &Head, layers: &[usize]) -> (Result<PathBuf, WeightsError>, u64) {
    let mut source = source(head);
    let path = provide_anew(folder, head.manifest.digest(), layers, &mut source, &mut |_, _, _| {});
    (path, source.bytes)
}

#[test]
fn a_device_gets_its_layers_and_computes_with_them() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let mut heard = Vec::new();
    let mut from = source(&head);
    let digest = head.manifest.digest();
    let path = provide_anew(folder.path(), digest, &[1, 4], &mut from, &mut |stage, done, all| {
        assert_eq!(stage, Stage::Fetching, "nothing is there to be checked");
        heard.push((done, all));
    });
    let path = path.unwrap();
    let whole = head.manifest.file_len();
    assert!(from.bytes < whole / 2, "{} of {whole} bytes for two of six layers", from.bytes);
    assert!(heard.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].1 != pair[1].1), "{heard:?}");
    assert_eq!(heard.last().map(|(done, all)| done == all), Some(true));
    let [all, part] = [&head.path, &path].map(|path| Model::open(path).unwrap());
    let run = |model| {
        let options = EngineOptions { layers: Some(vec![1, 4]), ..EngineOptions::default() };
        let mut engine = Engine::new(model, options).unwrap();
        let seq = engine.create();
        let entry = StepSeq { seq, ids: &[1, 2, 3], logits: Wanted::None, capture: None };
        let step = engine.open_step(&[entry]).unwrap();
        let width = engine.model().config().d_model;
        let values = (0..3 * width).map(|at| (at % 7) as f32 - 3.0).collect();
        let hidden = baton_engine::engine::Hidden { rows: 3, width, values };
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
    let (path, first) = fetched(folder.path(), &head, &[0, 1]);
    assert!(path.is_ok() && first > 0);
    assert_eq!(fetched(folder.path(), &head, &[0, 1]).1, 0);
    let mut again = source(&head);
    provide_anew(folder.path(), head.manifest.digest(), &[1], &mut again, &mut |_, _, _| {}).unwrap();
    assert_eq!((again.bytes, again.manifests), (0, 0));
    let more = fetched(folder.path(), &head, &[1, 2]).1;
    assert!(more > 0 && more < first, "{more} bytes for one layer more, {first} for two");
}

#[test]
fn what_came_before_a_cut_is_not_fetched_again() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let all = fetched(tempfile::tempdir().unwrap().path(), &head, &[2]).1;
    let mut bytes = 0;
    for until in [1, 7, 30] {
        let mut cut = Source { until, ..source(&head) };
        let broken = provide_anew(folder.path(), head.manifest.digest(), &[2], &mut cut, &mut |_, _, _| {});
        assert!(matches!(broken, Err(WeightsError::Source(_))));
        bytes += cut.bytes;
    }
    let (path, rest) = fetched(folder.path(), &head, &[2]);
    assert!(path.is_ok());
    assert_eq!(bytes + rest, all);
}

#[test]
fn a_log_torn_at_any_byte_names_only_whole_records() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let path = fetched(folder.path(), &head, &[3]).0.unwrap();
    let log = path.with_extension("have");
    let whole = std::fs::read(&log).unwrap();
    for len in (0..whole.len()).step_by(5) {
        std::fs::write(&log, &whole[..len]).unwrap();
        let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
        let there = (0..head.manifest.count()).filter(|piece| store.has(*piece)).count();
        assert_eq!(there, len / 8, "of {len} bytes");
    }
    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    let again = fetched(folder.path(), &head, &[3]).1;
    assert!(again > 0 && again <= u64::from(PIECE), "{again} bytes for one torn record");
    assert_eq!(std::fs::read(&log).unwrap().len(), whole.len());
}

#[test]
fn a_file_that_was_cut_is_fetched_anew() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let (path, all) = fetched(folder.path(), &head, &[0]);
    let path = path.unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let (again, bytes) = fetched(folder.path(), &head, &[0]);
    assert_eq!((again.unwrap(), bytes), (path, all));
}

#[test]
fn forged_pieces_and_lists_are_refused_and_not_kept() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let mut lying = Source { forged: Some(0), ..source(&head) };
    let refused = provide_anew(folder.path(), head.manifest.digest(), &[0], &mut lying, &mut |_, _, _| {});
    assert!(matches!(refused, Err(WeightsError::Forged { index: 0 })));
    let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
    assert!(!store.has(0));
    let other = provide_anew(folder.path(), [7; 32], &[0], &mut source(&head), &mut |_, _, _| {});
    assert!(matches!(other, Err(WeightsError::OtherModel)));
    let bytes = head.manifest.bytes();
    for end in [0, 10, FIXED_BYTES, bytes.len() - 1] {
        assert!(matches!(Manifest::read(&bytes[..end]), Err(WeightsError::Manifest(_))), "{end} bytes");
    }
    assert_eq!(Manifest::read(&bytes).unwrap(), head.manifest);
}

/// Bytes of a list without its hashes.
const FIXED_BYTES: usize = 20;

#[test]
fn a_list_is_made_once_for_each_state_of_a_file() {
    let head = head();
    let cache = head.path.with_file_name("whole.gguf.pieces");
    let kept = std::fs::read(&cache).unwrap();
    // A changed copy: the stored list must be read, and no new one made.
    let mut marked = kept.clone();
    *marked.last_mut().unwrap() ^= 1;
    std::fs::write(&cache, &marked).unwrap();
    assert_ne!(Manifest::of_file(&head.path, PIECE).unwrap(), head.manifest);
    std::fs::write(&cache, &kept[..20]).unwrap();
    assert_eq!(Manifest::of_file(&head.path, PIECE).unwrap(), head.manifest);
    let mut bytes = std::fs::read(&head.path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&head.path, &bytes).unwrap();
    assert_ne!(Manifest::of_file(&head.path, PIECE).unwrap().digest(), head.manifest.digest());
}

#[test]
fn a_full_disk_is_named_with_what_is_missing() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
    let said = store.refused(std::io::Error::from(std::io::ErrorKind::StorageFull), 12345);
    assert!(matches!(&said, WeightsError::DiskFull { missing: 12345, path } if path == store.path()));
    assert!(said.to_string().contains("12345 bytes"), "{said}");
    let other = store.refused(std::io::Error::from(std::io::ErrorKind::PermissionDenied), 1);
    assert!(matches!(other, WeightsError::File { .. }));
}

#[test]
fn what_one_device_has_it_can_give_and_no_more() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let digest = head.manifest.digest();
    assert!(LocalPieces::of(digest, &[], folder.path()).is_none(), "nothing is there");
    let path = fetched(folder.path(), &head, &[2]).0.unwrap();
    let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
    let local = LocalPieces::of(digest, &[], folder.path()).unwrap();
    let file = File::open(&head.path).unwrap();
    let mut given = 0;
    for index in 0..head.manifest.count() + 9 {
        assert_eq!(local.available().has(index), store.has(index), "piece {index}");
        match local.piece(index) {
            Ok(bytes) => {
                assert_eq!(bytes, head.manifest.piece(&file, &head.path, index).unwrap());
                given += 1;
            }
            Err(err) => {
                assert!(matches!(err, WeightsError::NoSuchPiece { .. }) && !store.has(index), "{err}")
            }
        }
    }
    assert!(given > 3 && given < head.manifest.count() / 2, "{given} pieces");
    // Nothing is served from a torn record or a file of another length.
    let log = path.with_extension("have");
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    let there = |local: &LocalPieces| {
        (0..head.manifest.count()).filter(|index| local.available().has(*index)).count()
    };
    assert_eq!(there(&LocalPieces::of(digest, &[], folder.path()).unwrap()), whole.len() / 8 - 1);
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert!(LocalPieces::of(digest, &[], folder.path()).is_none());
    assert!(LocalPieces::of([7; 32], &[], folder.path()).is_none());
}

#[test]
fn pieces_are_named_by_bits() {
    let has: Vec<bool> = (0..21).map(|at| at < 3 || at == 9 || at > 15).collect();
    let available = PieceSet::of(&has);
    assert_eq!(available.bytes(), [0b111, 0b10, 0b11111]);
    let read = PieceSet::read(available.bytes().to_vec());
    assert!((0..21).all(|at| read.has(at) == has[at as usize]) && !read.has(21) && !read.has(u32::MAX));
    let runs = [0..3, 0..9, 2..9, 3..9, 9..10, 16..99, 5..5].map(|pieces| read.run(pieces));
    assert_eq!(runs, [3, 3, 1, 0, 1, 5, 0]);
}

/// Flips the lowest bit of the byte in the middle of a piece, as a faulty disk might.
fn rot(path: &Path, manifest: &Manifest, piece: u32) {
    use std::os::unix::fs::FileExt as _;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let changed = file.metadata().unwrap().modified().unwrap();
    let at = manifest.offset_of(piece) + manifest.len_of(piece) / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.set_modified(changed).unwrap();
}

#[test]
fn rotten_pieces_are_found_at_the_next_start_and_fetched_again() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let path = fetched(folder.path(), &head, &[2, 3]).0.unwrap();
    let sound = std::fs::read(&path).unwrap();
    let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
    let there: Vec<u32> = (0..head.manifest.count()).filter(|piece| store.has(*piece)).collect();
    drop(store);
    // One piece of the header, and two of the layers.
    for piece in [there[0], there[there.len() / 2], there[there.len() - 1]] {
        rot(&path, &head.manifest, piece);
        assert_ne!(std::fs::read(&path).unwrap(), sound);
        let (mut from, mut seen) = (source(&head), Vec::new());
        let digest = head.manifest.digest();
        let done = provide_anew(folder.path(), digest, &[2, 3], &mut from, &mut |stage, done, all| {
            seen.push((stage, done, all));
        });
        done.unwrap();
        assert_eq!(from.bytes, head.manifest.len_of(piece), "piece {piece} and no other");
        assert!(std::fs::read(&path).unwrap() == sound, "piece {piece} is mended");
        let bytes: u64 = there.iter().map(|piece| head.manifest.len_of(*piece)).sum();
        let checked: Vec<_> = seen.iter().filter(|(stage, ..)| *stage == Stage::Checking).collect();
        assert!(checked.iter().any(|(_, done, all)| done == all), "progress is told to the end");
        assert!(checked.iter().all(|(_, _, all)| *all <= bytes));
    }
    assert_eq!(fetched(folder.path(), &head, &[2, 3]).1, 0, "nothing is left to mend");
}

#[test]
fn a_piece_is_read_once_in_a_run_of_the_program_unless_its_file_changes() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let checked = CheckedPieces::default();
    let checks = |layers: &[usize]| {
        let mut bytes = 0;
        let mut progress = |stage, _: u64, all: u64| {
            if stage == Stage::Checking {
                bytes = bytes.max(all);
            }
        };
        let digest = head.manifest.digest();
        provide((folder.path(), &checked), digest, layers, &mut source(&head), &mut progress).unwrap();
        bytes
    };
    assert_eq!(checks(&[0, 1]), 0, "what was fetched just now was hashed just now");
    assert_eq!(checks(&[0, 1]), 0);
    assert_eq!(checks(&[0, 1, 2]), 0, "more layers");
    checked.forget();
    let all = checks(&[0, 1]);
    assert!(all > 0);
    assert_eq!(checks(&[0, 1]), 0);
    let path = folder.path().join(manifest::file_name(head.manifest.digest(), "gguf"));
    File::options().write(true).open(path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(checks(&[0, 1]) > 0, "somebody wrote into it");
}

#[test]
fn a_rotten_whole_file_is_refused_for_the_layers_that_need_it_alone() {
    let head = head();
    let check = |layers: &[usize]| {
        let parts = [Part::Header, Part::Layers(layers), Part::Tables];
        let file = (head.path.as_path(), &head.manifest);
        check_whole(file, &parts, &CheckedPieces::default(), &mut || Ok(()), &mut |_, _, _| {})
    };
    assert!(check(&[0, 5]).is_ok());
    let range = needed(&Gguf::open(&head.path).unwrap(), &[4]).into_iter().max_by_key(|range| range.end);
    let middle = range.map(|range| u64::midpoint(range.start, range.end)).unwrap();
    rot(&head.path, &head.manifest, (middle / u64::from(PIECE)) as u32);
    assert!(check(&[0]).is_ok());
    let refused = check(&[4]);
    assert!(matches!(refused, Err(WeightsError::Rotten { pieces: 1, .. })), "{refused:?}");
    assert_eq!(
        Manifest::of_file(&head.path, PIECE).unwrap(),
        head.manifest,
        "the kept list knows nothing of it"
    );
}
