//! Orders about models and requests of one replica, which only the audit log keeps.

use serde_json::json;

use super::{Store, StoreError};
use crate::access::Actor;

impl Store {
    /// Adds an order about a model to the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn log_model(
        &self,
        actor: &Actor,
        action: &'static str,
        model: &str,
    ) -> Result<(), StoreError> {
        let mut change = self.note(actor).await?;
        change.log(action, &format!("model/{model}"), &json!({})).await?;
        change.commit().await
    }

    /// Adds an order about a request to the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn log_request(
        &self,
        actor: &Actor,
        action: &'static str,
        request: &str,
    ) -> Result<(), StoreError> {
        let mut change = self.note(actor).await?;
        change.log(action, &format!("request/{request}"), &json!({})).await?;
        change.commit().await
    }
}
