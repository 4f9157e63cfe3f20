//! Tests of scene versions: drafts, publication, rolling back, conflicts, bounds.

use baton_cloud::learn::coefficients::{Coefficients, Known};
use baton_cloud::learn::cost::Measured;
use baton_cloud::scene::{SceneError, SceneSettings};
use baton_cloud::store::{Expected, StoreError, VersionState, testing};
use baton_pacing::refit::DeviceReport;
use baton_protocol::SettingsError;

use crate::world::{ann, on_each, special};

#[test]
fn a_new_database_has_the_seeded_scenes() {
    on_each(|db| async move {
        let store = db.open().await;
        let ids: Vec<String> = store.scenes().await.unwrap().into_iter().map(|scene| scene.id).collect();
        assert_eq!(ids, ["chat", "doc-qa", "doc-qa-full"]);
        let scene = store.scene("doc-qa").await.unwrap();
        assert_eq!(scene.version, 1);
        let want = SceneSettings {
            question_prefix: "\n\nQuestion: ".into(),
            ratio: Some(0.25),
            ..SceneSettings::with_system("You answer from the document.")
        };
        assert_eq!(scene.settings, want);
        let full = store.scene("doc-qa-full").await.unwrap().settings;
        assert_eq!((full.ratio, full.xi, full.refine), (Some(1.0), 1.0, false));
        let chat = store.scene("chat").await.unwrap().settings;
        assert_eq!((chat.ratio, chat.refine), (None, true));
        let history = store.scene_history("chat").await.unwrap();
        assert_eq!(history.versions[0].state, VersionState::Published);
        assert_eq!((history.publications.len(), history.head.revision), (1, 1));
    });
}

#[test]
fn every_setting_is_read_as_it_was_written() {
    on_each(|db| async move {
        let store = db.open().await;
        let settings = special();
        let set = store.set_scene("all", &settings, "why", Expected::Absent, &ann()).await.unwrap();
        assert_eq!((set.version, &set.settings), (1, &settings));
        assert_eq!(store.scene("all").await.unwrap(), set);
        let version = store.scene_version("all", 1).await.unwrap();
        assert_eq!((version.note.as_str(), version.created_by.as_str()), ("why", "user:ann"));
    });
}

