//! The store over real files: migrations, immutable versions, bounds, two programs at once.

use baton_cloud::scene::{SceneError, SceneSettings};
use baton_cloud::store::{Database, Store, StoreError};
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
