//! Records which processes have channels open here, to notice two devices with copies of one key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::home::identity::{InstanceId, PublicKey};

type Open = HashMap<PublicKey, (InstanceId, usize)>;

/// The processes of peers that have channels open; clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Instances(Arc<Mutex<Open>>);

impl Instances {
    /// Returns whether another process with this key has a channel open.
    pub(super) fn taken(&self, key: &PublicKey, instance: InstanceId) -> bool {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(key).is_some_and(|(found, _)| *found != instance)
    }

    /// Records a channel. Returns `None` if another process with the same key has one open.
    pub(super) fn enter(&self, key: PublicKey, instance: InstanceId) -> Option<Presence> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, channels) = open.entry(key).or_insert((instance, 0));
        if *found != instance {
            return None;
        }
        *channels += 1;
        drop(open);
        Some(Presence { instances: self.clone(), key })
    }
}

/// One open channel. Dropping it removes the channel from the list.
#[derive(Debug)]
pub(super) struct Presence {
    instances: Instances,
    key: PublicKey,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut open = self.instances.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, channels)) = open.get_mut(&self.key) {
            *channels -= 1;
            if *channels == 0 {
                open.remove(&self.key);
            }
        }
    }
}