#[test]
fn a_draft_is_seen_by_nobody_until_it_is_published() {
    on_each(|db| async move {
        let store = db.open().await;
        let old = store.scene("doc-qa").await.unwrap();
        let new = SceneSettings { xi: 0.2, ..old.settings.clone() };
        let head = store.save_draft("doc-qa", &new, "try", Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!((head.revision, head.published_version, head.draft_version), (2, Some(1), Some(2)));
        assert_eq!(store.scene("doc-qa").await.unwrap(), old);
        assert!(
            store.scenes().await.unwrap().iter().all(|scene| scene.version == 1),
            "not among those in force"
        );
        let newer = SceneSettings { xi: 0.15, ..new };
        store.save_draft("doc-qa", &newer, "again", Expected::Revision(2), &ann()).await.unwrap();
        let head = store.publish("doc-qa", "go", Expected::Revision(3), &ann()).await.unwrap();
        assert_eq!((head.revision, head.published_version, head.draft_version), (4, Some(3), None));
        assert_eq!(store.scene("doc-qa").await.unwrap().settings, newer);
        let history = store.scene_history("doc-qa").await.unwrap();
        let states: Vec<_> = history.versions.iter().map(|version| version.state).collect();
        assert_eq!(states, [VersionState::Superseded, VersionState::Discarded, VersionState::Published]);
        let last = history.publications.last().unwrap();
        assert_eq!((last.version, last.note.as_str(), last.published_by.as_str()), (3, "go", "user:ann"));
        let err = store.publish("doc-qa", "", Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "scene `doc-qa` has no draft");
    });
}

#[test]
fn rolling_back_copies_an_old_version() {
    on_each(|db| async move {
        let store = db.open().await;
        let old = store.scene("chat").await.unwrap();
        let new = SceneSettings { xi: 0.5, ..old.settings.clone() };
        store.set_scene("chat", &new, "", Expected::Version(1), &ann()).await.unwrap();
        let draft = SceneSettings { xi: 0.6, ..old.settings.clone() };
        store.save_draft("chat", &draft, "", Expected::Any, &ann()).await.unwrap();
        let head = store.roll_back("chat", 1, "too lossy", Expected::Any, &ann()).await.unwrap();
        assert_eq!((head.published_version, head.draft_version), (Some(4), Some(3)));
        let back = store.scene("chat").await.unwrap();
        assert_eq!((back.version, &back.settings), (4, &old.settings));
        assert_eq!(store.scene_version("chat", 4).await.unwrap().based_on, Some(1));
        // The draft is older than the version in force, so it is published as a copy: version numbers only
        // grow.
        let head = store.publish("chat", "", Expected::Any, &ann()).await.unwrap();
        assert_eq!((head.published_version, head.draft_version), (Some(5), None));
        assert_eq!(store.scene("chat").await.unwrap().settings, draft);
        let err = store.roll_back("chat", 9, "", Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "scene version `chat/9` does not exist");
    });
}

#[test]
fn a_change_based_on_an_older_state_is_refused() {
    on_each(|db| async move {
        let store = db.open().await;
        let settings = store.scene("chat").await.unwrap().settings;
        store.save_draft("chat", &settings, "", Expected::Revision(1), &ann()).await.unwrap();
        let err = store.save_draft("chat", &settings, "", Expected::Revision(1), &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "scene `chat` is at version 2, expected 1");
        assert!(matches!(err, StoreError::Conflict { expected: 1, current: 2, .. }));
        assert!(store.publish("chat", "", Expected::Revision(1), &ann()).await.is_err());
        assert!(store.discard_draft("chat", Expected::Revision(1), &ann()).await.is_err());
        assert!(store.save_draft("chat", &settings, "", Expected::Absent, &ann()).await.is_err());
        assert!(store.save_draft("new", &settings, "", Expected::Revision(1), &ann()).await.is_err());
        // A draft does not change what is in force.
        store.set_scene("chat", &settings, "", Expected::Version(1), &ann()).await.unwrap();
        let err = store.set_scene("chat", &settings, "", Expected::Version(1), &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "scene `chat` is at version 3, expected 1");
    });
}

#[test]
fn of_writers_at_the_same_time_one_wins() {
    on_each(|db| async move {
        let (one, two) = (db.open().await, db.open().await);
        let settings = one.scene("chat").await.unwrap().settings;
        for round in 1..=5_u64 {
            let by = ann();
            let (a, b) = tokio::join!(
                one.save_draft("chat", &settings, "a", Expected::Revision(round), &by),
                two.save_draft("chat", &settings, "b", Expected::Revision(round), &by),
            );
            let conflicts =
                [&a, &b].into_iter().filter(|done| matches!(done, Err(StoreError::Conflict { .. })));
            assert_eq!(conflicts.count(), 1, "{a:?} {b:?}");
        }
        assert_eq!(two.scene_state("chat").await.unwrap().head.revision, 6);
    });
}

#[test]
fn bounds_hold_before_anything_is_written() {
    on_each(|db| async move {
        let store = db.open().await;
        let generation = store.generation().await.unwrap();
        let good = store.scene("chat").await.unwrap().settings;
        let bad = SceneSettings { xi: 1.5, ..good.clone() };
        let err = store.save_draft("chat", &bad, "", Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Scene(SceneError::Settings(SettingsError::Range(_)))), "{err}");
        let bad = SceneSettings { ratio: Some(0.125), ..good.clone() };
        let err = store.set_scene("chat", &bad, "", Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "ratio 0.125 must be at least xi 0.25");
        let err = store.set_scene("../chat", &good, "", Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Scene(SceneError::Id(_))), "{err}");
        let note = "x".repeat(2000);
        let err = store.set_scene("chat", &good, &note, Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "note has 2000 bytes, the limit is 1024");
        assert_eq!(store.scene("chat").await.unwrap().version, 1);
        let err = store.scene("nothing").await.unwrap_err();
        assert_eq!(err.to_string(), "scene `nothing` does not exist");
        assert_eq!(store.generation().await.unwrap(), generation, "nothing was changed");
    });
}

