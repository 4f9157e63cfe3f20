//! The console under `/admin` and its API under `/admin/api/v1`.
//!
//! | module | holds |
//! |---|---|
//! | [`rules`] | which role may call which route: one table |
//! | [`guard`] | checks every request: session, role, origin, CSRF token, headers |
//! | [`login`] | logging in, for the form and the API |
//! | [`session`] | cookies, and the user of a request |
//! | [`operations`] | [`AdminService`]: all operations; the only part that uses the store |
//! | [`view`], [`problem`] | values that console and API share; their errors |
//! | [`predict`], [`chart`] | predictions of the optimizer; charts as SVG |
//! | [`overview`] | figures of the running service |
//! | [`playground`] | one question as the cloud and a device would take it |
//! | [`api`] | the REST API and its OpenAPI document |
//! | [`console`] | pages, rendered on the server; they work without a script |
//! | [`assets`] | style sheet, script, icon |
//!
//! Never: offers anything before there is an administrator, except how to make the first one; sends requests
//! to another host. Always: every change names the revision that it is based on, and is written to the audit
//! log.

mod api;
mod assets;
mod console;
mod guard;
mod login;
mod overview;
mod playground;

pub mod chart;
pub mod operations;
pub mod predict;
pub mod problem;
pub mod rules;
pub mod session;
pub mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;

pub use self::api::openapi;

pub(crate) use self::guard::secure;

use self::operations::AdminService;
use self::overview::LoadHistory;
use self::predict::{PredictFor, Prediction};
use self::problem::{Kind, Problem};
use self::view::SceneView;
use crate::http::proxies::Proxies;
use crate::http::request_id::with_request_id;
use crate::learn::coefficients::Coefficients;
use crate::scene::SceneSettings;
use crate::service::CloudService;

/// The state of every handler.
#[derive(Debug, Clone)]
pub struct Admin {
    service: CloudService,
    operations: AdminService,
    load_history: Arc<LoadHistory>,
    /// Browsers send the cookies over TLS only.
    secure: bool,
    /// The proxies that are trusted to name the client's address.
    proxies: Proxies,
}

impl Admin {
    /// Makes the console of this service. `secure` says that it is reached over TLS.
    #[must_use]
    pub fn new(service: CloudService, operations: AdminService, secure: bool) -> Admin {
        Admin { service, operations, load_history: Arc::default(), secure, proxies: Proxies::default() }
    }

    /// Sets the proxies in front of it.
    #[must_use]
    pub fn behind(self, proxies: Proxies) -> Admin {
        Admin { proxies, ..self }
    }

    /// Samples the service's load for the charts of the overview. Never returns.
    pub async fn watch(self) {
        loop {
            self.load_history.record(&self.service);
            tokio::time::sleep(overview::PERIOD).await;
        }
    }

    /// Returns all routes.
    pub fn router(&self) -> Router {
        let (api, _) = api::routes().split_for_parts();
        api.merge(console::routes())
            .route_layer(middleware::from_fn_with_state(self.clone(), guard::guard))
            .layer(middleware::from_fn(secured))
            .layer(middleware::from_fn(with_request_id))
            .with_state(self.clone())
    }

    /// Adds to a scene why this replica would refuse its requests.
    fn warned(&self, scene: SceneView) -> SceneView {
        let versions = [("in force", &scene.published), ("the draft", &scene.draft)];
        let warning = |(which, settings): (&str, &Option<SceneSettings>)| {
            let refused = self.service.unserved(&scene.id, settings.as_ref()?)?;
            Some(format!("{which}: {refused}"))
        };
        let warnings = versions.into_iter().filter_map(warning).collect();
        SceneView { warnings, ..scene }
    }

    /// Returns the coefficients that are measured, and those that people have set.
    async fn known(&self) -> Result<Coefficients, Problem> {
        self.operations.known(self.service.coefficients()).await
    }

    /// Predicts what the optimizer would choose for these settings.
    async fn predict(
        &self,
        id: &str,
        settings: &SceneSettings,
        asked: &PredictFor,
    ) -> Result<Prediction, Problem> {
        let (known, quality) = (self.known().await?, self.operations.quality());
        let (id, settings, asked) = (id.to_owned(), settings.clone(), asked.clone());
        // Some milliseconds of arithmetic, so it does not run on a thread of the runtime.
        let predicted = tokio::task::spawn_blocking(move || {
            predict::predict(&id, &settings, &known, &asked, quality.as_deref())
        });
        predicted.await.map_err(|_| Problem::new(Kind::Internal, "the prediction failed"))?
    }
}

/// Sets the security headers also on replies of the router itself.
async fn secured(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    guard::secure(response.headers_mut());
    response
}
