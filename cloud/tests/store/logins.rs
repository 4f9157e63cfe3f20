//! Tests of logins: the limits of failed attempts, and whom they lock out.

use std::net::IpAddr;

use baton_cloud::access::Role;
use baton_cloud::store::{
    AuditQuery, Expected, LoginAttempt, LoginError, NewSession, Store, UserChange, now_ms, testing,
};

use crate::world::{TestDatabase, ann, on_each};

const PASSWORD: &str = "correct horse battery";
const WRONG: &str = "wrong password!";
const DAY_MS: i64 = 24 * 3600 * 1000;

/// Logs in from an address, on an unknown device.
pub(crate) async fn log_in(
    store: &Store,
    name: &str,
    password: &str,
    address: &str,
) -> Result<NewSession, LoginError> {
    let address: Option<IpAddr> = address.parse().ok();
    store.log_in(&LoginAttempt { name, password, address, ..LoginAttempt::default() }).await
}

/// Logs in on the device of an earlier session.
async fn on_device(
    store: &Store,
    device: &str,
    name: &str,
    password: &str,
) -> Result<NewSession, LoginError> {
    let address = "9.9.9.9".parse().ok();
    store
        .log_in(&LoginAttempt { name, password, address, device: Some(device), ..LoginAttempt::default() })
        .await
}

async fn with_ann(db: &TestDatabase) -> Store {
    let store = db.open().await;
    store.bootstrap("ann", PASSWORD, &ann()).await.unwrap();
    store
}

#[test]
fn strangers_and_wrong_passwords_are_told_the_same_and_limited() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        let told = async |name: &str| log_in(&store, name, WRONG, "1.1.1.1").await.unwrap_err().to_string();
        let (wrong, stranger, bad_name) = (told("ann").await, told("nobody").await, told("a/b'; --").await);
        assert_eq!((&stranger, &bad_name), (&wrong, &wrong));
        for _ in 0..4 {
            let err = log_in(&store, "ann", WRONG, "1.1.1.1").await.unwrap_err();
            assert!(matches!(err, LoginError::Wrong { .. }), "{err}");
        }
        let err = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { retry_after_s: 1..=900 }), "{err}");
        // Somebody else's failures do not lock ann out elsewhere.
        assert!(log_in(&store, "ann", PASSWORD, "2.2.2.2").await.is_ok());
        testing::execute(&db.database, "UPDATE login_failures SET at_ms = at_ms - 900000").await.unwrap();
        assert!(log_in(&store, "ann", PASSWORD, "1.1.1.1").await.is_ok(), "after a quarter of an hour");
    });
}

#[test]
fn attempts_at_the_same_time_count_before_their_passwords_are_looked_at() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        let mut attempts = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            attempts.spawn(async move { log_in(&store, "ann", WRONG, "1.1.1.1").await.unwrap_err() });
        }
        let (mut wrong, mut refused) = (0, 0);
        while let Some(err) = attempts.join_next().await {
            match err.unwrap() {
                LoginError::Wrong { .. } => wrong += 1,
                LoginError::TooMany { .. } | LoginError::Busy { .. } => refused += 1,
                LoginError::Store(err) => panic!("{err:?}"),
            }
        }
        assert_eq!((wrong, refused), (5, 95));
        // Successful attempts at the same time do not count against each other.
        let right = (0..4).map(|_| log_in(&store, "ann", PASSWORD, "2.2.2.2"));
        for begun in futures_util::future::join_all(right).await {
            begun.unwrap();
        }
    });
}

/// Writes 100 failed attempts for ann, as if strangers at other addresses had made them.
async fn lock_ann_out(db: &TestDatabase) {
    let sql = format!(
        "INSERT INTO login_failures (subject, at_ms) WITH RECURSIVE n(i) AS \
         (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT 'name ann', {} FROM n",
        now_ms()
    );
    testing::execute(&db.database, &sql).await.unwrap();
}

#[test]
fn strangers_do_not_lock_out_who_logged_in_on_this_device_before() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        let session = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap();
        lock_ann_out(&db).await;
        let err = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        let err = on_device(&store, "no-such-device", "ann", PASSWORD).await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        let again = on_device(&store, &session.device, "ann", PASSWORD).await.unwrap();
        assert_eq!(again.device, session.device, "the same device");
        // The device does not bypass the limits: it has a limit of its own, and then counts as unknown.
        for _ in 0..5 {
            let err = on_device(&store, &session.device, "ann", WRONG).await.unwrap_err();
            assert!(matches!(err, LoginError::Wrong { .. }), "{err}");
        }
        let err = on_device(&store, &session.device, "ann", PASSWORD).await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
    });
}

