//! Models of this device that the cloud's registry rules: what it has, what it should have, and with what it
//! may ask.
//!
//! [`baton_registry::holding`] decides; [`ManagedModels`] performs the steps: it asks the cloud, fetches
//! versions, loads pairs, removes what nothing needs. Whatever fails, the pair that answered before goes on.

use crate::client::CloudClient;
use crate::models::pull::{Report, Stop};
use crate::models::registry::{Place, Wanted, fetch_version, name_in_store, remove_version, versions_in};
use crate::models::{PullError, Store};
use crate::relay::CloudFault;
use crate::settings::Settings;
use baton_protocol::{ModelPair, ModelVersion};
use baton_registry::envelope::PublicKey;
use baton_registry::holding::{Holding, Kept, Step};
use baton_registry::layout::Location;
use baton_registry::sync::{ANY_SCENE, SyncReply};
use baton_terminal::chain;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};
use uuid::Uuid;

/// What is kept of one cloud's models between starts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// A random name of this device, which only this cloud learns.
    device: String,
    #[serde(flatten)]
    kept: Kept,
}

/// The pair with which the cloud may be asked, for whoever asks it. Clones share it.
#[derive(Debug, Clone)]
pub struct PairLease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    holding: Mutex<Holding>,
    origin: Instant,
    /// Told if the cloud has refused the pair.
    changed: Notify,
}

impl Shared {
    fn holding(&self) -> MutexGuard<'_, Holding> {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl PairLease {
    /// Returns the pair with which the cloud may be asked now, if it may.
    pub fn pair(&self) -> Option<ModelPair> {
        let now_ms = self.0.now_ms();
        self.0.holding().pair_for_cloud(now_ms).cloned()
    }

    /// Notes that the cloud has refused the pair: it is asked at once which one is right.
    pub fn refused(&self) {
        self.0.holding().refused();
        self.0.changed.notify_one();
    }
}

/// Where the files of a pair are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairFiles {
    /// The pair.
    pub pair: ModelPair,
    /// The base's file, the first one of a split model.
    pub base: PathBuf,
    /// The adapter's name, without its version, and its file.
    pub adapter: Option<(String, PathBuf)>,
}

/// Loads a pair; returns why that fails.
pub trait Load {
    /// Loads the pair in these files. If it loads, it answers from then on.
    fn load(&mut self, files: PairFiles) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// What is needed to keep a device's models as the cloud wants them.
#[derive(Debug)]
pub struct ManagedOptions {
    /// The cloud, by its client, its address and its key.
    pub cloud: CloudClient,
    /// Its address.
    pub cloud_url: String,
    /// Its key, which is also for its registry.
    pub cloud_key: Option<String>,
    /// The class of this device.
    pub class: String,
    /// The scene whose models it has; [`ANY_SCENE`] for those of all scenes
    /// without their own.
    pub scene: String,
    /// Devices of the home that are asked for bytes first.
    pub peers: Vec<Location>,
    /// The key of these devices.
    pub peer_key: Option<String>,
    /// Keys that may sign versions.
    pub trusted: Vec<PublicKey>,
    /// Where models are kept.
    pub store: Store,
    /// Where the state is kept.
    pub settings: Settings,
}

/// A version that is being fetched.
struct Fetching {
    model: ModelVersion,
    work: JoinHandle<Result<(), PullError>>,
    stop: watch::Sender<bool>,
}

/// The models of this device, as the cloud wants them.
pub struct ManagedModels {
    options: ManagedOptions,
    shared: Arc<Shared>,
    device: String,
    file: String,
    reply: Option<SyncReply>,
    fetching: Option<Fetching>,
    report: Report,
}

impl ManagedModels {
    /// Takes up what was kept. `report` is told the progress of downloads.
    pub fn open(options: ManagedOptions, report: Report) -> Self {
        let origin = crate::settings::file_of_cloud(&options.cloud_url);
        let mut file = format!("models-{}", origin.trim_start_matches("cloud-"));
        if options.scene != ANY_SCENE {
            // Another scene has other models. Its name may hold what a file's name may not.
            let digest = Sha256::digest(options.scene.as_bytes());
            file += &format!("-{}", hex::encode(&digest[..8]));
        }
        let State { mut device, kept } = options.settings.profile(&file).unwrap_or_default();
        if device.is_empty() {
            device = Uuid::new_v4().simple().to_string();
        }
        let holding = Mutex::new(Holding::new(kept, versions_in(&options.store)));
        let shared = Arc::new(Shared { holding, origin: Instant::now(), changed: Notify::new() });
        let models = Self { options, shared, device, file, reply: None, fetching: None, report };
        models.keep();
        models
    }

