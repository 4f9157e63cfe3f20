//! Tests of the audit log: it has every change, and detects whoever alters it.

use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{AuditCheck, AuditFault, AuditQuery, Expected, Store, page_is_whole, testing};
use serde_json::{Value, json};

use crate::world::{TestDatabase, ann, on_each};

/// Opens the database and writes six audit rows.
async fn with_rows(db: &TestDatabase) -> Store {
    let store = db.open().await;
    for xi in [0.3, 0.4, 0.5, 0.6, 0.7, 0.8] {
        let settings = SceneSettings { xi, ..SceneSettings::with_system("s") };
        store.set_scene("mine", &settings, "a note", Expected::Any, &ann()).await.unwrap();
    }
    store
}

#[track_caller]
fn broken(check: &AuditCheck, seq: u64, fault: AuditFault) {
    assert_eq!(check, &AuditCheck::Broken { seq, fault });
}

#[test]
fn a_whole_log_is_whole_and_read_by_page() {
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let AuditCheck::Whole(end) = store.verify_audit(None).await.unwrap() else { panic!("it is whole") };
        assert_eq!(end.seq, 6);
        let page = |before| AuditQuery { before, limit: 4, ..AuditQuery::default() };
        let rows = store.audit(&page(None)).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [6, 5, 4, 3]);
        let rows = store.audit(&page(Some(3))).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [2, 1]);
        let first = rows.last().unwrap().to_json();
        assert_eq!(
            (&first["actor"], &first["action"], &first["target"]),
            (&json!("user:ann"), &json!("scene.set"), &json!("scene/mine"))
        );
        let xi: &Value = &rows[0].to_json()["detail"]["changes"]["xi"];
        assert_eq!(xi, &json!({ "from": 0.3, "to": 0.4 }));
        let of = |target: &str, actor: &str| AuditQuery {
            target: target.into(),
            actor: actor.into(),
            limit: 9,
            before: None,
        };
        assert_eq!(store.audit(&of("scene/mine", "user:ann")).await.unwrap().len(), 6);
        assert_eq!(store.audit(&of("scene/chat", "")).await.unwrap().len(), 0);
        assert_eq!(store.audit(&of("", "cli")).await.unwrap().len(), 0);
    });
}

#[test]
fn a_refused_change_leaves_no_row() {
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let settings = SceneSettings::with_system("s");
        assert!(store.set_scene("mine", &settings, "", Expected::Absent, &ann()).await.is_err());
        assert!(store.roll_back("mine", 99, "", Expected::Any, &ann()).await.is_err());
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditCheck::Whole(end) if end.seq == 6));
    });
}

#[test]
fn every_altered_field_is_found() {
    for column in ["at_ms", "actor", "action", "target", "detail", "prev_hash", "hash"] {
        on_each(|db| async move {
            let store = with_rows(&db).await;
            let value = match column {
                "at_ms" => "at_ms + 1",
                "prev_hash" | "hash" => "(SELECT hash FROM audit_log WHERE seq = 1)",
                _ => "'other'",
            };
            let sql = format!("UPDATE audit_log SET {column} = {value} WHERE seq = 3");
            db.tamper("audit_log_is_immutable", "audit_log", &sql).await;
            broken(&store.verify_audit(None).await.unwrap(), 3, AuditFault::Altered);
        });
    }
}

#[test]
fn deleted_moved_and_added_rows_are_found() {
    on_each(|db| async move {
        let store = with_rows(&db).await;
        db.tamper("audit_log_is_kept", "audit_log", "DELETE FROM audit_log WHERE seq = 6").await;
        broken(&store.verify_audit(None).await.unwrap(), 6, AuditFault::Missing);
    });
    on_each(|db| async move {
        let store = with_rows(&db).await;
        db.tamper("audit_log_is_kept", "audit_log", "DELETE FROM audit_log WHERE seq = 2").await;
        broken(&store.verify_audit(None).await.unwrap(), 2, AuditFault::Missing);
        // Renumbering rows to close the gap alters them.
        let sql = "UPDATE audit_log SET seq = seq - 1 WHERE seq = 3";
        db.tamper("audit_log_is_immutable", "audit_log", sql).await;
        broken(&store.verify_audit(None).await.unwrap(), 2, AuditFault::Altered);
    });
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let swap = "UPDATE audit_log SET seq = 99 WHERE seq = 3; UPDATE audit_log SET seq = 3 WHERE seq = 4; \
                    UPDATE audit_log SET seq = 4 WHERE seq = 99";
        db.tamper("audit_log_is_immutable", "audit_log", swap).await;
        broken(&store.verify_audit(None).await.unwrap(), 3, AuditFault::Altered);
    });
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let sql = "INSERT INTO audit_log SELECT seq + 1, at_ms, actor, action, target, detail, hash, hash \
                   FROM audit_log WHERE seq = 6";
        testing::execute(&db.database, sql).await.unwrap();
        broken(&store.verify_audit(None).await.unwrap(), 7, AuditFault::Altered);
    });
}

