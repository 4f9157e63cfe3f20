//! The store over real files: migrations, immutable versions, bounds, two programs at once.

use baton_cloud::coefficients::{Coefficients, Known};
use baton_cloud::cost::Measured;
use baton_cloud::scene::{SceneError, SceneSettings};
use baton_cloud::store::{Database, Store, StoreError};
use baton_pacing::refit::DeviceReport;
use baton_protocol::Corrector;
use baton_refine::Mode;

async fn memory() -> Store {
    Store::open(&Database::Memory).await.unwrap()
}

#[tokio::test]
async fn a_new_database_has_the_seeded_scenes() {
    let store = memory().await;
    let ids: Vec<String> = store.scenes().await.unwrap().into_iter().map(|scene| scene.id).collect();
    assert_eq!(ids, ["chat", "doc-qa", "doc-qa-full"]);
    let scene = store.scene("doc-qa").await.unwrap();
    assert_eq!(scene.version, 1);
    assert_eq!(
        scene.settings,
        SceneSettings {
            system: "You answer from the document.".into(),
            question_prefix: "\n\nQuestion: ".into(),
            ratio: Some(0.25),
            xi: 0.25,
            assist_tokens: None,
            assist_floor: 4,
            tau_ms: 100.0,
            corrector: Corrector::Cloud,
            refine: true,
            mode: Mode::Attention,
            tolerance: 0.02,
        }
    );
    let full = store.scene("doc-qa-full").await.unwrap().settings;
    assert_eq!((full.ratio, full.xi, full.refine), (Some(1.0), 1.0, false));
    let chat = store.scene("chat").await.unwrap().settings;
    assert_eq!((chat.ratio, chat.refine), (None, true));
}

#[tokio::test]
async fn a_change_is_a_new_version_and_the_old_one_stays() {
    let store = memory().await;
    let old = store.scene("doc-qa").await.unwrap();
    let settings = SceneSettings {
        ratio: Some(0.3),
        xi: 0.1,
        assist_tokens: Some(24),
        tau_ms: 80.5,
        corrector: Corrector::Device,
        mode: Mode::Bm25,
        ..old.settings.clone()
    };
    let new = store.add_scene_version("doc-qa", settings.clone(), Some(1)).await.unwrap();
    assert_eq!((new.version, &new.settings), (2, &settings));
    assert_eq!(store.scene("doc-qa").await.unwrap(), new);
    let versions: Vec<_> =
        store.scenes().await.unwrap().into_iter().filter(|scene| scene.id == "doc-qa").collect();
    assert_eq!(versions, [old.clone(), new]);
    let back = store.add_scene_version("doc-qa", old.settings.clone(), None).await.unwrap();
    assert_eq!((back.version, back.settings), (3, old.settings));
}

#[tokio::test]
async fn a_change_based_on_an_older_version_is_refused() {
    let store = memory().await;
    let settings = store.scene("chat").await.unwrap().settings;
    store.add_scene_version("chat", settings.clone(), Some(1)).await.unwrap();
    let err = store.add_scene_version("chat", settings.clone(), Some(1)).await.unwrap_err();
    assert_eq!(err.to_string(), "scene `chat` is at version 2, expected 1");
    assert!(store.add_scene_version("new", settings.clone(), Some(1)).await.is_err());
    assert_eq!(store.add_scene_version("new", settings, Some(0)).await.unwrap().version, 1);
}

#[tokio::test]
async fn bounds_hold_before_anything_is_written() {
    let store = memory().await;
    let good = store.scene("chat").await.unwrap().settings;
    let bad = SceneSettings { xi: 1.5, ..good.clone() };
    let err = store.add_scene_version("chat", bad, None).await.unwrap_err();
    assert!(matches!(err, StoreError::Scene(SceneError::Range(_))), "{err}");
    let bad = SceneSettings { ratio: Some(0.125), ..good.clone() };
    let err = store.add_scene_version("chat", bad, None).await.unwrap_err();
    assert_eq!(err.to_string(), "ratio 0.125 must be at least xi 0.25");
    let err = store.add_scene_version("../chat", good, None).await.unwrap_err();
    assert!(matches!(err, StoreError::Scene(SceneError::Id(_))), "{err}");
    assert_eq!(store.scene("chat").await.unwrap().version, 1);
    let err = store.scene("nothing").await.unwrap_err();
    assert_eq!(err.to_string(), "scene `nothing` does not exist");
}

#[tokio::test]
async fn a_file_is_migrated_once_and_shared() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::File(folder.path().join("cloud.db"));
    let first = Store::open(&database).await.unwrap();
    let settings = first.scene("chat").await.unwrap().settings;
    first.add_scene_version("chat", settings.clone(), None).await.unwrap();
    let second = Store::open(&database).await.unwrap();
    assert_eq!(second.scene("chat").await.unwrap().version, 2);
    let (one, two) = tokio::join!(
        first.add_scene_version("chat", settings.clone(), Some(2)),
        second.add_scene_version("chat", settings, Some(2)),
    );
    let conflicts =
        [&one, &two].into_iter().filter(|done| matches!(done, Err(StoreError::VersionConflict { .. })));
    assert_eq!(conflicts.count(), 1, "one writer wins: {one:?} {two:?}");
    first.close().await;
    second.close().await;
    let again = Store::open(&database).await.unwrap();
    assert_eq!(again.scene("chat").await.unwrap().version, 3);
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
}

#[tokio::test]
async fn coefficients_are_kept_by_class_and_read_again() {
    let store = memory().await;
    assert_eq!(store.coefficients().await.unwrap(), Coefficients::default());
    let report = |k| DeviceReport { prefill_ms_per_token: k, prefill_ms_per_token2: 1e-4, decode_ms: 30.0 };
    let known = |k| Coefficients {
        cloud: Some(Measured { base_ms: 0.0, prefill_ms_per_token: 0.11, decode_ms: 9.5, refine_ms: 0.7 }),
        devices: [("phone", k), ("", 2.0)]
            .map(|(name, k)| (name.to_owned(), Known { value: report(k), samples: 9 }))
            .into(),
        networks: [("wifi".to_owned(), Known { value: 12.5, samples: 4 })].into(),
    };
    store.keep_coefficients(&known(2.4)).await.unwrap();
    assert_eq!(store.coefficients().await.unwrap(), known(2.4));
    // The newest count; classes that are not named stay.
    let newer = Coefficients { networks: [].into(), ..known(3.5) };
    store.keep_coefficients(&newer).await.unwrap();
    assert_eq!(store.coefficients().await.unwrap(), known(3.5));
    // What the database itself refuses, and what is out of bounds.
    let cloud = Measured { base_ms: -1.0, prefill_ms_per_token: 0.1, decode_ms: 9.0, refine_ms: 1.0 };
    let err = store.keep_coefficients(&Coefficients { cloud: Some(cloud), ..known(9.0) }).await.unwrap_err();
    assert_eq!(err.to_string(), "keep coefficients");
    assert_eq!(store.coefficients().await.unwrap(), known(3.5), "a failed write changes nothing");
    store.keep_coefficients(&known(1e9)).await.unwrap();
    assert!(!store.coefficients().await.unwrap().devices.contains_key("phone"));
}