#[test]
fn a_login_code_lets_in_once_with_the_password_whatever_strangers_do() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        store.add_user("ben", Role::Viewer, PASSWORD, &ann()).await.unwrap();
        lock_ann_out(&db).await;
        let with = async |name: &str, password: &str, code: &str| {
            let attempt = LoginAttempt { name, password, code: Some(code), ..LoginAttempt::default() };
            store.log_in(&attempt).await
        };
        let refused = async |name: &str, password: &str, code: &str| {
            with(name, password, code).await.unwrap_err().to_string()
        };
        let code = store.add_login_code("ann", &ann()).await.unwrap();
        let wrong = refused("ann", WRONG, &code).await;
        assert_eq!(wrong, "user name or password is wrong", "the password is needed too");
        assert!(refused("ann", PASSWORD, "guess").await.starts_with("too many failed logins"));
        assert!(refused("ann", PASSWORD, "").await.contains("baton-cloud users login-code"));
        // A code is no cookie of a device.
        let err = on_device(&store, &code, "ann", PASSWORD).await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        // Of two at the same time one gets in, and has a device of its own from then on.
        let typed = format!(" {code} ");
        let (one, two) = tokio::join!(with("ann", PASSWORD, &typed), with("ann", PASSWORD, &code));
        assert_eq!(usize::from(one.is_ok()) + usize::from(two.is_ok()), 1, "{one:?} {two:?}");
        let device = one.or(two).unwrap().device;
        assert_ne!(device, code);
        on_device(&store, &device, "ann", PASSWORD).await.unwrap();
        assert!(refused("ann", PASSWORD, &code).await.starts_with("too many failed logins"), "it is used up");

        // It is for its user alone, for a while, for five wrong passwords, and gone with the password.
        let of_ben = store.add_login_code("ben", &ann()).await.unwrap();
        assert!(refused("ann", PASSWORD, &of_ben).await.starts_with("too many failed logins"));
        let old = store.add_login_code("ann", &ann()).await.unwrap();
        let run = async |sql: &str| testing::execute(&db.database, sql).await.unwrap();
        run("UPDATE known_devices SET expires_ms = expires_ms - 600000 WHERE user_name = 'ann'").await;
        assert!(refused("ann", PASSWORD, &old).await.starts_with("too many failed logins"));
        let guessed = store.add_login_code("ann", &ann()).await.unwrap();
        for _ in 0..5 {
            assert_eq!(refused("ann", WRONG, &guessed).await, wrong);
        }
        assert!(refused("ann", PASSWORD, &guessed).await.starts_with("too many failed logins"));
        let late = store.add_login_code("ann", &ann()).await.unwrap();
        let change = UserChange { password: Some("another long password".into()), ..UserChange::default() };
        store.change_user("ann", &change, Expected::Any, &ann()).await.unwrap();
        assert!(refused("ann", "another long password", &late).await.starts_with("too many failed logins"));

        let rows = store.audit(&AuditQuery { limit: 100, ..AuditQuery::default() }).await.unwrap();
        let codes = rows.iter().filter(|row| row.action == "user.login_code").count();
        let begun = rows.iter().filter(|row| row.detail.contains("\"login_code\":true")).count();
        assert_eq!((codes, begun), (5, 1));
        assert!(rows.iter().all(|row| !row.detail.contains(&code)), "the log has no code");
        let err = store.add_login_code("nobody", &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "user `nobody` does not exist");
    });
}

#[test]
fn a_device_is_known_for_its_user_and_password_only() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        store.add_user("ben", Role::Viewer, PASSWORD, &ann()).await.unwrap();
        let of_ben = log_in(&store, "ben", PASSWORD, "1.1.1.1").await.unwrap().device;
        let of_ann = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap().device;
        lock_ann_out(&db).await;
        let err = on_device(&store, &of_ben, "ann", PASSWORD).await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        let change = UserChange { password: Some("another long password".into()), ..UserChange::default() };
        store.change_user("ann", &change, Expected::Any, &ann()).await.unwrap();
        let err = on_device(&store, &of_ann, "ann", "another long password").await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
    });
}

#[test]
fn a_session_is_good_also_where_its_use_cannot_be_noted() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        store.add_user("ben", Role::Viewer, PASSWORD, &ann()).await.unwrap();
        let of_ann = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap();
        let of_ben = log_in(&store, "ben", PASSWORD, "1.1.1.1").await.unwrap();
        let run = async |sql: &str| testing::execute(&db.database, sql).await.unwrap();
        run("UPDATE sessions SET seen_ms = seen_ms - 120000").await;
        run("UPDATE sessions SET expires_ms = 1 WHERE user_name = 'ben'").await;
        // Fails as a full disk does.
        run(if db.is_postgres() {
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END \
             $$ LANGUAGE plpgsql; CREATE TRIGGER sessions_full BEFORE UPDATE ON sessions FOR EACH ROW \
             EXECUTE FUNCTION refuse()"
        } else {
            "CREATE TRIGGER sessions_full BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'full'); END"
        })
        .await;
        for _ in 0..3 {
            let session = store.session(&of_ann.token).await.unwrap();
            assert_eq!(session.map(|session| session.user.name).as_deref(), Some("ann"));
        }
        assert_eq!(store.session(&of_ben.token).await.unwrap(), None, "it ends when it must");
    });
}

