//! The models of a service, and their figures: which one answers, and what is known of each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_engine::{AdapterId, Model};
use baton_generate::host::{KvFigures, Stage};
use baton_generate::scheduler::{BacklogBound, SchedulerStats};
use baton_protocol::{AssistRequest, SceneInfo};

use super::places::Place;
use super::residency::{Lease, ModelResidency, ModelState};
use super::upstream::{EngineView, Upstream};
use super::{CloudService, DEFAULT_MODEL, ModelView, Served, ServiceError, Terms};
use crate::access::DeviceClass;
use crate::learn::coefficients::Coefficients;
use crate::learn::cost::Measured;
use crate::learn::traffic::TrafficRow;
use crate::observe::metrics::{Metrics, ModelUsage, Usage};
use crate::scene::Scene;
use crate::scene::book::SceneBook;
use crate::store::now_ms;
use baton_generate::clock::Clock;

impl CloudService {
    /// Returns the model that answers requests that name none.
    pub(super) fn first(&self) -> &Place {
        &self.inner.models[0]
    }

    /// Returns the models that are in memory.
    fn in_memory(&self) -> impl Iterator<Item = Arc<Served>> {
        self.inner.models.iter().filter_map(Place::in_memory)
    }

    /// Says to every host that cancel flags were set.
    pub(super) fn wake_hosts(&self) {
        self.in_memory().for_each(|served| served.handle.cancelled());
    }

    /// Returns the number of the model of this name, or of the first one for `default`.
    fn number(&self, asked: &str) -> Result<usize, ServiceError> {
        let models = &self.inner.models;
        // A model may have the name `default` itself.
        let found = models.iter().position(|place| place.facts.name == asked);
        found.or((asked == DEFAULT_MODEL).then_some(0)).ok_or_else(|| ServiceError::UnknownModel {
            asked: asked.chars().take(128).collect(),
            served: self.model_names().join(", "),
        })
    }

    /// Returns the model of this name, or the first one for `default`.
    pub(super) fn named(&self, asked: &str) -> Result<&Place, ServiceError> {
        Ok(&self.inner.models[self.number(asked)?])
    }

    /// Returns the model that answers a scene's requests; it has the scene's adapter.
    pub(super) fn place_of_scene(&self, scene: &Scene, asked: &str) -> Result<&Place, ServiceError> {
        let place = match &scene.settings.model {
            None => self.named(asked)?,
            Some(name) => {
                let place = self.named(name).map_err(|_| ServiceError::SceneModel {
                    scene: scene.id.clone(),
                    model: name.clone(),
                    served: self.model_names().join(", "),
                })?;
                if asked != DEFAULT_MODEL && asked != place.facts.name {
                    let asked = asked.chars().take(128).collect();
                    let (scene, model) = (scene.id.clone(), place.facts.name.clone());
                    return Err(ServiceError::OtherModel { scene, model, asked });
                }
                place
            }
        };
        let has = |name: &String| place.facts.adapters.contains(name);
        match &scene.settings.adapter {
            Some(adapter) if !has(adapter) => Err(ServiceError::SceneAdapter {
                scene: scene.id.clone(),
                adapter: adapter.clone(),
                model: place.facts.name.clone(),
                served: place.facts.adapters_text(),
            }),
            _ => Ok(place),
        }
    }

    /// Returns the model in memory and the adapter that answer a scene's requests.
    pub(super) fn of_scene(
        &self,
        scene: &Scene,
        asked: &str,
    ) -> Result<(Arc<Served>, Option<AdapterId>), ServiceError> {
        let served = self.place_of_scene(scene, asked)?.served()?;
        let adapter = scene.settings.adapter.as_deref().and_then(|name| served.adapter(name));
        Ok((served, adapter))
    }

    /// Waits until the model of this name is in memory. It stays there as long as the lease exists.
    ///
    /// # Errors
    /// [`ServiceError`] if there is no such model, or it cannot be loaded, or not within `deadline` (`None`
    /// for the service's default).
    pub async fn hold(&self, model: &str, deadline: Option<Duration>) -> Result<Lease, ServiceError> {
        let at = self.number(model)?;
        let deadline = deadline.or(self.deadline());
        match &self.inner.residency {
            Some(residency) => residency.hold(at, deadline).await,
            None => Ok(Lease::of_resident()),
        }
    }

    /// Returns the name of the model that answers this request, also if an experiment chooses it.
    ///
    /// # Errors
    /// [`ServiceError`] if there is no such scene, or its model or adapter is not served.
    pub fn answering(&self, request: &AssistRequest, terms: &Terms) -> Result<&str, ServiceError> {
        let scene = self.inner.scenes.get(&request.scene, request.scene_version)?;
        let (scene, _) = self.take_part(request, scene, terms);
        Ok(&self.place_of_scene(&scene, &request.model)?.facts.name)
    }

