//! Migrations and statements.

use baton_cloud::store::{Database, Store, testing};

use crate::world::on_each;

#[test]
fn every_statement_fits_the_schema() {
    on_each(|db| async move {
        let count = db.open().await.check_statements().await.unwrap();
        assert!(count > 50, "{count} statements");
    });
}

#[test]
fn a_statement_that_does_not_fit_is_found() {
    on_each(|db| async move {
        db.open().await.close().await;
        let rename = "ALTER TABLE device_classes RENAME COLUMN label TO name";
        testing::execute(&db.database, rename).await.unwrap();
        // Opened anew: SQLite does not look at the schema again before it runs a statement.
        let err = db.open().await.check_statements().await.unwrap_err();
        assert_eq!(err.to_string(), "read device classes");
    });
}

#[test]
fn programs_that_start_together_migrate_once() {
    on_each(|db| async move {
        let (a, b, c, d) = tokio::join!(db.open(), db.open(), db.open(), db.open());
        for store in [a, b, c, d] {
            assert_eq!(store.scenes().await.unwrap().len(), 3, "seeded once");
            store.close().await;
        }
    });
}

#[test]
fn the_database_itself_refuses_to_change_what_is_kept() {
    on_each(|db| async move {
        let store = db.open().await;
        for (sql, want) in [
            ("UPDATE scene_versions SET xi = 0.5 WHERE id = 'chat'", "a scene version never changes"),
            ("DELETE FROM scene_versions", "a scene version is never deleted"),
            ("DELETE FROM scene_publications", "a publication is never deleted"),
            ("UPDATE scene_publications SET note = 'x'", "a publication never changes"),
            (
                "INSERT INTO scene_versions (id, version, system, question_prefix, xi, assist_floor, tau_ms, \
                 corrector, refine) VALUES ('x', 1, '', '', 2.0, 1, 100.0, 'cloud', 1)",
                "heck constraint",
            ),
            ("INSERT INTO service_state VALUES (2, 1, 0, NULL)", "constraint"),
        ] {
            let err = testing::execute(&db.database, sql).await.unwrap_err();
            let err = format!("{err}: {:?}", std::error::Error::source(&err)).replace("CHECK", "check");
            assert!(err.contains(want), "{sql}: {err}");
        }
        if db.is_postgres() {
            let err = testing::execute(&db.database, "TRUNCATE audit_log").await.unwrap_err();
            assert!(format!("{:?}", std::error::Error::source(&err)).contains("never deleted"), "{err:?}");
        }
        assert_eq!(store.scenes().await.unwrap().len(), 3);
    });
}

#[tokio::test]
async fn what_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.db");
    std::fs::write(&path, "this is not a database, and it is long enough to be looked at as one".repeat(20))
        .unwrap();
    let err = Store::open(&Database::File(path)).await.unwrap_err();
    assert!(err.to_string().starts_with("open database"), "{err}");
    let err = Store::open(&Database::File(folder.path().join("no/such/folder.db"))).await.unwrap_err();
    assert!(err.to_string().starts_with("open database"), "{err}");
    let nobody = format!("postgres://u:secret@localhost/db?host={}", folder.path().display());
    let err = Store::open(&nobody.parse().unwrap()).await.unwrap_err();
    assert!(err.to_string().starts_with("open database `postgres://u@localhost/db"), "{err}");
    assert!(err.is_unavailable(), "{err:?}");
}
