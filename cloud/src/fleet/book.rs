//! The targets in memory: a copy of the last successful read, so that devices are told and requests are
//! checked while the database is away.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use baton_protocol::ModelPair;
use baton_registry::rollout::Target;
use baton_registry::sync::ANY_SCENE;

use super::ModelTarget;

/// Targets by scene and class.
type Targets = BTreeMap<(String, String), Arc<Target>>;

/// Every target, as last read from the database.
#[derive(Debug, Clone, Default)]
pub struct TargetBook {
    targets: Arc<RwLock<Targets>>,
}

/// A pair that the registry does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "devices of class `{class}` may not ask scene `{scene}` with {pair}: get {wanted} by `baton model sync`, which \
     happens by itself while `baton serve` runs"
)]
pub struct PairError {
    /// The scene.
    pub scene: String,
    /// The class.
    pub class: String,
    /// The device's pair.
    pub pair: Box<ModelPair>,
    /// The stable pair.
    pub wanted: Box<ModelPair>,
}

impl TargetBook {
    /// Replaces all targets by a newer read of the database.
    pub fn replace(&self, targets: Vec<ModelTarget>) {
        let by_name = targets.into_iter().map(|row| ((row.scene, row.class), Arc::new(row.target)));
        *self.targets.write().unwrap_or_else(PoisonError::into_inner) = by_name.collect();
    }

    /// Returns the target of a scene and a class: its own, else that of all scenes.
    #[must_use]
    pub fn find(&self, scene: &str, class: &str) -> Option<Arc<Target>> {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let of = |scene: &str| targets.get(&(scene.to_owned(), class.to_owned())).cloned();
        of(scene).or_else(|| of(ANY_SCENE))
    }

    /// Returns the scene whose target counts for this scene and class: itself, or [`ANY_SCENE`].
    #[must_use]
    pub fn scene_of<'a>(&self, scene: &'a str, class: &str) -> &'a str {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        if targets.contains_key(&(scene.to_owned(), class.to_owned())) { scene } else { ANY_SCENE }
    }

    /// Checks that devices of a class may ask a scene with a pair. What has no target is not checked.
    ///
    /// # Errors
    /// [`PairError`] if they may not.
    pub fn check(&self, scene: &str, class: &str, pair: &ModelPair, now_s: u64) -> Result<(), PairError> {
        let Some(target) = self.find(scene, class) else { return Ok(()) };
        // A device with one pair for all scenes also asks scenes with a target of their own.
        let for_all = || self.find(ANY_SCENE, class).is_some_and(|target| target.allows(pair, now_s));
        if target.allows(pair, now_s) || for_all() {
            return Ok(());
        }
        let (scene, class) = (scene.to_owned(), class.to_owned());
        let (pair, wanted) = (Box::new(pair.clone()), Box::new(target.stable.clone()));
        Err(PairError { scene, class, pair, wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scene: &str, class: &str, pair: &str) -> ModelTarget {
        ModelTarget {
            id: format!("{scene}/{class}"),
            revision: 1,
            scene: scene.into(),
            class: class.into(),
            target: Target::new(pair.parse().unwrap(), 0),
            updated_ms: 0,
            updated_by: String::new(),
        }
    }

    #[test]
    fn a_scene_without_a_target_has_that_of_all_scenes() {
        let book = TargetBook::default();
        book.replace(vec![row("*", "phone", "m@1"), row("law", "phone", "m@1+law@2")]);
        let check = |scene: &str, class: &str, pair: &str, want: bool| {
            let checked = book.check(scene, class, &pair.parse().unwrap(), 1000);
            assert_eq!(checked.is_ok(), want, "{scene} {class} {pair}");
        };
        check("chat", "phone", "m@1", true);
        check("chat", "phone", "m@2", false);
        check("law", "phone", "m@1+law@2", true);
        check("law", "phone", "m@1+law@1", false);
        check("law", "phone", "m@1", true);
        check("law", "laptop", "anything@9", true);
        assert_eq!((book.scene_of("law", "phone"), book.scene_of("chat", "phone")), ("law", "*"));
        let told = book.check("chat", "phone", &"m@2".parse().unwrap(), 0).unwrap_err().to_string();
        assert!(told.contains("m@2") && told.contains("get m@1"), "{told}");
        book.replace(Vec::new());
        check("chat", "phone", "m@2", true);
    }
}
