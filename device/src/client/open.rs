//! A request that the cloud may still work on, or keep something for, and the message that ends it.
//!
//! Always: when nobody wants the request any more, the cloud is told once, whatever the reason. Nothing waits
//! for that but a program that ends ([`CloudClient::flush`]).

use super::{CloudClient, OutgoingRequest, SCENE_HEADER};
use crate::relay::{CloudFault, KvNews, RelayEvent};
use baton_protocol::AssistEvent;
use reqwest::header::HeaderValue;
use std::time::Duration;
use tokio::sync::OwnedRwLockReadGuard;
use uuid::Uuid;

/// Longest time to tell the cloud that a request is not wanted any more.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What there is of a request in the cloud, as far as the device has heard. Pure.
#[derive(Debug, Clone, Copy)]
pub struct Remains {
    /// The cloud has not said that its part is over.
    is_running: bool,
    /// It keeps the answer, to check drafts of it.
    keeps_answer: bool,
    /// It keeps keys and values to be fetched.
    keeps_kv: bool,
}

impl Remains {
    /// Returns what there is of a request that was sent.
    pub fn of_sent() -> Self {
        Self { is_running: true, keeps_answer: false, keeps_kv: false }
    }

    /// Returns whether there is anything.
    pub fn any(self) -> bool {
        self.is_running || self.keeps_answer || self.keeps_kv
    }

    /// Learns from an event of the answer.
    pub fn hear(&mut self, event: &RelayEvent) {
        match event {
            RelayEvent::Cloud(AssistEvent::First(first)) => {
                self.keeps_answer = first.verify.is_some();
                self.keeps_kv = first.kv.is_some();
            }
            RelayEvent::Cloud(AssistEvent::End(_) | AssistEvent::Error(_)) => self.is_running = false,
            RelayEvent::CloudLost(fault) => self.is_running &= !is_refusal(fault),
            RelayEvent::Kv(KvNews::Whole(_)) => self.keeps_kv = false,
            _ => {}
        }
    }
}

/// A request that was sent. Dropping it tells the cloud to end it, if anything of it remains there.
#[derive(Debug)]
pub struct OpenRequest {
    client: CloudClient,
    request_id: Uuid,
    scene: HeaderValue,
    remains: Remains,
    /// A program that ends waits for this one.
    pending: Option<OwnedRwLockReadGuard<()>>,
}

impl OpenRequest {
    /// Notes that the request is being sent.
    pub fn new(client: &CloudClient, request: &OutgoingRequest) -> Self {
        Self {
            client: client.clone(),
            request_id: request.request_id(),
            scene: request.scene().clone(),
            remains: Remains::of_sent(),
            pending: client.pending(),
        }
    }

    /// Learns from an event of its answer what remains of it in the cloud.
    pub fn hear(&mut self, event: &RelayEvent) {
        self.remains.hear(event);
    }
}

/// Returns whether the cloud, or somebody in its place, has replied that it does not take the request.
fn is_refusal(fault: &CloudFault) -> bool {
    matches!(
        fault,
        CloudFault::SignIn { .. }
            | CloudFault::Overloaded { .. }
            | CloudFault::Refused { .. }
            | CloudFault::NotAnEventStream { .. }
    )
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if !self.remains.any() {
            return;
        }
        // Without a runtime the program has ended, and the cloud sees its connection close.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, request_id, scene) = (self.client.clone(), self.request_id, self.scene.clone());
        let pending = self.pending.take();
        runtime.spawn(async move {
            if let Err(fault) = client.end(request_id, &scene).await {
                // The cloud ends what has no reader by itself.
                tracing::debug!(%request_id, %fault, "the cloud was not told that a request is over");
            }
            drop(pending);
        });
    }
}

impl CloudClient {
    /// Tells the cloud that a request is not wanted any more, however far it has come.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud cannot be reached or refuses.
    async fn end(&self, request_id: Uuid, scene: &HeaderValue) -> Result<(), CloudFault> {
        let url = self.url(&format!("v1/assist/{request_id}"))?;
        let delete = self.http.delete(url).timeout(END_TIMEOUT).header(SCENE_HEADER, scene);
        let response = delete.send().await.map_err(super::unreachable)?;
        if response.status().is_success() {
            return Ok(());
        }
        super::accepted(response, "application/json").await.map(drop)
    }
}
