//! Pieces on the disk: what is there is known, what is damaged is found, and no more is given than is there.

use super::*;
use baton_engine::platform;
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use std::fs::File;

/// Small pieces, so that a layer of a small model has several.
const PIECE: u32 = 4096;

/// A whole model file and the list of its pieces.
pub(crate) struct Head {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
}

pub(crate) fn head() -> Head {
    let model = SyntheticModel { n_layers: 6, tied: false, ..SyntheticModel::small("llama", Format::F32, 3) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.gguf");
    std::fs::write(&path, model.to_gguf().unwrap()).unwrap();
    let manifest = Manifest::of_file(&path, PIECE).unwrap();
    Head { _folder: folder, path, manifest }
}

/// Puts what these layers need into the folder, as a worker that fetches does.
fn filled(folder: &Path, head: &Head, layers: &[usize]) -> PathBuf {
    let digest = head.manifest.digest();
    let places = Places { files: Vec::new(), folder: folder.to_owned(), checked: CheckedPieces::default() };
    places.keep(digest, &head.manifest.bytes()).unwrap();
    let (mut store, file) = (places.store(digest).unwrap().unwrap(), File::open(&head.path).unwrap());
    for part in [Part::Header, Part::Layers(layers)] {
        for (piece, _) in places.lacks(&mut store, part, &mut || Ok(()), &mut |_, _| {}).unwrap() {
            store.put(piece, &head.manifest.piece(&file, &head.path, piece).unwrap(), 0).unwrap();
        }
        store.sync(0, &places.checked).unwrap();
    }
    store.path().to_owned()
}

#[test]
fn a_log_torn_at_any_byte_names_only_whole_records() {
    let (head, folder) = (head(), tempfile::tempdir().unwrap());
    let path = filled(folder.path(), &head, &[3]);
    let log = path.with_extension("have");
    let whole = std::fs::read(&log).unwrap();
    for len in (0..whole.len()).step_by(5) {
        std::fs::write(&log, &whole[..len]).unwrap();
        let store = PieceStore::open(folder.path(), head.manifest.clone()).unwrap();
        let there = (0..head.manifest.count()).filter(|piece| store.has(*piece)).count();
        assert_eq!(there, len / 8, "of {len} bytes");
    }
    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    filled(folder.path(), &head, &[3]);
    assert_eq!(std::fs::read(&log).unwrap().len(), whole.len());
}

#[test]
fn torn_lists_are_refused() {
    let manifest = head().manifest;
    let bytes = manifest.bytes();
    // The second end is that of a list without its hashes.
    for end in [0, 20, 10, bytes.len() - 1] {
        assert!(matches!(Manifest::read(&bytes[..end]), Err(WeightsError::Manifest(_))), "{end} bytes");
    }
    assert_eq!(Manifest::read(&bytes).unwrap(), manifest);
}

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
    let path = filled(folder.path(), &head, &[2]);
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
pub(crate) fn rot(path: &Path, manifest: &Manifest, piece: u32) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let changed = file.metadata().unwrap().modified().unwrap();
    let at = manifest.offset_of(piece) + manifest.len_of(piece) / 2;
    let mut byte = [0];
    platform::read_exact_at(&file, &mut byte, at).unwrap();
    platform::write_all_at(&file, &[byte[0] ^ 1], at).unwrap();
    file.set_modified(changed).unwrap();
}

#[test]
fn a_rotten_whole_file_is_refused_for_the_layers_that_need_it_alone() {
    let head = head();
    let check = |layers: &[usize]| {
        let parts = [Part::Header, Part::Layers(layers), Part::Tables];
        let file = (head.path.as_path(), &head.manifest);
        check_whole(file, &parts, &CheckedPieces::default(), &mut || Ok(()), &mut |_, _| {})
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
