//! The console under `/admin` and its API under `/admin/api/v1`: what people look at and set.
//!
//! | module | holds |
//! |---|---|
//! | [`rules`] | who may call what: one table |
//! | [`guard`] | the one door: session, role, origin, CSRF token, headers |
//! | [`door`] | logging in, for the form and the API |
//! | [`session`] | the cookies, and who is behind them |
//! | [`office`] | operations over the store: the only part that knows it |
//! | [`view`], [`problem`] | what is shown and spoken, and why something was not done |
//! | [`predict`], [`chart`] | what the optimizer would answer, as numbers and as SVG |
//! | [`overview`] | figures of the running service |
//! | [`api`] | REST, described by OpenAPI |
//! | [`console`] | pages, rendered here; they work without a script |
//! | [`assets`] | style sheet, script, icon |
//!
//! Never: answers anything but how to make the first administrator, before there is one; asks anything of another
//! host. Always: every change names the revision that it is based on, and stands in the audit log.

mod api;
mod assets;
mod console;
mod door;
mod guard;
mod overview;

pub mod chart;
pub mod office;
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
use jiff::Timestamp;

pub use self::api::openapi;

pub(crate) use self::guard::secure;

use self::office::Office;
use self::overview::Pulse;
use self::predict::{PredictFor, Prediction};
use self::problem::{Kind, Problem};
use self::view::{SceneView, Settings};
use crate::coefficients::Coefficients;
use crate::http::proxies::Proxies;
use crate::http::request_id::with_request_id;
use crate::scene::SceneSettings;
use crate::service::CloudService;

/// What every handler sees.
#[derive(Debug, Clone)]
pub struct Admin {
    service: CloudService,
    office: Office,
    pulse: Arc<Pulse>,
    /// Cookies go over TLS only.
    secure: bool,
    /// Which proxies are believed whose request they pass on.
    proxies: Proxies,
}

impl Admin {
    /// The console of this service; `secure`: it is reached over TLS.
    #[must_use]
    pub fn new(service: CloudService, office: Office, secure: bool) -> Admin {
        Admin { service, office, pulse: Arc::default(), secure, proxies: Proxies::default() }
    }

    /// The same behind these proxies.
    #[must_use]
    pub fn behind(self, proxies: Proxies) -> Admin {
        Admin { proxies, ..self }
    }

    /// Looks at the service again and again, for the charts of the overview; never ends.
    pub async fn watch(self) {
        loop {
            self.pulse.look(&self.service);
            tokio::time::sleep(overview::PERIOD).await;
        }
    }

    /// All routes.
    pub fn router(&self) -> Router {
        let (api, _) = api::routes().split_for_parts();
        api.merge(console::routes())
            .route_layer(middleware::from_fn_with_state(self.clone(), guard::guard))
            .layer(middleware::from_fn(secured))
            .layer(middleware::from_fn(with_request_id))
            .with_state(self.clone())
    }

    /// The scene, with why this replica would refuse its requests.
    fn warned(&self, scene: SceneView) -> SceneView {
        let versions = [("in force", &scene.published), ("the draft", &scene.draft)];
        let warning = |(which, settings): (&str, &Option<Settings>)| {
            let refused = self.service.unserved(&scene.id, &settings.as_ref()?.check().ok()?)?;
            Some(format!("{which}: {refused}"))
        };
        let warnings = versions.into_iter().filter_map(warning).collect();
        SceneView { warnings, ..scene }
    }

    /// What is measured and set of devices and networks.
    async fn known(&self) -> Result<Coefficients, Problem> {
        self.office.known(self.service.coefficients()).await
    }

    /// What the optimizer would answer for these settings.
    async fn predict(
        &self,
        id: &str,
        settings: &SceneSettings,
        asked: &PredictFor,
    ) -> Result<Prediction, Problem> {
        let (known, quality) = (self.known().await?, self.office.quality());
        let (id, settings, asked) = (id.to_owned(), settings.clone(), asked.clone());
        // Some milliseconds of arithmetic: not on a thread of the runtime.
        let predicted = tokio::task::spawn_blocking(move || {
            predict::predict(&id, &settings, &known, &asked, quality.as_deref())
        });
        predicted.await.map_err(|_| Problem::new(Kind::Internal, "the prediction failed"))?
    }
}

/// Puts the headers of every reply also on those that the router itself gives.
async fn secured(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    guard::secure(response.headers_mut());
    response
}

/// The time, in milliseconds since 1970.
fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