#[test]
fn a_row_out_of_bounds_is_not_read() {
    on_each(|db| async move {
        let store = db.open().await;
        let set = |from: &str, to: &str| {
            let to = format!("replace(settings, '{from}', '{to}')");
            format!("UPDATE scene_versions SET settings = {to} WHERE id = 'chat'")
        };
        let sql = set("\"attention\"", "\"best\"");
        db.tamper("scene_versions_are_immutable", "scene_versions", &sql).await;
        let err = store.scene("chat").await.unwrap_err().to_string();
        assert!(err.starts_with("unknown refiner mode `best`"), "{err}");
        // 100 is the scene's tau.
        let sql = format!("{}; {}", set("\"best\"", "\"attention\""), set("100", "1000000000"));
        testing::execute(&db.database, &sql).await.unwrap();
        let err = store.snapshot().await.unwrap_err();
        assert_eq!(err.to_string(), "field `tau_ms` is 1000000000, must be 1 to 60000");
        let sql = set("\"You are a helpful assistant.\"", "7");
        testing::execute(&db.database, &sql).await.unwrap();
        let err = store.snapshot().await.unwrap_err().to_string();
        let want = "read scenes: column `settings` holds no settings: invalid type: integer `7`";
        assert!(err.starts_with(want), "{err}");
    });
}

#[test]
fn coefficients_are_kept_by_class_and_read_again() {
    on_each(|db| async move {
        let store = db.open().await;
        assert_eq!(store.coefficients().await.unwrap(), Coefficients::default());
        let report =
            |k| DeviceReport { prefill_ms_per_token: k, prefill_ms_per_token2: 1e-4, decode_ms: 30.0 };
        let known = |k| Coefficients {
            cloud: Some(Measured {
                base_ms: 0.0,
                prefill_ms_per_token: 0.11,
                decode_ms: 9.5,
                refine_ms: 0.7,
            }),
            devices: [("phone", k), ("", 2.0)]
                .map(|(name, k)| (name.to_owned(), Known { value: report(k), samples: 9 }))
                .into(),
            networks: [("wifi".to_owned(), Known { value: 12.5, samples: 4 })].into(),
            ..Coefficients::default()
        };
        store.keep_coefficients(&known(2.4)).await.unwrap();
        assert_eq!(store.coefficients().await.unwrap(), known(2.4));
        // The newest values are used; classes that are not named stay.
        let newer = Coefficients { networks: [].into(), ..known(3.5) };
        store.keep_coefficients(&newer).await.unwrap();
        assert_eq!(store.coefficients().await.unwrap(), known(3.5));
        // Values that nobody has written for an hour are deleted.
        let sql = "UPDATE coefficients SET updated_unix_s = updated_unix_s - 7200 WHERE kind = 'network'";
        testing::execute(&db.database, sql).await.unwrap();
        store.keep_coefficients(&newer).await.unwrap();
        assert_eq!(store.coefficients().await.unwrap(), newer);
        store.keep_coefficients(&known(3.5)).await.unwrap();
        // Values that the database itself refuses, and values out of bounds.
        let cloud = Measured { base_ms: -1.0, prefill_ms_per_token: 0.1, decode_ms: 9.0, refine_ms: 1.0 };
        let bad = Coefficients { cloud: Some(cloud), ..known(9.0) };
        assert_eq!(store.keep_coefficients(&bad).await.unwrap_err().to_string(), "keep coefficients");
        assert_eq!(store.coefficients().await.unwrap(), known(3.5), "a failed write changes nothing");
        store.keep_coefficients(&known(1e9)).await.unwrap();
        assert!(!store.coefficients().await.unwrap().devices.contains_key("phone"));
    });
}