    /// Returns the pair with which the cloud may be asked, for an agent.
    pub fn lease(&self) -> PairLease {
        PairLease(Arc::clone(&self.shared))
    }

    /// Returns the files of the pair that answers, if there is one.
    pub fn active(&self) -> Option<PairFiles> {
        let active = self.shared.holding().active().cloned()?;
        self.files(active).ok()
    }

    /// Returns the pair that the cloud wants and this device does not have yet.
    pub fn coming(&self) -> Option<ModelPair> {
        self.shared.holding().coming().cloned()
    }

    fn files(&self, pair: ModelPair) -> Result<PairFiles, PullError> {
        let path = |model: &ModelVersion| self.options.store.path(&name_in_store(model));
        let adapter =
            pair.adapter.as_ref().map(|model| Ok::<_, PullError>((model.name().to_owned(), path(model)?)));
        Ok(PairFiles { base: path(&pair.base)?, adapter: adapter.transpose()?, pair })
    }

    /// Asks the cloud which models this device should have.
    ///
    /// # Errors
    /// [`CloudFault`] if it does not say.
    pub async fn sync(&mut self) -> Result<(), CloudFault> {
        let sent_ms = self.shared.now_ms();
        let request = self.shared.holding().request(&self.device, &self.options.class, &self.options.scene);
        match self.options.cloud.sync(&request).await {
            Ok(reply) => {
                self.shared.holding().synced(&reply, sent_ms);
                self.reply = Some(reply);
                self.keep();
                Ok(())
            }
            Err(fault) => {
                let now_ms = self.shared.now_ms();
                self.shared.holding().sync_failed(now_ms);
                Err(fault)
            }
        }
    }

    /// Performs steps until this device has what the cloud wants, or can do no more now.
    ///
    /// # Errors
    /// The first failure, with its cause.
    pub async fn settle(&mut self, load: &mut impl Load, stop: &Stop) -> anyhow::Result<()> {
        self.sync().await?;
        loop {
            stop.check()?;
            let now_ms = self.shared.now_ms();
            let step = self.shared.holding().next(now_ms);
            match step {
                Step::Sync => self.sync().await?,
                Step::Fetch(model) => {
                    let wanted = self.wanted(&model)?;
                    let (report, stop) = (self.report.clone(), stop.clone());
                    let done = fetch_version(&self.options.store, &wanted, report, stop).await;
                    self.fetched(model, done.as_ref().map(drop));
                    done?;
                }
                Step::StopFetch => self.fetch_stopped(),
                Step::Switch(pair) => self.switch(pair, load).await?,
                Step::Remove(model) => self.remove(&model).await,
                Step::Wait { .. } => return Ok(()),
            }
        }
    }

    /// Keeps the models as the cloud wants them, until the future is dropped.
    pub async fn run(mut self, mut load: impl Load) {
        loop {
            let now_ms = self.shared.now_ms();
            let step = self.shared.holding().next(now_ms);
            match step {
                Step::Sync => {
                    if let Err(fault) = self.sync().await {
                        info!(%fault, "the cloud does not say which models this device should have");
                    }
                }
                Step::Fetch(model) => self.begin_fetch(model),
                Step::StopFetch => {
                    if let Some(fetching) = self.fetching.take() {
                        fetching.stop.send_replace(true);
                        let _stopped = fetching.work.await;
                    }
                    self.fetch_stopped();
                }
                Step::Switch(pair) => {
                    let name = pair.to_string();
                    match self.switch(pair, &mut load).await {
                        Ok(()) => info!("answers with {name} from now on"),
                        Err(err) => {
                            warn!(err = chain(&*err), "{name} does not load; the models before go on")
                        }
                    }
                }
                Step::Remove(model) => self.remove(&model).await,
                Step::Wait { until_ms } => self.wait(until_ms).await,
            }
        }
    }

    /// Only asks the cloud with which models it may be asked, until the future is dropped. Fetches nothing.
    pub async fn renew(mut self) {
        loop {
            let due_ms = self.shared.holding().sync_due_ms();
            let left = Duration::from_millis(due_ms.saturating_sub(self.shared.now_ms()));
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = self.shared.changed.notified() => {}
            }
            if let Err(fault) = self.sync().await {
                info!(%fault, "the cloud does not say with which models it may be asked");
            }
        }
    }

