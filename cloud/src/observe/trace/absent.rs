//! Stands in for the exporter in a build without the feature `otlp`.

use tokio::task::JoinHandle;

use super::RequestTrace;

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("this program was built without the feature `otlp`, so it cannot send traces to `{endpoint}`")]
pub struct TracesError {
    endpoint: String,
}

/// Sends spans to a collector. Nothing can be one in this build.
#[derive(Debug, Clone)]
pub enum Traces {}

impl Traces {
    /// Starts to send spans if there is an endpoint.
    ///
    /// # Errors
    /// [`TracesError`] if there is one.
    pub fn start_where(
        endpoint: Option<&str>,
    ) -> Result<(Option<Traces>, Option<JoinHandle<()>>), TracesError> {
        match endpoint {
            Some(endpoint) => Err(TracesError { endpoint: endpoint.to_owned() }),
            None => Ok((None, None)),
        }
    }

    /// Records a request.
    pub fn record(&self, _request: &RequestTrace) {
        match *self {}
    }
}
