//! Pulls of files of this machine, and names from outside.

use super::*;
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use std::sync::{Arc, Mutex};

fn options(path: &Path, name: Option<&str>, force: bool) -> PullOptions {
    PullOptions {
        source: Source::Path(path.to_owned()),
        hub: HUB.into(),
        token: None,
        revision: REVISION.into(),
        index: INDEX.into(),
        name: name.map(str::to_owned),
        force,
    }
}

fn quiet() -> Report {
    Arc::new(|_| {})
}

#[tokio::test]
async fn a_file_is_kept_under_a_name_and_found_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("models"))).unwrap();
    let path = folder.path().join("One.gguf");
    let bytes = SyntheticModel::small("llama", Format::F32, 1).to_gguf().unwrap();
    fs::write(&path, &bytes).unwrap();
    let (_stopper, stop) = Stop::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    let report: Report = Arc::new(move |event| kept.lock().unwrap().push(event));
    let pulled = pull(&store, &options(&path, None, false), report, stop.clone()).await.unwrap();
    assert_eq!((pulled.record.name.as_str(), pulled.was_there), ("one", false));
    assert_eq!(pulled.record.files[0].sha256, hex::encode(Sha256::digest(&bytes)));
    let told = told.lock().unwrap().clone();
    let of = bytes.len() as u64;
    assert!(
        matches!(&told[0], Event::Start { name, of: all, .. } if name == "one" && *all == of),
        "{told:?}"
    );
    assert_eq!(told.last(), Some(&Event::Progress { done: of, of }));
    let again = pull(&store, &options(&path, None, false), quiet(), stop.clone()).await.unwrap();
    assert!(again.was_there);
    // Another file may not take the name, and what was staged of it is gone.
    let other = folder.path().join("other.gguf");
    fs::write(&other, SyntheticModel::small("llama", Format::F32, 2).to_gguf().unwrap()).unwrap();
    let taken = pull(&store, &options(&other, Some("one"), false), quiet(), stop.clone()).await;
    assert!(matches!(taken, Err(PullError::NameTaken { .. })), "{taken:?}");
    let bad = pull(&store, &options(&other, Some("../one"), false), quiet(), stop).await;
    assert!(matches!(bad, Err(PullError::Store(_))), "{bad:?}");
    assert_eq!(store.list().len(), 1);
}

#[tokio::test]
async fn a_pull_that_is_stopped_or_of_no_model_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("models"))).unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, SyntheticModel::small("llama", Format::F32, 1).to_gguf().unwrap()).unwrap();
    let (stopper, stop) = Stop::new();
    stopper.send_replace(true);
    let stopped = pull(&store, &options(&path, None, false), quiet(), stop).await;
    assert!(matches!(stopped, Err(PullError::Stopped)), "{stopped:?}");
    let (_stopper, stop) = Stop::new();
    fs::write(&path, b"GGUF and no more").unwrap();
    for force in [false, true] {
        let none = pull(&store, &options(&path, None, force), quiet(), stop.clone()).await;
        assert!(matches!(none, Err(PullError::NoModel { .. })), "{none:?}");
    }
    let absent = pull(&store, &options(&folder.path().join("x"), None, false), quiet(), stop).await;
    assert!(matches!(absent, Err(PullError::File { .. })), "{absent:?}");
    assert!(store.list().is_empty());
}

#[test]
fn names_from_outside_are_plain() {
    for good in ["m.gguf", "a b.gguf", "ü.gguf"] {
        assert!(plain_file(good).is_ok(), "{good}");
    }
    for bad in ["", ".", "..", ".hidden", "a/b", "a\\b", "c:x", "a\nb", &"x".repeat(201)] {
        assert!(plain_file(bad).is_err(), "{bad:?}");
    }
}