#[test]
fn a_log_that_was_cut_and_told_so_is_found_by_the_end_that_was_noted() {
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let AuditCheck::Whole(end) = store.verify_audit(None).await.unwrap() else { panic!("it is whole") };
        let noted = || Some((end.seq, hex::encode(end.hash)));
        assert!(matches!(store.verify_audit(noted()).await.unwrap(), AuditCheck::Whole(_)));
        // An attacker who can write everything cuts the last row off and sets the end back.
        let cut = "DELETE FROM audit_log WHERE seq = 6; UPDATE service_state SET audit_seq = 5, \
                   audit_hash = (SELECT hash FROM audit_log WHERE seq = 5)";
        db.tamper("audit_log_is_kept", "audit_log", cut).await;
        assert!(
            matches!(store.verify_audit(None).await.unwrap(), AuditCheck::Whole(_)),
            "alone it looks whole"
        );
        broken(&store.verify_audit(noted()).await.unwrap(), 5, AuditFault::Replaced);
        // After more rows, the log still does not hold the noted end.
        let settings = SceneSettings::with_system("s");
        store.set_scene("mine", &settings, "", Expected::Any, &ann()).await.unwrap();
        broken(&store.verify_audit(noted()).await.unwrap(), 6, AuditFault::Replaced);
    });
}

#[test]
fn a_check_goes_on_from_where_the_last_one_ended() {
    on_each(|db| async move {
        let store = with_rows(&db).await;
        let AuditCheck::Whole(end) = store.verify_audit(None).await.unwrap() else { panic!("it is whole") };
        let settings = SceneSettings::with_system("s");
        store.set_scene("mine", &settings, "", Expected::Any, &ann()).await.unwrap();
        let check = store.verify_audit_after(end).await.unwrap();
        assert!(matches!(check, AuditCheck::Whole(end) if end.seq == 7), "{check:?}");
        // Rows before the end are not checked again. The whole check finds the altered row, and so does the
        // page that shows it.
        let sql = "UPDATE audit_log SET actor = 'user:eve' WHERE seq = 3";
        db.tamper("audit_log_is_immutable", "audit_log", sql).await;
        assert!(matches!(store.verify_audit_after(end).await.unwrap(), AuditCheck::Whole(_)));
        broken(&store.verify_audit(None).await.unwrap(), 3, AuditFault::Altered);
        let rows = store.audit(&AuditQuery { limit: 9, ..AuditQuery::default() }).await.unwrap();
        assert!(page_is_whole(&rows[..4]) && !page_is_whole(&rows), "rows 7 to 4, and all");
        // Altered rows at the end and after it are found.
        let sql = "UPDATE audit_log SET actor = 'user:eve' WHERE seq = 7";
        testing::execute(&db.database, sql).await.unwrap();
        broken(&store.verify_audit_after(end).await.unwrap(), 7, AuditFault::Altered);
        let sql = "UPDATE audit_log SET actor = 'user:eve' WHERE seq = 6";
        testing::execute(&db.database, sql).await.unwrap();
        broken(&store.verify_audit_after(end).await.unwrap(), 3, AuditFault::Altered);
    });
}

#[test]
fn rows_of_writers_at_the_same_time_are_one_chain() {
    on_each(|db| async move {
        let stores = [db.open().await, db.open().await, db.open().await];
        let writers = stores.iter().enumerate().map(|(at, store)| async move {
            for round in 0..8 {
                let settings = SceneSettings::with_system(format!("{round}"));
                store.set_scene(&format!("s{at}"), &settings, "", Expected::Any, &ann()).await.unwrap();
            }
        });
        futures_util::future::join_all(writers).await;
        let check = stores[0].verify_audit(None).await.unwrap();
        assert!(matches!(check, AuditCheck::Whole(end) if end.seq == 24), "{check:?}");
    });
}
