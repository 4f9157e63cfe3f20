//! Tests seeded sequences of changes against a plain list of the expected state.

use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{AuditCheck, Expected, StoreError};
use baton_random::SplitMix64;

use crate::world::{ann, on_each};

fn settings(rng: &mut SplitMix64) -> SceneSettings {
    let xi = 0.01 + rng.remainder(90) as f32 / 100.0;
    SceneSettings {
        xi,
        ratio: (rng.remainder(2) == 0).then_some((xi + 0.05).min(1.0)),
        assist_tokens: (rng.remainder(2) == 0).then_some(4 + rng.remainder(500) as u32),
        tau_ms: 1.0 + rng.remainder(1000) as f32 / 8.0,
        question_prefix: "?".repeat(rng.remainder(4)),
        ..SceneSettings::with_system(format!("system {}", rng.remainder(3)))
    }
}

/// A scene as a list of versions.
#[derive(Default)]
struct Model {
    versions: Vec<SceneSettings>,
    published: Option<u32>,
    draft: Option<u32>,
    revision: u64,
    changes: u64,
}

#[test]
fn any_sequence_of_changes_keeps_every_version() {
    on_each(|db| async move {
        let store = db.open().await;
        for seed in 0..6 {
            let mut rng = SplitMix64::new(seed);
            let (id, by) = (format!("scene{seed}"), ann());
            let mut model = Model::default();
            for _ in 0..30 {
                let new = settings(&mut rng);
                // In one of four cases the editor has an old revision.
                let behind = rng.remainder(4) == 0;
                let expected = match model.revision {
                    0 => Expected::Absent,
                    revision if behind => Expected::Revision(revision - 1),
                    revision => Expected::Revision(revision),
                };
                let refused = behind && model.revision > 0;
                let done = match rng.remainder(5) {
                    0 | 1 => store.save_draft(&id, &new, "", expected, &by).await.map(|_| {
                        model.versions.push(new);
                        model.draft = Some(model.versions.len() as u32);
                    }),
                    2 => store.publish(&id, "", expected, &by).await.map(|head| {
                        let draft = model.draft.take().expect("only a draft is published");
                        if model.published.is_some_and(|published| published > draft) {
                            model.versions.push(model.versions[draft as usize - 1].clone());
                            model.published = Some(model.versions.len() as u32);
                        } else {
                            model.published = Some(draft);
                        }
                        assert_eq!(head.published_version, model.published, "seed {seed}");
                    }),
                    3 if !model.versions.is_empty() => {
                        let to = 1 + rng.remainder(model.versions.len()) as u32;
                        store.roll_back(&id, to, "", expected, &by).await.map(|_| {
                            model.versions.push(model.versions[to as usize - 1].clone());
                            model.published = Some(model.versions.len() as u32);
                        })
                    }
                    _ => store.discard_draft(&id, expected, &by).await.map(|_| model.draft = None),
                };
                match done {
                    Ok(()) => {
                        assert!(!refused, "seed {seed}: a change based on an older state");
                        (model.revision, model.changes) = (model.revision + 1, model.changes + 1);
                    }
                    Err(StoreError::Conflict { .. }) => assert!(refused, "seed {seed}"),
                    Err(StoreError::State { .. }) => assert_eq!(model.draft, None, "seed {seed}"),
                    Err(StoreError::Unknown { .. }) => assert!(model.versions.is_empty(), "seed {seed}"),
                    Err(err) => panic!("seed {seed}: {err}"),
                }
            }
            let Ok(history) = store.scene_history(&id).await else { continue };
            let kept: Vec<SceneSettings> =
                history.versions.iter().map(|version| version.scene.settings.clone()).collect();
            assert_eq!(kept, model.versions, "seed {seed}");
            let head = history.head;
            assert_eq!(
                (head.published_version, head.draft_version, head.revision),
                (model.published, model.draft, model.revision)
            );
            for (at, older) in kept.iter().enumerate() {
                for newer in &kept[at..] {
                    let changes = older.diff(newer);
                    assert_eq!(changes.is_empty(), older == newer, "seed {seed}");
                    let back = newer.diff(older);
                    assert!(changes.iter().zip(&back).all(|(a, b)| a.from == b.to && a.to == b.from));
                }
            }
        }
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditCheck::Whole(_)));
    });
}
