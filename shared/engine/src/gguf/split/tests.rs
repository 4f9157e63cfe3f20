//! Split models made by the project's own writer: as good as whole ones, and every way in which a set can be wrong.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use baton_kernels_cpu::Format;
use tempfile::TempDir;

use crate::gguf::{Gguf, GgufError, GgufWriter, MetaValue};
use crate::synthetic::SyntheticModel;
use crate::{Engine, EngineOptions, Model, StepSeq, Wanted};

/// The file names of a set of three parts.
const NAMES: [&str; 3] = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];

fn whole() -> GgufWriter<'static> {
    SyntheticModel::small("llama", Format::Q8_0, 3).writer().unwrap()
}

/// One part as `gguf-split` writes it: metadata in the first, three keys and some tensors in each.
fn part<'a>(whole: &'a GgufWriter<'_>, no: usize, n_parts: usize) -> GgufWriter<'a> {
    let mut part = GgufWriter::new();
    if no == 0 {
        part.metadata.clone_from(&whole.metadata);
    }
    part.set("split.no", no as u32).set("split.count", n_parts as u32);
    part.set("split.tensors.count", MetaValue::I32(whole.tensors.len() as i32));
    let per_part = whole.tensors.len().div_ceil(n_parts);
    for tensor in whole.tensors.iter().skip(no * per_part).take(per_part) {
        let data = tensor.data.as_deref().unwrap();
        part.tensor(&tensor.name, &tensor.dims, tensor.format, data).unwrap();
    }
    part
}

/// A good set in a folder of its own, before `change` has written over it.
fn set(change: impl FnOnce(&GgufWriter<'_>, &Path)) -> TempDir {
    let (dir, whole) = (tempfile::tempdir().unwrap(), whole());
    for (no, name) in NAMES.iter().enumerate() {
        part(&whole, no, 3).write_file(&dir.path().join(name)).unwrap();
    }
    change(&whole, dir.path());
    dir
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut engine = Engine::new(Arc::clone(model), EngineOptions::default()).unwrap();
    let seq = engine.create();
    let batch = [StepSeq { seq, ids: &[72, 101, 108, 108, 111], logits: Wanted::All, capture: None }];
    engine.step(&batch, &mut ()).unwrap().remove(0).logits
}

#[test]
fn a_split_model_is_the_whole_one() {
    let dir = set(|_, _| ());
    let split = Model::open(&dir.path().join(NAMES[0])).unwrap();
    let bytes = whole().to_bytes().unwrap();
    let whole = Model::from_gguf(Gguf::from_bytes(bytes.clone()).unwrap()).unwrap();
    let have = logits(&split);
    assert_eq!(have.len(), 5 * 288);
    assert!(have.iter().zip(logits(&whole)).all(|(have, want)| have.to_bits() == want.to_bits()));
    assert_eq!(split.name(), whole.name());
    assert_eq!(split.path(), Some(dir.path().join(NAMES[0]).as_path()));

    let gguf = Gguf::open(dir.path().join(NAMES[0])).unwrap();
    let names = |gguf: &Gguf| gguf.tensors().map(|tensor| tensor.name().to_owned()).collect::<Vec<_>>();
    let one = Gguf::from_bytes(bytes).unwrap();
    assert_eq!(names(&gguf), names(&one));
    for name in names(&one) {
        let (have, want) = (gguf.tensor(&name).unwrap(), one.tensor(&name).unwrap());
        assert_eq!((have.dims, have.data), (want.dims, want.data), "{name}");
        assert_eq!(gguf.bytes_at(have.place), want.data, "{name}");
    }
}

#[test]
fn the_digest_is_that_of_the_parts_in_order() {
    let dir = set(|_, _| ());
    let model = Model::open(&dir.path().join(NAMES[0])).unwrap();
    let all: Vec<u8> = NAMES.iter().flat_map(|name| std::fs::read(dir.path().join(name)).unwrap()).collect();
    let want: String =
        <sha2::Sha256 as sha2::Digest>::digest(&all).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(model.file_sha256(), want);
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
    let dir = set(|whole, dir| whole.write_file(&dir.join(NAMES[1])).unwrap());
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
        let first = &whole.tensors[0];
        other.tensor(&first.name, &first.dims, first.format, first.data.as_deref().unwrap()).unwrap();
        other.set("split.tensors.count", MetaValue::I32(whole.tensors.len() as i32));
        other.write_file(&dir.join(NAMES[2])).unwrap();
    });
    let n = whole().tensors.len();
    check(&dir, NAMES[0], &format!("3 parts hold {} tensors, split.tensors.count is {n}", n + 1));
    let dir = set(|whole, dir| {
        let mut other = part(whole, 2, 3);
        let (first, last) = (&whole.tensors[0], other.tensors.len() - 1);
        other.tensors.remove(last);
        other.tensor(&first.name, &first.dims, first.format, first.data.as_deref().unwrap()).unwrap();
        other.write_file(&dir.join(NAMES[2])).unwrap();
    });
    check(&dir, NAMES[0], &format!("tensor `{}` is given twice", whole().tensors[0].name));
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
    let mut one = whole();
    one.set("split.no", 0u32).set("split.count", 1u32);
    assert!(Gguf::from_bytes(one.to_bytes().unwrap()).is_ok(), "a set of one is whole");
}
