//! Split models made with the project's own writer: they work like whole ones, and every fault of a set is
//! refused.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use baton_engine::gguf::{Gguf, GgufError, GgufWriter, MetaValue, TensorInfo};
use baton_engine::{EngineOptions, Model};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use tempfile::TempDir;

use crate::all_logits;

/// The file names of a set of three parts.
const NAMES: [&str; 3] = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];

fn model() -> SyntheticModel {
    SyntheticModel::small("llama", Format::Q8_0, 3)
}

/// The whole model, and its tensors in the order of the file.
struct Whole {
    gguf: Gguf,
    bytes: Vec<u8>,
    tensors: Vec<TensorInfo>,
}

fn whole() -> Whole {
    let bytes = model().to_gguf().unwrap();
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let tensors = gguf.tensors().cloned().collect();
    Whole { gguf, bytes, tensors }
}

/// The tensors of one part: parts of equal length, the last one maybe shorter.
fn tensors_of(whole: &Whole, no: usize, n_parts: usize) -> &[TensorInfo] {
    let per_part = whole.tensors.len().div_ceil(n_parts);
    whole.tensors.chunks(per_part).nth(no).unwrap()
}

fn add<'a>(writer: &mut GgufWriter<'a>, whole: &'a Whole, tensor: &TensorInfo) {
    let view = whole.gguf.tensor(tensor.name()).unwrap();
    writer.tensor(view.name, view.dims, view.format, view.data).unwrap();
}

/// One part of these tensors as `gguf-split` writes it: metadata in the first, three keys in each.
fn part_of<'a>(whole: &'a Whole, (no, n_parts): (usize, usize), tensors: &'a [TensorInfo]) -> GgufWriter<'a> {
    let mut part = if no == 0 { model().head().unwrap() } else { GgufWriter::new() };
    part.set("split.no", no as u32).set("split.count", n_parts as u32);
    part.set("split.tensors.count", MetaValue::I32(whole.tensors.len() as i32));
    for tensor in tensors {
        add(&mut part, whole, tensor);
    }
    part
}

fn part(whole: &Whole, no: usize, n_parts: usize) -> GgufWriter<'_> {
    part_of(whole, (no, n_parts), tensors_of(whole, no, n_parts))
}

/// A good set in a folder of its own, before `change` has written over it.
fn set(change: impl FnOnce(&Whole, &Path)) -> TempDir {
    let (dir, whole) = (tempfile::tempdir().unwrap(), whole());
    for (no, name) in NAMES.iter().enumerate() {
        part(&whole, no, 3).write_file(&dir.path().join(name)).unwrap();
    }
    change(&whole, dir.path());
    dir
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut engine = crate::engine(model, 2, EngineOptions::default());
    let seq = engine.create();
    all_logits(&mut engine, seq, &[72, 101, 108, 108, 111])
}

#[test]
fn a_split_model_is_the_whole_one() {
    let dir = set(|_, _| ());
    let split = Model::open(&dir.path().join(NAMES[0])).unwrap();
    let Whole { gguf: one, bytes, tensors } = whole();
    let whole = Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap();
    let have = logits(&split);
    assert_eq!(have.len(), 5 * 288);
    assert!(have.iter().zip(logits(&whole)).all(|(have, want)| have.to_bits() == want.to_bits()));
    assert_eq!(split.name(), whole.name());
    assert_eq!(split.path(), Some(dir.path().join(NAMES[0]).as_path()));

    let gguf = Gguf::open(dir.path().join(NAMES[0])).unwrap();
    let names: Vec<&str> = tensors.iter().map(TensorInfo::name).collect();
    assert_eq!(gguf.tensors().map(TensorInfo::name).collect::<Vec<_>>(), names);
    for name in names {
        let (have, want) = (gguf.tensor(name).unwrap(), one.tensor(name).unwrap());
        assert_eq!((have.dims, have.data), (want.dims, want.data), "{name}");
        assert_eq!(gguf.bytes_at(have.place), want.data, "{name}");
    }
}

#[test]
fn the_digest_is_that_of_the_parts_in_order() {
    let dir = set(|_, _| ());
    let model = Model::open(&dir.path().join(NAMES[0])).unwrap();
    let all: Vec<u8> = NAMES.iter().flat_map(|name| std::fs::read(dir.path().join(name)).unwrap()).collect();
    assert_eq!(model.file_sha256(), hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&all)));
    assert_eq!(Gguf::open(dir.path().join(NAMES[0])).unwrap().file_len(), all.len() as u64);
}

#[track_caller]
fn check(dir: &TempDir, name: &str, want: &str) -> GgufError {
    let err = Gguf::open(dir.path().join(name)).expect_err(want);
    assert_eq!(err.to_string(), want.replace("DIR", &dir.path().display().to_string()));
    err
}