    /// Returns what is known of every model's residency, the default first.
    pub fn residency(&self) -> Vec<ModelResidency> {
        let resident = |place: &Place| ModelResidency {
            name: place.facts.name.clone(),
            state: ModelState::Loaded,
            is_drained: false,
            memory_bytes: place.facts.memory_bytes(),
            holding: 0,
            waiting: 0,
            problem: None,
        };
        match &self.inner.residency {
            Some(residency) => residency.views(),
            None => self.inner.models.iter().map(resident).collect(),
        }
    }

    /// Returns the budget of all models in bytes, if there is one, and what is used of it.
    pub fn models_memory(&self) -> (Option<u64>, u64) {
        let all = || self.inner.models.iter().map(|place| place.facts.memory_bytes()).sum();
        self.inner.residency.as_ref().map_or_else(|| (None, all()), |residency| residency.memory())
    }

    /// Loads a model, also if it was drained or has failed. Returns at once.
    ///
    /// # Errors
    /// [`ServiceError::UnknownModel`]; [`ServiceError::ModelFixed`] if models are not loaded here.
    pub fn load_model(&self, name: &str) -> Result<(), ServiceError> {
        let at = self.number(name)?;
        self.managed_residency(name)?.load(at);
        Ok(())
    }

    /// Unloads a model once no request holds it. The next request loads it again, or is refused if the model
    /// is `drained`. Returns at once.
    ///
    /// # Errors
    /// As [`Self::load_model`].
    pub fn unload_model(&self, name: &str, drained: bool) -> Result<(), ServiceError> {
        let at = self.number(name)?;
        self.managed_residency(name)?.unload(at, drained);
        Ok(())
    }

    fn managed_residency(&self, name: &str) -> Result<&Arc<super::residency::Residency>, ServiceError> {
        let residency = self.inner.residency.as_ref();
        residency.ok_or_else(|| ServiceError::ModelFixed { model: name.to_owned() })
    }

    /// Returns the most bytes of text that a prompt of any model here can have.
    pub fn prompt_bytes_max(&self) -> usize {
        self.inner.models.iter().map(|place| place.facts.text_bytes_max).max().unwrap_or(0)
    }

    /// Changes the limits of the queue and the default deadline. Requests that wait already stay.
    pub fn set_backlog(&self, queue: usize, backlog: BacklogBound, deadline: Option<Duration>) {
        if let Some(residency) = &self.inner.residency {
            residency.set_backlog(queue, backlog);
        }
        self.in_memory().for_each(|served| served.handle.set_backlog(queue, backlog));
        *self.inner.deadline.lock().expect("no holder of this lock panics") = deadline;
    }

    /// Returns the current version of every scene.
    pub fn scenes(&self) -> Vec<SceneInfo> {
        self.inner.scenes.current().iter().map(|scene| self.info(scene)).collect()
    }

    /// Returns the current version of one scene.
    ///
    /// # Errors
    /// [`ServiceError::Scene`] if there is no such scene.
    pub fn scene(&self, id: &str) -> Result<SceneInfo, ServiceError> {
        let scene = self.inner.scenes.get(id, None)?;
        Ok(self.info(&scene))
    }

    /// Returns the current scenes, which are replaced if the database has newer ones.
    pub fn scene_book(&self) -> &SceneBook {
        &self.inner.scenes
    }

    /// Returns the name of the default model in the API.
    pub fn model_name(&self) -> &str {
        &self.first().facts.name
    }

    /// Returns the names of the models, the default first.
    pub fn model_names(&self) -> Vec<&str> {
        self.inner.models.iter().map(|place| place.facts.name.as_str()).collect()
    }

