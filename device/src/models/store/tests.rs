//! The store: names, records, crashes between the steps, and removal.

use super::*;
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("models"))).unwrap();
    (folder, store)
}

/// Makes a model whole in its staging folder, and returns its record.
fn stage(store: &Store, name: &str, source: &str, seed: u64) -> Record {
    let staging = store.staging(name).unwrap();
    let bytes = SyntheticModel::small("llama", Format::F32, seed).to_gguf().unwrap();
    let part = part_path(&staging, "m.gguf");
    fs::write(&part, &bytes).unwrap();
    fs::write(part::state_path(&part), b"{}").unwrap();
    let files = vec![KeptFile { file: "m.gguf".into(), bytes: bytes.len() as u64, sha256: "aa".into() }];
    let path = name_files(&staging, &files).unwrap();
    Record::new(name.into(), source.into(), files, About::of(&path).unwrap())
}

#[test]
fn names_are_plain_file_names() {
    for good in ["a", "smollm2-360m-instruct-q4_k_m", "Llama-3.2-1B", "7b"] {
        assert_eq!(checked_name(good).unwrap(), good.to_ascii_lowercase());
    }
    for bad in ["", ".", "..", ".partial", "a/b", "a\\b", "-x", "ä", "a b", &"x".repeat(129)] {
        assert!(matches!(checked_name(bad), Err(StoreError::BadName(_))), "{bad}");
    }
    for (file, name) in [
        ("SmolLM2-360M-Instruct-Q4_K_M.gguf", "smollm2-360m-instruct-q4_k_m"),
        ("..gguf", "model"),
        ("a b/c.gguf", "a-b-c"),
        ("模型.gguf", "model"),
    ] {
        assert_eq!(name_of(file), name, "{file}");
        assert!(is_name(&name_of(file)));
    }
}

#[test]
fn a_model_is_kept_found_and_removed() {
    let (_folder, store) = store();
    assert!(store.list().is_empty() && store.begun().is_empty());
    let said = store.path("a").unwrap_err().to_string();
    assert!(said.contains("`baton model pull` gets one"), "{said}");
    let record = stage(&store, "a", "hf:x/y:m.gguf", 1);
    assert_eq!(store.find("a"), None, "what is being made is not there");
    store.install(&record).unwrap();
    assert_eq!(store.find("A"), Some(record.clone()), "case does not matter");
    let path = store.path("a").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), record.bytes());
    assert_eq!(names_in(path.parent().unwrap()), ["m.gguf", RECORD], "no state is left");
    assert_eq!(store.list(), std::slice::from_ref(&record));
    let said = store.path("b").unwrap_err().to_string();
    assert_eq!(said, "no file and no model is called `b`: there are `a`");
    assert_eq!(resolve(Path::new("a"), Some(store.folder().to_owned())).unwrap(), path);
    assert_eq!(resolve(&path, None).unwrap(), path);
    let absent = resolve(Path::new("no/such.gguf"), None).unwrap();
    assert_eq!(absent, Path::new("no/such.gguf"), "a path stays a path");
    assert_eq!(store.remove("a").unwrap(), record.bytes());
    assert!(matches!(store.remove("a"), Err(StoreError::NoModel { .. })));
    assert!(names_in(&store.folder().join(PARTIAL)).is_empty());
}

#[test]
fn a_model_is_replaced_as_a_whole() {
    let (_folder, store) = store();
    store.install(&stage(&store, "a", "hf:x/y", 1)).unwrap();
    let open = File::open(store.path("a").unwrap()).unwrap();
    let second = stage(&store, "a", "hf:x/z", 2);
    assert_eq!(store.find("a").unwrap().source, "hf:x/y");
    store.install(&second).unwrap();
    assert_eq!(store.find("a").unwrap().source, "hf:x/z");
    assert!(open.metadata().unwrap().len() > 0, "who has the old file open keeps it");
    assert!(names_in(&store.folder().join(PARTIAL)).is_empty());
}

#[test]
fn a_crash_between_the_steps_loses_nothing() {
    let (_folder, store) = store();
    // After the record was written, before the rename.
    let record = stage(&store, "a", "hf:x/y", 1);
    let staging = store.folder().join(PARTIAL).join("a");
    write_whole(&staging.join(RECORD), &serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(store.find("a"), None);
    store.staging("a").unwrap();
    assert_eq!(store.find("a"), Some(record.clone()), "the next pull puts it into its place");
    // Between the two renames of a replacement.
    let second = stage(&store, "a", "hf:x/z", 2);
    let staging = store.folder().join(PARTIAL).join("a");
    write_whole(&staging.join(RECORD), &serde_json::to_vec(&second).unwrap()).unwrap();
    fs::rename(store.folder().join("a"), store.folder().join(PARTIAL).join(".a.old")).unwrap();
    store.staging("a").unwrap();
    assert_eq!(store.find("a"), Some(second));
    // After the files got their names, before the record.
    stage(&store, "b", "hf:x/y", 3);
    let staging = store.staging("b").unwrap();
    unname_files(&staging, ["m.gguf", "other.gguf"]).unwrap();
    assert_eq!(names_in(&staging), ["m.gguf.part", "m.gguf.part.json"]);
}

#[test]
fn a_record_that_does_not_fit_its_files_is_no_model() {
    let (_folder, store) = store();
    let record = stage(&store, "a", "hf:x/y", 1);
    store.install(&record).unwrap();
    let place = store.folder().join("a");
    let write = |record: &Record| {
        fs::write(place.join(RECORD), serde_json::to_vec(record).unwrap()).unwrap();
    };
    let with = |change: &dyn Fn(&mut Record)| {
        let mut changed = record.clone();
        change(&mut changed);
        changed
    };
    for bad in [
        with(&|record| record.name = "b".into()),
        with(&|record| record.version = 2),
        with(&|record| record.files[0].file = "../a/m.gguf".into()),
        with(&|record| record.files[0].bytes += 1),
        with(&|record| record.files.clear()),
    ] {
        write(&bad);
        assert_eq!(store.find("a"), None, "{bad:?}");
    }
    write(&record);
    assert!(store.find("a").is_some());
    fs::write(place.join(RECORD), b"{").unwrap();
    assert_eq!(store.find("a"), None);
}

#[test]
fn what_was_begun_is_listed_and_removed() {
    let (_folder, store) = store();
    let staging = store.staging("a").unwrap();
    for (file, verified) in [("m-00001-of-00002.gguf", 10), ("m-00002-of-00002.gguf", 0)] {
        let part = part_path(&staging, file);
        let want = part::Want { url: "http://x/m".into(), bytes: Some(100), sha256: None, chunks: None };
        let mut open = part::Part::open(&part, want, |_| Ok(())).unwrap();
        open.write(&vec![1; verified]).unwrap();
        open.commit().unwrap();
    }
    assert_eq!(store.begun(), [Begun { name: "a".into(), bytes: 10, of: Some(200) }]);
    let lock = store.try_lock("a").unwrap().unwrap();
    assert!(matches!(store.remove("a"), Err(StoreError::Busy(_))));
    drop(lock);
    assert_eq!(store.remove("a").unwrap(), 10);
    assert!(store.begun().is_empty());
}
