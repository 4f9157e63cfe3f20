//! Tests of the database file: who may read it, and a disk that is full for a while.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use baton_cloud::access::TenantSettings;
use baton_cloud::store::{Database, Expected, LoginAttempt, Store, StoreError, testing};
use tempfile::TempDir;

use crate::outage::{Program, get, question, send, until};
use crate::world::ann;

/// A file system of 2 MiB in memory, with a file that can take all its space.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts it; `None` if this user may not, and prints the reason once.
    fn mount() -> Option<SmallDisk> {
        static LACKS: OnceLock<()> = OnceLock::new();
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m,mode=700", "none"])
            .arg(folder.path())
            .output();
        let reason = match mount {
            Ok(output) if output.status.success() => return Some(SmallDisk { folder }),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(err) => err.to_string(),
        };
        LACKS.get_or_init(|| println!("skipped: store: a full disk: mount a small one: {reason}"));
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fill(&self) {
        let mut filler = File::create(self.path("filler")).unwrap();
        for bytes in [1 << 16, 1 << 10, 1] {
            while filler.write_all(&vec![7; bytes]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy unmount, because a killed program may not have ended yet.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

async fn change(store: &Store, count: usize) -> Result<(), StoreError> {
    let label = format!("{count} {}", "x".repeat(900));
    let settings = TenantSettings { label, ..TenantSettings::default() };
    store.set_tenant("acme", &settings, Expected::Any, &ann()).await.map(drop)
}

/// Makes changes until one is refused, and returns the error.
async fn change_until_refused(store: &Store) -> StoreError {
    for count in 0..10_000 {
        if let Err(err) = change(store, count).await {
            return err;
        }
    }
    panic!("10,000 changes fit on a full disk");
}

#[tokio::test]
async fn a_full_disk_refuses_changes_until_there_is_room_and_no_longer() {
    let Some(disk) = SmallDisk::mount() else { return };
    let database = Database::File(disk.path("cloud.db"));
    let store = Store::open(&database).await.unwrap();
    change(&store, 0).await.unwrap();
    assert_eq!(store.health().not_writable_since_ms, None);
    disk.fill();
    let err = change_until_refused(&store).await;
    assert!(err.is_not_writable() && err.is_unavailable(), "{err:?}");
    // Every connection of the pool fails, more than once.
    for count in 0..20 {
        let (one, two) = tokio::join!(change(&store, count), change(&store, count));
        for err in [one.unwrap_err(), two.unwrap_err()] {
            assert!(err.is_not_writable(), "the disk is the reason, each time: {err:?}");
        }
    }
    assert!(store.health().not_writable_since_ms.is_some());
    assert_eq!(store.tenants().await.unwrap().len(), 2, "it reads");
    disk.free();
    // The watch notices the free space by itself.
    let mut watch = store.watch(store.generation().await.unwrap());
    watch.next().await.unwrap();
    assert_eq!(store.health().not_writable_since_ms, None);
    for count in 0..20 {
        change(&store, count).await.unwrap();
    }
    assert!(format!("{:?}", store.verify_audit(None).await.unwrap()).starts_with("Whole"));
    store.close().await;
    let again = Store::open(&database).await.unwrap();
    assert!(again.tenant("acme").await.unwrap().settings.label.starts_with("19 "), "the last change lasts");
    again.close().await;
}

#[tokio::test]
async fn whoever_is_logged_in_reads_on_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount() else { return };
    let database = Database::File(disk.path("cloud.db"));
    let store = Store::open(&database).await.unwrap();
    store.bootstrap("ann", "correct horse battery", &ann()).await.unwrap();
    let attempt = LoginAttempt { name: "ann", password: "correct horse battery", ..LoginAttempt::default() };
    let session = store.log_in(&attempt).await.unwrap();
    // Makes every use of the session due to be written.
    testing::execute(&database, "UPDATE sessions SET seen_ms = seen_ms - 120000").await.unwrap();
    disk.fill();
    change_until_refused(&store).await;
    for _ in 0..20 {
        assert!(store.session(&session.token).await.unwrap().is_some());
    }
    disk.free();
    assert!(store.session(&session.token).await.unwrap().is_some());
    store.close().await;
}

fn cli(database: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
    command.args(words).arg("--database").arg(database).env_remove("BATON_DATABASE");
    command.output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_answers_while_its_disk_is_full_and_takes_changes_again_afterwards() {
    let Some(disk) = SmallDisk::mount() else { return };
    let database = disk.path("cloud.db");
    let log = File::create(disk.path("log")).unwrap();
    let program = Program::start_with(database.to_str().unwrap(), "debug", log.into());
    let address = program.address.clone();
    disk.fill();
    let ask = async || {
        let (status, body) = send(&address, "POST", "/v1/assist", "none", &question()).await;
        assert!(status == 200 && body.contains("event: end"), "{status}: {body}");
    };
    // Neither its usage nor its log can be written any more.
    until("a full disk", async || {
        ask().await;
        get(&address, "/healthz").await.1.contains("\"database\":\"not_writable\"")
    })
    .await;
    assert_eq!(get(&address, "/readyz").await.0, 200, "it answers all the same");
    let refused = cli(&database, &["tenants", "set", "acme", "--label", &"x".repeat(1000)]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && err.contains("disk is full"), "{err}");
    disk.free();
    until("recovery", async || get(&address, "/healthz").await.1 == "{\"status\":\"ok\"}").await;
    assert!(cli(&database, &["tenants", "set", "acme", "--weight", "20"]).status.success());
    ask().await;
    program.stop();
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let full = || Stdio::from(File::create("/dev/full").unwrap());
    let program = Program::start_with(":memory:", "debug", full());
    let (status, body) = send(&program.address, "POST", "/v1/assist", "none", &question()).await;
    assert!(status == 200 && body.contains("event: end"), "{status}: {body}");
    program.stop();
    // An error that cannot be printed does not change the exit status either.
    let mut failing = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
    failing.args(["keys", "revoke", "nothing", "--database", ":memory:"]).stderr(full());
    assert_eq!(failing.status().unwrap().code(), Some(1));
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_user_can_read_the_database() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud.db");
    let store = Store::open(&Database::File(path.clone())).await.unwrap();
    change(&store, 0).await.unwrap();
    let files: Vec<(String, u32)> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().permissions().mode())
        })
        .collect();
    assert!(files.len() >= 2, "the log of changes is beside it: {files:?}");
    for (name, mode) in files {
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    store.close().await;
    // Permissions that the operator has set stay.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    Store::open(&Database::File(path.clone())).await.unwrap().close().await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}
