//! Fetches the keys and values that the cloud offers for an answer.

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::StatusCode;
use reqwest::header::{HeaderValue, RANGE};
use uuid::Uuid;

use super::{CloudClient, OutgoingRequest, SCENE_HEADER, accepted, unreachable};
use crate::relay::CloudFault;

/// The keys and values that the cloud keeps for one request.
#[derive(Debug, Clone)]
pub struct KvSource {
    client: CloudClient,
    request_id: Uuid,
    scene: HeaderValue,
}

impl CloudClient {
    /// Returns where the keys and values of a request are.
    pub fn kv_source(&self, request: &OutgoingRequest) -> KvSource {
        KvSource { client: self.clone(), request_id: request.request_id(), scene: request.scene().clone() }
    }
}

impl KvSource {
    /// Returns the id of the request.
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// Returns the frames from this byte on. The reader bounds what it takes.
    ///
    /// # Errors
    /// [`CloudFault`] if they are not there any more, or the cloud cannot be reached.
    pub async fn frames(
        &self,
        from: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, CloudFault>> + use<>, CloudFault> {
        let url = self.client.url(&format!("v1/assist/{}/kv", self.request_id))?;
        let mut get = self.client.http.get(url).header(SCENE_HEADER, &self.scene);
        if from > 0 {
            get = get.header(RANGE, format!("bytes={from}-"));
        }
        let response = accepted(get.send().await.map_err(unreachable)?, "application/octet-stream").await?;
        if from > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(CloudFault::Malformed { reason: "a range was asked for, all came".to_owned() });
        }
        Ok(response.bytes_stream().map(|piece| piece.map_err(unreachable)))
    }
}
