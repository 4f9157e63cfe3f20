//! The record of this replica's requests: what is listed in it, and what operators ask of it.

use super::CloudService;
use crate::observe::requests::{
    KnownRequests, NewRequest, RequestEntry, RequestKey, RequestQuery, RequestsFound,
};
use crate::service::reader::Prepared;
use crate::store::now_ms;

impl CloudService {
    /// Lists a request that is about to wait, unless this program made it for itself.
    pub(super) fn list(&self, prepared: &mut Prepared) {
        let reader = &mut prepared.reader;
        if reader.observer.is_of_nobody() {
            return;
        }
        let begun = NewRequest {
            id: reader.observer.request.clone(),
            key: reader.observer.key,
            tenant: reader.observer.tenant.clone(),
            scene: reader.observer.scene.clone(),
            arm: reader.observer.arm.clone(),
            model: reader.observer.model.clone(),
            prompt_tokens: reader.prompt_tokens,
            max_tokens: reader.max_tokens,
            arrived_at: reader.arrived_at,
            arrived_ms: now_ms(),
        };
        reader.observer.live = Some(self.inner.requests.begin(begun, reader.sink.cancel().clone()));
    }

    /// Returns requests of this replica that run or have ended.
    #[must_use]
    pub fn requests(&self, query: &RequestQuery) -> RequestsFound {
        self.inner.requests.find(query, self.inner.clock.now())
    }

    /// Returns the newest request of this id.
    #[must_use]
    pub fn request(&self, id: &str) -> Option<RequestEntry> {
        self.inner.requests.get(id, self.inner.clock.now())
    }

    /// Returns what is known of requests of this id.
    #[must_use]
    pub fn request_known(&self, id: &str) -> KnownRequests {
        self.inner.requests.known(id)
    }

    /// Cancels the running requests of this id; returns their number.
    pub fn cancel_requests(&self, id: &str) -> usize {
        let cancelled = self.inner.requests.cancel(id);
        if cancelled > 0 {
            // A host may be asleep. The record holds no host, so that it keeps no model in memory.
            self.wake_hosts();
        }
        cancelled
    }

    /// Ends an assist request that its client wants no more. What runs of it is cancelled, its drafts are
    /// checked no more, and its keys and values are given up. `owner` is the caller's, as in [`Terms`].
    ///
    /// [`Terms`]: super::Terms
    pub fn end_assist(&self, owner: u128, key: RequestKey) {
        if self.inner.requests.end(key) > 0 {
            self.wake_hosts();
        }
        self.inner.open.forget((owner, key.1));
        self.inner.handoffs.forget(&key);
    }
}