#[test]
fn a_later_part_names_the_first() {
    let dir = set(|_, _| ());
    check(&dir, NAMES[1], "file is part 2 of 3; open part 1, `DIR/m-00001-of-00003.gguf`");
    check(&dir, NAMES[2], "file is part 3 of 3; open part 1, `DIR/m-00001-of-00003.gguf`");
}

#[test]
fn a_missing_or_broken_part_is_named() {
    let dir = set(|_, dir| std::fs::remove_file(dir.join(NAMES[2])).unwrap());
    let err = check(&dir, NAMES[0], "part 3 of 3, `DIR/m-00003-of-00003.gguf`");
    assert!(err.source().unwrap().to_string().starts_with("open `"), "{err:?}");
    let dir = set(|_, dir| std::fs::write(dir.join(NAMES[1]), b"GGUF").unwrap());
    let err = check(&dir, NAMES[0], "part 2 of 3, `DIR/m-00002-of-00003.gguf`");
    assert_eq!(err.source().unwrap().to_string(), "version at byte 4 needs 4 bytes, file has 4");
}

#[test]
fn files_that_are_no_set_are_refused() {
    let dir = set(|_, dir| {
        std::fs::copy(dir.join(NAMES[1]), dir.join(NAMES[2])).unwrap();
    });
    check(&dir, NAMES[0], "`DIR/m-00003-of-00003.gguf` says that it is part 2 of 3, want 3 of 3");
    let dir = set(|whole, dir| part(whole, 1, 4).write_file(&dir.join(NAMES[1])).unwrap());
    check(&dir, NAMES[0], "`DIR/m-00002-of-00003.gguf` says that it is part 2 of 4, want 2 of 3");
    let dir = set(|whole, dir| std::fs::write(dir.join(NAMES[1]), &whole.bytes).unwrap());
    check(&dir, NAMES[0], "`DIR/m-00002-of-00003.gguf` says that it is part 1 of 1, want 2 of 3");
    let dir = set(|whole, dir| {
        let mut other = part(whole, 1, 3);
        other.set("split.tensors.count", 99u32);
        other.write_file(&dir.join(NAMES[1])).unwrap();
    });
    check(
        &dir,
        NAMES[0],
        "`DIR/m-00002-of-00003.gguf`, part 2 of 3, has another `split.tensors.count` than part 1",
    );
    let dir = set(|whole, dir| {
        let mut other = part(whole, 1, 3);
        other.set("general.architecture", "qwen2");
        other.write_file(&dir.join(NAMES[1])).unwrap();
    });
    check(
        &dir,
        NAMES[0],
        "`DIR/m-00002-of-00003.gguf`, part 2 of 3, has another `general.architecture` than part 1",
    );
}

#[test]
fn tensors_that_are_twice_there_or_absent_are_refused() {
    let dir = set(|whole, dir| {
        let mut other = part(whole, 2, 3);
        add(&mut other, whole, &whole.tensors[0]);
        other.write_file(&dir.join(NAMES[2])).unwrap();
    });
    let n = whole().tensors.len();
    check(&dir, NAMES[0], &format!("3 parts hold {} tensors, split.tensors.count is {n}", n + 1));
    let dir = set(|whole, dir| {
        let (_, without_last) = tensors_of(whole, 2, 3).split_last().unwrap();
        let mut other = part_of(whole, (2, 3), without_last);
        add(&mut other, whole, &whole.tensors[0]);
        other.write_file(&dir.join(NAMES[2])).unwrap();
    });
    check(&dir, NAMES[0], &format!("tensor `{}` is given twice", whole().tensors[0].name()));
}

#[test]
fn names_and_numbers_that_cannot_be_are_refused() {
    let dir = set(|_, dir| std::fs::rename(dir.join(NAMES[0]), dir.join("m.gguf")).unwrap());
    check(&dir, "m.gguf", "`DIR/m.gguf` is part 1 of 3 and must be named `NAME-00001-of-00003.gguf`");
    let bytes = part(&whole(), 1, 3).to_bytes().unwrap();
    let err = Gguf::from_bytes(bytes).unwrap_err().to_string();
    assert_eq!(err, "bytes are part 2 of a model of 3 files; open the first file by its path");
    for (no, count) in [(3, 3), (0, 65_536)] {
        let mut bad = GgufWriter::new();
        bad.set("split.no", no as u32).set("split.count", count as u32);
        let err = Gguf::from_bytes(bad.to_bytes().unwrap()).unwrap_err().to_string();
        let want = format!(
            "split.no is {no} and split.count {count}, want a number below the count, and at most 65535 parts"
        );
        assert_eq!(err, want);
    }
    let mut one = model().writer().unwrap();
    one.set("split.no", 0u32).set("split.count", 1u32);
    assert!(Gguf::from_bytes(one.to_bytes().unwrap()).is_ok(), "a set of one is whole");
}