#[test]
fn a_name_with_nul_is_wrong_and_counts() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        for _ in 0..5 {
            let err = log_in(&store, "ann\0", WRONG, "1.1.1.1").await.unwrap_err();
            assert!(matches!(err, LoginError::Wrong { known: None }), "{err}");
        }
        let err = log_in(&store, "ann\0", WRONG, "1.1.1.1").await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        let begun = log_in(&store, "ann", PASSWORD, "1.1.1.1").await;
        assert!(begun.is_ok(), "it is not counted as ann's");
    });
}

#[test]
fn a_name_cannot_stand_for_an_address() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        for host in 1..=6 {
            for _ in 0..5 {
                let address = format!("6.6.6.{host}");
                let err = log_in(&store, "@9.9.9.9", WRONG, &address).await.unwrap_err();
                assert!(matches!(err, LoginError::Wrong { .. }), "{err}");
            }
        }
        assert!(log_in(&store, "ann", PASSWORD, "9.9.9.9").await.is_ok());
    });
}

#[test]
fn a_network_of_ipv6_counts_as_one_address() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        for host in 1..=5 {
            let err = log_in(&store, "ann", WRONG, &format!("2001:db8::{host}")).await.unwrap_err();
            assert!(matches!(err, LoginError::Wrong { .. }), "{err}");
        }
        let err = log_in(&store, "ann", PASSWORD, "2001:db8::6").await.unwrap_err();
        assert!(matches!(err, LoginError::TooMany { .. }), "{err}");
        assert!(log_in(&store, "ann", PASSWORD, "2001:db8:0:1::6").await.is_ok());
    });
}

#[test]
fn a_clock_that_is_set_by_a_day_locks_nobody_out_and_lets_nobody_in() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        for _ in 0..5 {
            log_in(&store, "ann", WRONG, "1.1.1.1").await.unwrap_err();
        }
        // As if the clock had been a day ahead until now.
        let move_by = |table: &str, columns: &[&str], ms: i64| {
            let set: Vec<String> =
                columns.iter().map(|column| format!("{column} = {column} + {ms}")).collect();
            format!("UPDATE {table} SET {}", set.join(", "))
        };
        let run = async |sql: String| testing::execute(&db.database, &sql).await.unwrap();
        run(move_by("login_failures", &["at_ms"], DAY_MS)).await;
        let first = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap();
        assert!(store.session(&first.token).await.unwrap().is_some());
        let times = ["created_ms", "seen_ms", "expires_ms"];
        run(move_by("sessions", &times, DAY_MS)).await;
        assert_eq!(store.session(&first.token).await.unwrap(), None, "it would last a day longer");
        // As if the clock had been a day behind.
        let second = log_in(&store, "ann", PASSWORD, "1.1.1.1").await.unwrap();
        run(move_by("sessions", &times, -DAY_MS)).await;
        assert_eq!(store.session(&second.token).await.unwrap(), None);
        assert!(log_in(&store, "ann", PASSWORD, "1.1.1.1").await.is_ok());
        // Changes and the audit log still work.
        run("UPDATE known_devices SET seen_ms = seen_ms + 86400000".to_owned()).await;
        store.add_user("ben", Role::Viewer, PASSWORD, &ann()).await.unwrap();
        assert!(format!("{:?}", store.verify_audit(None).await.unwrap()).starts_with("Whole"));
    });
}

#[test]
fn failed_logins_stand_in_the_audit_log_without_what_was_typed() {
    on_each(|db| async move {
        let store = with_ann(&db).await;
        log_in(&store, "ann", WRONG, "1.1.1.1").await.unwrap_err();
        log_in(&store, "my-secret-password", "ann", "2001:db8::7").await.unwrap_err();
        let rows = store.audit(&AuditQuery { limit: 10, ..AuditQuery::default() }).await.unwrap();
        let failed: Vec<(&str, &str)> = rows
            .iter()
            .filter(|row| row.action == "session.refused")
            .map(|row| (row.target.as_str(), row.detail.as_str()))
            .collect();
        let want =
            [("user/unknown", "{\"address\":\"2001:db8::7\"}"), ("user/ann", "{\"address\":\"1.1.1.1\"}")];
        assert_eq!(failed, want);
        assert!(rows.iter().all(|row| !format!("{row:?}").contains("my-secret-password")), "{rows:?}");
    });
}
