//! Tests of targets of device models: their changes, what devices report, and the guard that pauses.

use baton_cloud::fleet::reports::ROWS_OF_KEY_MAX;
use baton_cloud::store::{AuditQuery, DeviceReport, Expected, Store, StoreError, testing};
use baton_protocol::ModelPair;
use baton_registry::rollout::{Change, Guard, Share};

use crate::world::{ann, on_each};

const HOUR_MS: i64 = 3_600_000;

fn pair(text: &str) -> ModelPair {
    text.parse().unwrap()
}

fn start(candidate: &str) -> Change {
    Change::Start { candidate: pair(candidate), share: Share::ALL, guard: Guard::default() }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(done: Result<T, StoreError>, want: &str) {
    let err = done.unwrap_err().to_string();
    assert!(err.contains(want), "{err}");
}

/// Notes that a device of class `phone` with a key has a pair, or could not load one.
async fn report(store: &Store, key: &str, device: u32, active: &str, failed: Option<&str>, at_ms: i64) {
    let (active, failed) = (pair(active), failed.map(pair));
    let mut device_hash = [0; 32];
    device_hash[..4].copy_from_slice(&device.to_le_bytes());
    let report = DeviceReport {
        device_hash,
        key,
        scene: "*",
        class: "phone",
        active: Some(&active),
        failed: failed.as_ref(),
    };
    store.note_model_report(&report, at_ms).await.unwrap();
}

/// Begins a rollout of m@2 to phones, which have reported before it began if they are `known`.
async fn rollout(store: &Store, known: impl IntoIterator<Item = (&'static str, u32)>) -> i64 {
    let phone = ("*", "phone");
    store.set_model_target(phone, &pair("m@1"), &ann()).await.unwrap();
    for (key, device) in known {
        report(store, key, device, "m@1", None, HOUR_MS).await;
    }
    let begun = store.change_model_target(phone, &start("m@2"), Expected::Any, &ann()).await.unwrap();
    begun.updated_ms
}

#[test]
fn a_target_goes_through_a_rollout_and_back() {
    on_each(|db| async move {
        let store = db.open().await;
        let phone = ("*", "phone");
        refused(
            store.change_model_target(phone, &start("m@2"), Expected::Any, &ann()).await,
            "does not exist",
        );
        refused(store.set_model_target(("*", "no such/class"), &pair("m@1"), &ann()).await, "class");
        let set = store.set_model_target(phone, &pair("m@1"), &ann()).await.unwrap();
        assert_eq!((set.revision, &set.target.stable), (1, &pair("m@1")));
        assert!(matches!(
            store.set_model_target(phone, &pair("m@2"), &ann()).await,
            Err(StoreError::Conflict { .. })
        ));
        assert_eq!(store.snapshot().await.unwrap().targets, std::slice::from_ref(&set));

        let started =
            store.change_model_target(phone, &start("m@2"), Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!(started.target.rollout.as_ref().unwrap().candidate, pair("m@2"));
        assert!(matches!(
            store.change_model_target(phone, &Change::Pause, Expected::Revision(1), &ann()).await,
            Err(StoreError::Conflict { .. })
        ));
        // What makes no sense now changes nothing.
        assert!(matches!(
            store.change_model_target(phone, &start("m@3"), Expected::Any, &ann()).await,
            Err(StoreError::Rollout(_))
        ));
        assert_eq!(store.model_target("*", "phone").await.unwrap(), started);
        let back =
            store.change_model_target(phone, &Change::RollBack, Expected::Revision(2), &ann()).await.unwrap();
        assert!(back.target.rollout.is_none() && back.target.stable == pair("m@1"), "{back:?}");
        assert_eq!(back.target.retired.len(), 1, "the candidate is allowed for a while yet");

        let rows = store.audit(&AuditQuery { limit: 3, ..AuditQuery::default() }).await.unwrap();
        let actions: Vec<&str> = rows.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["rollout.rollback", "rollout.start", "rollout.set"]);
        store.remove_model_target(phone, Expected::Revision(3), &ann()).await.unwrap();
        assert!(store.model_targets().await.unwrap().is_empty());
        refused(store.model_target("*", "phone").await, "does not exist");
    });
}

#[test]
fn a_rollout_that_devices_cannot_load_is_paused_once_by_one_replica() {
    on_each(|db| async move {
        let (store, other) = (db.open().await, db.open().await);
        let now_ms = rollout(&store, [1, 2, 3, 4, 9].map(|device| ("key", device))).await;
        let phone = ("*", "phone");
        report(&store, "key", 1, "m@1", Some("m@2"), now_ms).await;
        report(&store, "key", 2, "m@1", Some("m@2"), now_ms).await;
        report(&store, "key", 9, "m@2", None, now_ms).await;
        // One device says it again: it is one device.
        report(&other, "key", 2, "m@1", Some("m@2"), now_ms + 1).await;
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap(), [], "two of three are too few");
        // What was said more than a day ago does not count.
        report(&store, "key", 3, "m@1", Some("m@2"), now_ms - 25 * HOUR_MS).await;
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap(), []);
        report(&other, "key", 4, "m@1", Some("m@2"), now_ms).await;
        let reports = other.model_reports("*", "phone", now_ms).await.unwrap();
        assert_eq!((reports.active("m@1"), reports.active("m@2"), reports.failed("m@2")), (3, 1, 3));

        let (here, there) = tokio::join!(store.guard_rollouts(now_ms), other.guard_rollouts(now_ms));
        let paused = [here.unwrap(), there.unwrap()].concat();
        assert_eq!(paused.len(), 1, "one of both has paused it");
        let rollout = paused[0].target.rollout.as_ref().unwrap();
        assert!(rollout.is_paused && rollout.paused_by_guard);
        let rows = store.audit(&AuditQuery { limit: 1, ..AuditQuery::default() }).await.unwrap();
        assert_eq!((rows[0].action.as_str(), rows[0].actor.as_str()), ("rollout.guard", "service"));
        // A person who knows better goes on; the guard then pauses it again.
        store.change_model_target(phone, &Change::Resume, Expected::Any, &ann()).await.unwrap();
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap().len(), 1);
    });
}

