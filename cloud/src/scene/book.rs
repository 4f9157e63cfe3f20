//! The scenes in memory: a copy of the last successful read, so that requests are answered while the database
//! is away.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use crate::scene::Scene;

/// Every version of every scene, as last read from the database.
#[derive(Debug, Clone, Default)]
pub struct SceneBook {
    scenes: Arc<RwLock<BTreeMap<String, Vec<Arc<Scene>>>>>,
}

/// Why a scene cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SceneLookupError {
    /// There is no scene of this name.
    #[error("scene `{0}` does not exist")]
    UnknownScene(String),
    /// The scene never had this version.
    #[error("scene `{id}` has no version {version}, the newest is {newest}")]
    UnknownVersion {
        /// The scene.
        id: String,
        /// The version asked for.
        version: u32,
        /// The newest one.
        newest: u32,
    },
}

impl SceneBook {
    /// Makes a book of these versions, in any order.
    pub fn new(scenes: impl IntoIterator<Item = Scene>) -> SceneBook {
        let book = SceneBook::default();
        book.replace(scenes);
        book
    }

    /// Replaces all scenes by a newer read of the database.
    pub fn replace(&self, scenes: impl IntoIterator<Item = Scene>) {
        let mut by_id: BTreeMap<String, Vec<Arc<Scene>>> = BTreeMap::new();
        for scene in scenes {
            by_id.entry(scene.id.clone()).or_default().push(Arc::new(scene));
        }
        for versions in by_id.values_mut() {
            versions.sort_by_key(|scene| scene.version);
        }
        *self.scenes.write().expect(POISONED) = by_id;
    }

    /// Returns the current version of every scene, by id.
    pub fn current(&self) -> Vec<Arc<Scene>> {
        self.scenes.read().expect(POISONED).values().filter_map(|versions| versions.last().cloned()).collect()
    }

    /// Returns a version of a scene, or the current one if `version` is `None`. A version never changes, so
    /// an old one stays valid.
    ///
    /// # Errors
    /// [`SceneLookupError`] if there is no such scene or version.
    pub fn get(&self, id: &str, version: Option<u32>) -> Result<Arc<Scene>, SceneLookupError> {
        let scenes = self.scenes.read().expect(POISONED);
        let newest = scenes.get(id).and_then(|versions| versions.last());
        let newest = newest.ok_or_else(|| SceneLookupError::UnknownScene(id.chars().take(64).collect()))?;
        let Some(version) = version else { return Ok(newest.clone()) };
        let found = scenes[id].iter().find(|scene| scene.version == version).cloned();
        found.ok_or_else(|| SceneLookupError::UnknownVersion {
            id: id.to_owned(),
            version,
            newest: newest.version,
        })
    }
}

const POISONED: &str = "nothing panics while the scenes are locked";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::SceneSettings;

    #[test]
    fn old_versions_stay_readable() {
        let scene = |version| Scene {
            id: "a".into(),
            version,
            settings: SceneSettings::with_system(format!("v{version}")),
        };
        let book = SceneBook::new([scene(2), scene(1)]);
        assert_eq!(book.get("a", None).unwrap().version, 2);
        assert_eq!(book.get("a", Some(1)).unwrap().settings.system, "v1");
        assert_eq!(
            book.get("a", Some(3)).unwrap_err().to_string(),
            "scene `a` has no version 3, the newest is 2"
        );
        assert_eq!(book.get("b", None).unwrap_err(), SceneLookupError::UnknownScene("b".into()));
        assert_eq!(book.current().len(), 1);
    }
}
