//! A worker whose disk has no room for its part of the model.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::devices::{alone, begin, finish};
use baton_e2e::home::{Home, Seat, model};

/// Tokens of an answer.
const TOKENS: usize = 16;

/// A small file system; unmounted when dropped.
struct SmallDisk {
    place: PathBuf,
}

impl SmallDisk {
    /// Mounts it; returns `None` if that is not possible, because it needs root and Linux.
    fn mount(place: &Path) -> Option<Self> {
        std::fs::create_dir(place).expect("make a folder");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(place).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self { place: place.to_owned() })
    }

    fn grow(&self) {
        let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&self.place).status();
        assert!(grown.expect("run mount").success(), "the disk cannot grow");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmounted lazily, because a worker that was just killed may still have a file open.
        let _unmounted = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_disk_is_full_is_named_and_the_ring_answers_without_it() {
    let scratch = tempfile::tempdir().expect("make a folder");
    let Some(disk) = SmallDisk::mount(&scratch.path().join("disk")) else {
        println!("skipped: ring: no small file system can be mounted here");
        return;
    };
    let seat = |name: &str| Seat::new(name).with("--threads").with("1");
    let workers = [seat("desk"), seat("full").with("--weights").with(disk.place.as_os_str())];
    let head = Seat::new("head");
    let home = Home::with_copy(&std::env::temp_dir(), &model(), head, &workers).await.expect("a ring");
    let want = alone(TOKENS).await.expect("one device alone");
    let plan = [("head", 1), ("desk", 2), ("full", 2)];
    let mut bench = begin(&home, &plan, 1, TOKENS).expect("start the head");
    let answer = finish(&mut bench).await.expect("the ring answers");
    assert_eq!(answer["written"], want["written"]);
    let lost = answer["ring"]["lost"].to_string();
    assert!(lost.contains("full") && lost.contains("disk is full"), "{}", answer["ring"]);
    // The part that it had fetched was not a complete model, and was not used as one. With more room it
    // continues from there and takes part.
    disk.grow();
    let mut bench = begin(&home, &plan, 1, TOKENS).expect("start the head");
    let answer = finish(&mut bench).await.expect("the ring answers");
    assert_eq!(answer["written"], want["written"]);
    let stats = &answer["ring"];
    assert_eq!(
        (stats["lost"].as_array().map(Vec::len), stats["recoveries"].as_u64()),
        (Some(0), Some(0)),
        "{stats}"
    );
    assert_eq!(stats["devices"].as_array().map(Vec::len), Some(3), "{stats}");
    drop(home);
}