    /// Waits for a time, for the end of a download, or for a refusal of the cloud.
    async fn wait(&mut self, until_ms: u64) {
        let left = Duration::from_millis(until_ms.saturating_sub(self.shared.now_ms()));
        let done = tokio::select! {
            () = tokio::time::sleep(left) => return,
            () = self.shared.changed.notified() => return,
            done = ended(&mut self.fetching) => done,
        };
        if let Some(Fetching { model, .. }) = self.fetching.take() {
            if let Err(err) = &done {
                warn!(err = chain(err), %model, "a model is not fetched; it is tried again later");
            }
            self.fetched(model, done.as_ref().copied());
        }
    }

    fn begin_fetch(&mut self, model: ModelVersion) {
        let wanted = match self.wanted(&model) {
            Ok(wanted) => wanted,
            Err(err) => {
                warn!(err = chain(&err), %model, "a model cannot be fetched");
                return self.fetched(model, Err(&err));
            }
        };
        info!(%model, "fetching");
        let (stop, stopped) = Stop::new();
        let (store, report) = (self.options.store.clone(), self.report.clone());
        let work =
            tokio::spawn(async move { fetch_version(&store, &wanted, report, stopped).await.map(drop) });
        self.fetching = Some(Fetching { model, work, stop });
    }

    /// Returns what to fetch for a version, as the cloud said it last.
    fn wanted(&self, model: &ModelVersion) -> Result<Wanted, PullError> {
        let unknown =
            || PullError::Invalid(format!("the cloud does not say where {model} is: ask again later"));
        let reply = self.reply.as_ref().ok_or_else(unknown)?;
        let found = reply.models.iter().find(|found| found.model == *model).ok_or_else(unknown)?;
        let mut places = Vec::new();
        for peer in &self.options.peers {
            places.push(Place::new(peer.clone(), self.options.peer_key.clone())?);
        }
        for location in &reply.locations {
            places.push(Place::new(location.clone(), None)?);
        }
        if reply.serves {
            let own = format!("{}/v1/registry", self.options.cloud_url.trim_end_matches('/'));
            let own: Location = own.parse().map_err(|err| PullError::Invalid(format!("{err}")))?;
            places.push(Place::new(own, self.options.cloud_key.clone())?);
        }
        Ok(Wanted { model: found.clone(), places, trusted: self.options.trusted.clone() })
    }

    fn fetched(&self, model: ModelVersion, done: Result<(), &PullError>) {
        let now_ms = self.shared.now_ms();
        match done {
            Ok(()) => self.shared.holding().fetched(model),
            Err(_) => self.shared.holding().fetch_failed(now_ms),
        }
    }

    fn fetch_stopped(&self) {
        let now_ms = self.shared.now_ms();
        self.shared.holding().fetch_failed(now_ms);
    }

    async fn switch(&mut self, pair: ModelPair, load: &mut impl Load) -> anyhow::Result<()> {
        let done = match self.files(pair.clone()) {
            Ok(files) => load.load(files).await,
            Err(err) => {
                // A file is gone: it is fetched again.
                pair.models().for_each(|model| self.shared.holding().lost(model));
                return Err(err.into());
            }
        };
        match &done {
            Ok(()) => self.shared.holding().switched(pair),
            Err(_) => self.shared.holding().switch_failed(pair),
        }
        self.keep();
        done
    }

    async fn remove(&self, model: &ModelVersion) {
        if let Err(err) = remove_version(&self.options.store, model).await {
            warn!(err = chain(&err), %model, "a model that nothing needs is not removed");
        }
        self.shared.holding().removed(model);
    }

    /// Writes the state down for the next start.
    fn keep(&self) {
        let state = State { device: self.device.clone(), kept: self.shared.holding().kept().clone() };
        if let Err(err) = self.options.settings.remember_profile(&self.file, &state) {
            warn!(err = chain(&err), "which models this device has is not remembered");
        }
    }
}

impl Drop for ManagedModels {
    fn drop(&mut self) {
        if let Some(fetching) = &self.fetching {
            fetching.stop.send_replace(true);
        }
    }
}

/// Waits for the end of the download, if there is one.
async fn ended(fetching: &mut Option<Fetching>) -> Result<(), PullError> {
    match fetching {
        Some(fetching) => match (&mut fetching.work).await {
            Ok(done) => done,
            Err(_) => Err(PullError::Invalid("the download ended unexpectedly".to_owned())),
        },
        None => std::future::pending().await,
    }
}