    /// Returns every model with the names of its adapters, the default first.
    pub fn models(&self) -> impl Iterator<Item = ModelView<'_>> {
        self.inner.models.iter().map(Place::view)
    }

    /// Returns the model of this name, or the first one for `default`.
    ///
    /// # Errors
    /// [`ServiceError::UnknownModel`].
    pub fn model_named(&self, name: &str) -> Result<ModelView<'_>, ServiceError> {
        Ok(self.named(name)?.view())
    }

    /// Returns the model of this name, or the first one for `default`, while it is in memory.
    ///
    /// # Errors
    /// [`ServiceError::UnknownModel`], [`ServiceError::ModelAway`].
    pub fn model_in_memory(&self, name: &str) -> Result<Arc<Model>, ServiceError> {
        Ok(self.named(name)?.served()?.model.clone())
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Returns all current metrics in Prometheus' text format.
    pub fn render_metrics(&self) -> String {
        let scenes = self.inner.scenes.current();
        self.inner.metrics.render(&Usage {
            open_answers: self.inner.open.len(),
            handoff_bytes: self.handoff_bytes(),
            engines: self.upstreams().flat_map(|upstream| upstream.in_use()).collect(),
            models: self.models_in_use(),
            scenes: scenes.iter().map(|scene| (scene.id.clone(), scene.version)).collect(),
        })
    }

    /// Returns the current use of every model, the default first.
    pub fn models_in_use(&self) -> Vec<ModelUsage> {
        self.inner.models.iter().map(Place::usage).collect()
    }

    fn upstreams(&self) -> impl Iterator<Item = Arc<Upstream>> {
        self.in_memory().filter_map(|served| served.upstream.clone())
    }

    /// Returns what is known of every engine that writes answers, in the order of the models.
    pub fn engines(&self) -> Vec<EngineView> {
        self.upstreams().flat_map(|upstream| upstream.views()).collect()
    }

    /// Asks all engines how they are, now and from then on until the service stops.
    pub async fn watch_engines(&self) {
        // Models that are loaded later begin this themselves.
        if self.inner.residency.is_none() {
            for upstream in self.upstreams().collect::<Vec<_>>() {
                upstream.watch().await;
            }
        }
    }

    /// Prepares constrained answers, so that the first one need not wait.
    pub fn prepare_constraints(&self) {
        for served in self.in_memory() {
            if let Err(err) = served.grammars() {
                let err = &err as &dyn std::error::Error;
                tracing::warn!(err, model = served.name, "answers of this model cannot be constrained");
            }
        }
    }

    /// Returns the scheduler's statistics, all models together.
    pub fn stats(&self) -> SchedulerStats {
        let all = self.in_memory().map(|served| served.handle.stats());
        all.reduce(SchedulerStats::beside).unwrap_or_default()
    }

    /// Returns the content of the KV caches after the last passes, all models together.
    pub fn kv(&self) -> KvFigures {
        let all = self.in_memory().map(|served| served.handle.kv());
        all.reduce(KvFigures::beside).unwrap_or_default()
    }

    /// Returns the bytes that are set aside for keys and values on their way to devices.
    pub fn handoff_bytes(&self) -> u64 {
        self.inner.handoffs.bytes()
    }

    /// Returns the current cost of this cloud, with its default model.
    pub fn measured(&self) -> Measured {
        self.first().figures.measured()
    }

    /// Returns the costs of this cloud (with its default model), of device classes and of network classes, as
    /// refitted from telemetry.
    pub fn coefficients(&self) -> Coefficients {
        self.first().figures.coefficients()
    }

    /// Returns the service's clock.
    pub fn clock(&self) -> Clock {
        self.inner.clock.clone()
    }

    /// Says whether there are several tenants. Their prompts are then kept apart in engines elsewhere, too.
    pub fn set_has_tenants(&self, has_tenants: bool) {
        self.inner.has_tenants.store(has_tenants, Ordering::Relaxed);
    }

    /// Sets the costs of these device classes, which replace what the devices report.
    pub fn set_classes(&self, classes: &[DeviceClass]) {
        self.inner.models.iter().for_each(|place| place.figures.set_classes(classes));
    }

    /// Returns sums of requests that the database does not have yet.
    pub fn unwritten_traffic(&self) -> Vec<TrafficRow> {
        self.first().figures.traffic(|traffic| traffic.unwritten())
    }

    /// Notes that the database has these sums.
    pub fn traffic_written(&self, rows: &[TrafficRow]) {
        self.first().figures.traffic(|traffic| traffic.written(rows, now_ms()));
    }

    /// Returns whether requests are accepted.
    pub fn is_open(&self) -> bool {
        !self.inner.is_stopping.load(Ordering::Acquire)
            && self.in_memory().all(|served| served.handle.stage() == Stage::Open)
    }

    /// Returns why the program must be restarted, if it must: an engine's thread has panicked, or a model's
    /// file was damaged.
    pub fn failure(&self) -> Option<String> {
        self.in_memory().find_map(|served| match served.model.intact() {
            Err(err) => Some(err.to_string()),
            Ok(()) if served.handle.stage() == Stage::Failed => Some("the engine has failed".to_owned()),
            Ok(()) => None,
        })
    }

    /// Stops accepting requests. Running answers end by themselves, then the threads of the hosts end.
    pub fn drain(&self) {
        self.inner.is_stopping.store(true, Ordering::Release);
        self.in_memory().for_each(|served| served.handle.drain());
        if let Some(residency) = &self.inner.residency {
            residency.stop();
        }
    }

    /// Cancels every answer. The threads of the hosts end after the current pass.
    pub fn stop(&self) {
        self.drain();
        self.upstreams().for_each(|upstream| upstream.stop());
        self.in_memory().for_each(|served| served.handle.stop());
    }

    /// Waits until the hosts that this service runs have ended. Returns false if one has panicked. Call it
    /// after [`Self::drain`].
    pub fn join(&self) -> bool {
        self.inner.residency.as_ref().is_none_or(|residency| residency.join())
    }

    pub(super) fn info(&self, scene: &Scene) -> SceneInfo {
        let name = scene.settings.model.as_deref().unwrap_or(DEFAULT_MODEL);
        match self.named(name) {
            Ok(place) => {
                let view = place.view();
                SceneInfo {
                    prompt_tokens_max: u32::try_from(view.context_tokens.saturating_sub(1)).ok(),
                    call_markup: Some(place.facts.call_markup),
                    ..scene.info(view.name, Some(view.tokenizer_sha256))
                }
            }
            // Requests for it are refused, but its settings are shown anyway.
            Err(_) => scene.info(name, None),
        }
    }
}
