//! Fetches the keys and values that the cloud offers for an answer.

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::StatusCode;
use reqwest::header::RANGE;
use uuid::Uuid;

use super::{CloudClient, accepted, unreachable};
use crate::relay::CloudFault;

impl CloudClient {
    /// Returns the frames of a request's keys and values from this byte on. The reader bounds what it takes.
    ///
    /// # Errors
    /// [`CloudFault`] if they are not there any more, or the cloud cannot be reached.
    pub async fn kv(
        &self,
        request_id: Uuid,
        from: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, CloudFault>> + use<>, CloudFault> {
        let mut get = self.http.get(self.url(&format!("v1/assist/{request_id}/kv"))?);
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
