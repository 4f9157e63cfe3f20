//! What the disk holds of a prompt, without asking the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, BLOCK_TOKENS};

use super::{Name, Store, names};

/// The kept prefixes of an engine, as seen from outside its thread. An engine says where they are when it is
/// made; until then there are none.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Option<Place>>);

#[derive(Debug)]
struct Place {
    store: Arc<Store>,
    /// Names before the first blocks, by adapter. Missing if the engine's blocks cannot be kept.
    roots: HashMap<Option<AdapterId>, Name>,
}

impl Kept {
    fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the prefixes are, and the names before their first blocks.
    pub(super) fn say(&self, store: &Arc<Store>, roots: HashMap<Option<AdapterId>, Name>) {
        *self.place() = Some(Place { store: Arc::clone(store), roots });
    }

    /// Returns how many leading tokens of a prompt the disk holds, in whole blocks. They may be gone when
    /// they are read.
    pub fn tokens(&self, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        let place = self.place();
        let Some((place, root)) = place.as_ref().and_then(|place| Some((place, *place.roots.get(&adapter)?)))
        else {
            return 0;
        };
        names(root, ids, 0).take_while(|name| place.store.has(name)).count() * BLOCK_TOKENS
    }
}