#[test]
fn invented_devices_pause_no_rollout() {
    on_each(|db| async move {
        let store = db.open().await;
        let known = (0..20).map(|device| ("key", device)).chain([("", 700), ("", 701), ("", 702)]);
        let now_ms = rollout(&store, known).await;
        for device in 0..20 {
            report(&store, "key", device, "m@2", None, now_ms).await;
        }
        // Devices that nobody had seen before the rollout began, and callers without a key.
        for device in 100..400 {
            report(&store, "key", device, "m@1", Some("m@2"), now_ms).await;
        }
        for device in 600..900 {
            report(&store, "", device, "m@1", Some("m@2"), now_ms).await;
        }
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap(), []);
        // Those that were seen do count.
        for device in 0..3 {
            report(&store, "key", device, "m@1", Some("m@2"), now_ms).await;
        }
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap().len(), 1);
    });
}

#[test]
fn failures_of_one_key_pause_nothing_for_others() {
    on_each(|db| async move {
        let store = db.open().await;
        let known = (0..50).map(|device| (if device < 40 { "many" } else { "few" }, device));
        let now_ms = rollout(&store, known).await;
        for device in 0..40 {
            report(&store, "many", device, "m@2", None, now_ms).await;
        }
        for device in 40..50 {
            report(&store, "few", device, "m@1", Some("m@2"), now_ms).await;
        }
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap(), [], "ten of fifty, all of one key");
        for device in 0..3 {
            report(&store, "many", device, "m@1", Some("m@2"), now_ms).await;
        }
        assert_eq!(store.guard_rollouts(now_ms).await.unwrap().len(), 1, "other keys' devices agree");
    });
}

#[test]
fn a_key_has_no_more_rows_than_it_may() {
    on_each(|db| async move {
        let store = db.open().await;
        store.set_model_target(("*", "phone"), &pair("m@1"), &ann()).await.unwrap();
        let sql = if db.is_postgres() {
            "INSERT INTO model_reports SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), '*', 'phone', 'm@1', '', n, 'key', n \
             FROM generate_series(1, 9999) AS n"
        } else {
            "INSERT INTO model_reports WITH RECURSIVE of(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM of WHERE n < 9999) \
             SELECT unhex(printf('%064x', n)), '*', 'phone', 'm@1', '', n, 'key', n FROM of"
        };
        testing::execute(&db.database, sql).await.unwrap();
        for device in 0..5 {
            report(&store, "key", device, "m@1", None, HOUR_MS).await;
        }
        report(&store, "other", 9, "m@1", None, HOUR_MS).await;
        let reports = store.model_reports("*", "phone", HOUR_MS).await.unwrap();
        assert_eq!(reports.active("m@1"), u64::from(ROWS_OF_KEY_MAX) + 1);
        // A device that is known needs no row of another.
        report(&store, "key", 4, "m@2", None, HOUR_MS).await;
        let reports = store.model_reports("*", "phone", HOUR_MS).await.unwrap();
        assert_eq!((reports.active("m@1"), reports.active("m@2")), (u64::from(ROWS_OF_KEY_MAX), 1));
    });
}
