//! Requests of operators who try out a scene. They go the way of devices' requests.
//!
//! Never: takes part in an experiment, is paid by a tenant, finds a tenant's cached prefix, or enters the
//! sums of requests and of devices.

use std::time::Duration;

use baton_generate::scheduler::Share;
use baton_protocol::AssistRequest;
use sha2::{Digest as _, Sha256};

use super::{AssistStream, CloudService, ServiceError, Terms};

/// What stands in place of a tenant in the log and in the record of requests. An id of a tenant has no
/// brackets.
pub const CONSOLE: &str = "(console)";

impl Terms {
    /// Returns the terms of a request that the console makes. `request` is the request's id.
    #[must_use]
    pub fn of_console(request: &str, deadline: Duration) -> Terms {
        let digest = Sha256::digest(CONSOLE.as_bytes());
        let owner = u128::from_le_bytes(std::array::from_fn(|at| digest[at]));
        let tenant = u64::from_le_bytes(std::array::from_fn(|at| digest[at]));
        Terms {
            request: request.to_owned(),
            tenant: CONSOLE.to_owned(),
            deadline: Some(deadline),
            share: Share { tenant, weight: 1 },
            owner,
            ..Terms::default()
        }
    }
}

impl CloudService {
    /// Returns the name of the model that answers a request that tries out a scene.
    ///
    /// # Errors
    /// [`ServiceError`] if there is no such scene, or its model or adapter is not served.
    pub fn trying(&self, request: &AssistRequest) -> Result<&str, ServiceError> {
        let scene = self.inner.scenes.get(&request.scene, request.scene_version)?;
        Ok(&self.place_of_scene(&scene, &request.model)?.facts.name)
    }

    /// Accepts an assist request that tries out a scene with the scene's own settings.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn try_out(&self, request: &AssistRequest, terms: Terms) -> Result<AssistStream, ServiceError> {
        request.check()?;
        let scene = self.inner.scenes.get(&request.scene, request.scene_version)?;
        self.assist_in(&scene, None, request, terms, None)
    }
}
