//! Tests of migrations and statements.

use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{Database, Expected, Store, testing};
use baton_protocol::VerifyPolicy;

use crate::world::{ann, on_each, special};

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
        // Opened again, because SQLite does not check the schema again before it runs a statement.
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

/// The columns of a version's settings up to migration 12.
const COLUMNS: &str = "id, version, system, question_prefix, ratio, xi, assist_tokens, assist_floor, \
                       assist_max, tau_ms, tolerance, refine, refine_mode, corrector, model, adapter";

/// Returns SQL that writes the same settings as an older program did, which knew the columns.
fn special_row(id: &str, version: u32) -> String {
    let texts = "'Ünïcödé 系统 \"quoted\" \\ it''s \n', '\t?'";
    let rest = "0.3, 0.1, 24, 2, 300, 80.5, 0.015, 1, 'bm25', 'device', 'llama-3.2', 'law@2'";
    format!("INSERT INTO scene_versions ({COLUMNS}) VALUES ('{id}', {version}, {texts}, {rest})")
}

/// Returns settings that the columns of before can hold.
fn in_columns() -> SceneSettings {
    SceneSettings { least_value: None, verify: VerifyPolicy::Off, kv: None, ..special() }
}

#[test]
fn settings_in_columns_are_the_same_as_json() {
    on_each(|db| async move {
        testing::migrate_to(&db.database, 12).await.unwrap();
        // The second scene is older than `assist_max`, and ranks by a mode that is gone.
        let old = "'s', '', NULL, 0.07, NULL, 5000, NULL, 100.0, 0.02, 0, 'gemfilter', 'cloud', NULL, NULL";
        let draft = "'s', '', 1.0, 0.07, 7, 5, NULL, 33.333332, 0.0, 0, 'none', 'cloud', NULL, NULL";
        let sql = [
            special_row("special", 1),
            format!("INSERT INTO scene_versions ({COLUMNS}) VALUES ('old', 1, {old}), ('old', 2, {draft})"),
            "INSERT INTO scenes VALUES ('special', 1, 1, 1, NULL), ('old', 2, 2, 1, 2)".to_owned(),
            "INSERT INTO scene_publications VALUES ('special', 1, 1, 5, '', ''), ('old', 1, 1, 6, '', '')"
                .to_owned(),
        ];
        testing::execute(&db.database, &sql.join("; ")).await.unwrap();
        if !db.is_postgres() {
            let nul = "INSERT INTO scene_versions (id, version, system, question_prefix, xi, assist_floor, \
                       tau_ms, corrector, refine) VALUES ('nul', 1, 'a' || char(0) || 'b', '', 0.5, 4, 9.0, \
                       'cloud', 1); INSERT INTO scenes VALUES ('nul', 1, 1, NULL, 1)";
            testing::execute(&db.database, nul).await.unwrap();
        }

        let store = db.open().await;
        let settings =
            async |id: &str, version: u32| store.scene_version(id, version).await.unwrap().scene.settings;
        assert_eq!(settings("special", 1).await, in_columns());
        let old = SceneSettings {
            xi: 0.07,
            assist_floor: 5000,
            assist_max: 5000,
            refine: false,
            ..SceneSettings::with_system("s")
        };
        assert_eq!(settings("old", 1).await, old);
        let draft = SceneSettings {
            ratio: Some(1.0),
            xi: 0.07,
            assist_tokens: Some(7),
            assist_floor: 5,
            tau_ms: 33.333_332,
            tolerance: 0.0,
            refine: false,
            mode: "none".into(),
            ..SceneSettings::with_system("s")
        };
        assert_eq!(settings("old", 2).await, draft);
        if !db.is_postgres() {
            let nul = settings("nul", 1).await;
            assert_eq!((nul.system.as_str(), nul.xi), ("a\u{fffd}b", 0.5));
        }
        let seeded = settings("doc-qa", 1).await;
        assert_eq!((seeded.ratio, seeded.question_prefix.as_str()), (Some(0.25), "\n\nQuestion: "));
        assert_eq!(store.scenes().await.unwrap().len(), 5, "three were seeded");
        let published = store.publish("old", "", Expected::Revision(2), &ann()).await.unwrap();
        assert_eq!(published.published_version, Some(2));
        assert_eq!(store.scene("old").await.unwrap().settings, draft);
    });
}

/// PostgreSQL serves replicas of two versions while they are replaced. SQLite serves one program.
#[test]
fn replicas_that_know_the_columns_go_on() {
    on_each(|db| async move {
        if !db.is_postgres() {
            return;
        }
        let store = db.open().await;
        store.set_scene("new", &in_columns(), "", Expected::Absent, &ann()).await.unwrap();
        let holds = async |version: u32, what: &str| {
            let found = format!("SELECT 1 FROM scene_versions WHERE version = {version} AND {what}");
            let check = format!("IF NOT EXISTS ({found}) THEN RAISE EXCEPTION 'it is not so'; END IF;");
            testing::execute(&db.database, &format!("DO $$ BEGIN {check} END $$")).await.unwrap();
        };
        holds(1, "id = 'new' AND system LIKE '%quoted%' AND question_prefix = E'\\t?'").await;
        holds(1, "ratio = 0.3 AND xi = 0.1 AND assist_tokens = 24 AND assist_floor = 2").await;
        holds(1, "assist_max = 300 AND tau_ms = 80.5 AND tolerance = 0.015 AND refine = 1").await;
        holds(1, "refine_mode = 'bm25' AND corrector = 'device' AND model = 'llama-3.2'").await;
        let write = [
            special_row("new", 2),
            "INSERT INTO scene_publications VALUES ('new', 2, 2, 5, '', '')".to_owned(),
            "UPDATE scenes SET newest_version = 2, published_version = 2 WHERE id = 'new'".to_owned(),
        ];
        testing::execute(&db.database, &write.join("; ")).await.unwrap();
        assert_eq!(store.scene("new").await.unwrap().settings, in_columns());
        let automatic = SceneSettings { ratio: None, adapter: None, ..in_columns() };
        store.set_scene("new", &automatic, "", Expected::Version(2), &ann()).await.unwrap();
        holds(3, "ratio IS NULL AND adapter IS NULL AND model = 'llama-3.2'").await;
    });
}

#[test]
fn the_database_itself_refuses_to_change_what_is_kept() {
    on_each(|db| async move {
        let store = db.open().await;
        for (sql, want) in [
            ("UPDATE scene_versions SET settings = '{}' WHERE id = 'chat'", "a scene version never changes"),
            ("DELETE FROM scene_versions", "a scene version is never deleted"),
            ("DELETE FROM scene_publications", "a publication is never deleted"),
            ("UPDATE scene_publications SET note = 'x'", "a publication never changes"),
            ("INSERT INTO scene_versions (id, version, settings) VALUES ('x', 1, 'xi = 2')", "json"),
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
