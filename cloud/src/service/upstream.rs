//! Engines that exist (vLLM, SGLang, TGI, llama.cpp's server, any that speaks OpenAI's API) write the first L
//! tokens; the model in this process makes the mask meanwhile.
//!
//! The model of this process is then called the scorer: it prefills the same prompt, and its attention ranks
//! the sentences. Its tokenizer and chat template lay prompts out. An engine with the same tokenizer and
//! template gets and gives token ids, so the seam between cloud and device is exact. Others get messages, and
//! the device goes on behind their text.
//!
//! Always: an engine is asked again, or another one, before the first token only. Closing the connection is
//! how an answer ends early, so an engine's slot is free as soon as L tokens are there, or the device is
//! gone.

pub mod facts;
pub mod fault;

mod ask;
mod balance;
mod client;
mod drive;
mod probe;
mod reply;
mod writer;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use baton_engine::Model;
use baton_generate::clock::Clock;
use tokio::sync::watch;
use tracing::{info, warn};

pub(crate) use self::ask::{Ask, AskPrompt};
pub(crate) use self::balance::NoEngine;
pub use self::client::ClientError;
pub(crate) use self::drive::{Job, ScoreJob, Scored};

use self::balance::{Balance, Ended};
use self::client::EngineClient;
use self::facts::{Facts, Lack};
use crate::observe::metrics::{EngineUse, Metrics};

const POISONED: &str = "nothing panics while the facts are locked";
/// How often engines are asked how they are.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Every so many rounds they are asked what they are, too.
const FACTS_EVERY: u32 = 30;

/// An engine, as written in the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAddress {
    /// Its URL.
    pub url: String,
    /// The name of the model to use there; `None` for the first one.
    pub model: Option<String>,
}

/// How engines are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Sent to every engine as a bearer token.
    pub key: Option<String>,
    /// Longest time to the first token.
    pub first_token: Duration,
    /// Longest time between two events of an answer.
    pub silence: Duration,
    /// If the first token takes longer, another engine is asked too; `None` for never.
    pub hedge: Option<Duration>,
    /// Longest time that a first token waits for the mask.
    pub mask_wait: Duration,
    /// Requests of this service that an engine has at most.
    pub places: usize,
    /// The header that tells a gateway which requests have the same beginning.
    pub affinity_header: Option<String>,
}

impl Default for UpstreamOptions {
    fn default() -> UpstreamOptions {
        UpstreamOptions {
            key: None,
            first_token: Duration::from_secs(60),
            silence: Duration::from_secs(15),
            hedge: None,
            mask_wait: Duration::from_secs(1),
            places: 256,
            affinity_header: None,
        }
    }
}

/// One engine of a model.
#[derive(Debug)]
struct Engine {
    address: EngineAddress,
    client: EngineClient,
    /// `None` until it has answered for the first time.
    facts: Mutex<Option<Facts>>,
    /// Whether the facts still hold. After a failed health check another program may be at the address.
    is_sure: AtomicBool,
    /// Whether its last health check failed, which is told once.
    is_away: AtomicBool,
}

/// The engines of one model.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The model's name here.
    model: String,
    engines: Vec<Engine>,
    balance: Mutex<Balance>,
    options: UpstreamOptions,
    clock: Clock,
    metrics: Arc<Metrics>,
    scorer: Arc<Model>,
    /// Set when running answers must end.
    stop: watch::Sender<bool>,
}

/// What is known of an engine now, for figures and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineView {
    /// The model that it writes for.
    pub model: String,
    /// Its URL.
    pub url: String,
    /// What it is; `None` until it has answered.
    pub facts: Option<Facts>,
    /// Whether it takes requests.
    pub is_open: bool,
    /// Requests of this service that it has.
    pub in_flight: usize,
}

/// Why a request gets no engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoLease {
    /// No engine of the model can be asked for this.
    Unsupported { field: &'static str, message: &'static str },
    /// None takes requests now.
    None(NoEngine),
}

/// A place at an engine. Dropped, it is given back: whoever drops it early has lost interest, and the engine
/// is not to blame.
#[derive(Debug)]
pub(crate) struct Lease {
    upstream: Arc<Upstream>,
    at: usize,
    facts: Facts,
    is_over: bool,
}

impl Lease {
    /// Gives the place back.
    fn end(mut self, ended: Ended) {
        self.is_over = true;
        self.upstream.balance().give_back(self.at, ended, self.upstream.clock.now());
    }

    fn engine(&self) -> &Engine {
        &self.upstream.engines[self.at]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_over {
            self.upstream.balance().give_back(self.at, Ended::Unused, self.upstream.clock.now());
        }
    }
}

impl Upstream {
    /// Makes the engines of a model. Nothing is asked yet.
    ///
    /// # Errors
    /// [`ClientError`] for an address or a key that cannot be used.
    pub(crate) fn new(
        (model, scorer): (&str, Arc<Model>),
        addresses: Vec<EngineAddress>,
        options: UpstreamOptions,
        (clock, metrics): (Clock, Arc<Metrics>),
    ) -> Result<Upstream, ClientError> {
        let balance = Balance::new(addresses.iter().map(|address| address.url.clone()), options.places);
        let engine = |address: EngineAddress| {
            let client =
                EngineClient::new(&address.url, options.key.as_deref(), options.affinity_header.as_deref())?;
            Ok(Engine {
                address,
                client,
                facts: Mutex::default(),
                is_sure: AtomicBool::new(false),
                is_away: AtomicBool::new(false),
            })
        };
        let engines = addresses.into_iter().map(engine).collect::<Result<_, ClientError>>()?;
        let (stop, _) = watch::channel(false);
        let (model, balance) = (model.to_owned(), Mutex::new(balance));
        Ok(Upstream { model, engines, balance, options, clock, metrics, scorer, stop })
    }

    /// Takes a place at the engine that suits a request best. `tried` are not asked again.
    pub(crate) fn lease(self: &Arc<Self>, ask: &Ask, tried: &[usize]) -> Result<Lease, NoLease> {
        let known: Vec<Option<Facts>> = self.engines.iter().map(Engine::facts).collect();
        let refusal = |at: usize| known[at].as_ref().map(|facts| ask.refusal(facts));
        let is_sure = |at: usize| self.engines[at].is_sure.load(Ordering::Acquire);
        let may = |at: usize| !tried.contains(&at) && is_sure(at) && refusal(at) == Some(None);
        let taken = self.balance().take(ask.affinity, self.clock.now(), may);
        match taken {
            Ok(at) => {
                let facts = known[at].clone().unwrap_or_default();
                Ok(Lease { upstream: self.clone(), at, facts, is_over: false })
            }
            Err(none) => {
                let refused = (0..self.engines.len()).filter_map(refusal).collect::<Option<Vec<_>>>();
                match refused.unwrap_or_default().first() {
                    Some(&(field, message)) => Err(NoLease::Unsupported { field, message }),
                    None => Err(NoLease::None(none)),
                }
            }
        }
    }

    /// Returns the prompt tokens that wait at the engines, if prompts have this many.
    pub(crate) fn backlog_tokens(&self, prompt_tokens: usize) -> usize {
        self.balance().waiting().saturating_mul(prompt_tokens)
    }

    /// Returns the requests of this service that all engines have.
    pub(crate) fn in_flight(&self) -> usize {
        let balance = self.balance();
        (0..self.engines.len()).map(|at| balance.in_flight(at)).sum()
    }

    /// Returns the smallest context of the engines, if any has said its own.
    pub(crate) fn context_tokens(&self) -> Option<usize> {
        self.engines.iter().filter_map(Engine::facts).filter_map(|facts| facts.context_tokens).min()
    }

    /// Ends every running answer.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns what is known of every engine.
    pub(crate) fn views(&self) -> Vec<EngineView> {
        let now = self.clock.now();
        let view = |(at, engine): (usize, &Engine)| {
            let facts = engine.facts();
            let balance = self.balance();
            EngineView {
                model: self.model.clone(),
                url: engine.address.url.clone(),
                is_open: engine.is_sure.load(Ordering::Acquire) && balance.is_open(at, now),
                in_flight: balance.in_flight(at),
                facts,
            }
        };
        self.engines.iter().enumerate().map(view).collect()
    }

    /// Returns the engines' current use, for figures.
    pub(crate) fn in_use(&self) -> Vec<EngineUse> {
        let used = |view: EngineView| {
            let is_lacking = |lack: Lack| view.facts.as_ref().is_some_and(|facts| facts.lack(lack));
            EngineUse {
                lacks: Lack::ALL.map(|lack| (lack.as_str(), is_lacking(lack))).to_vec(),
                model: view.model,
                engine: view.url,
                in_flight: view.in_flight,
                is_open: view.is_open,
            }
        };
        self.views().into_iter().map(used).collect()
    }

    /// Asks every engine how it is, now and again until the service stops. The first round is over when this
    /// returns.
    pub(crate) async fn watch(self: Arc<Self>) {
        let first = (0..self.engines.len()).map(|at| self.probe(at, true));
        futures_util::future::join_all(first).await;
        for at in 0..self.engines.len() {
            let upstream = self.clone();
            tokio::spawn(async move {
                let mut stop = upstream.stop.subscribe();
                for round in (1..FACTS_EVERY).chain([0]).cycle() {
                    tokio::select! {
                        () = tokio::time::sleep(PROBE_EVERY) => upstream.probe(at, round == 0).await,
                        () = stopped(&mut stop) => return,
                    }
                }
            });
        }
    }

    /// Asks an engine how it is, and what it is if that is in doubt or `anew`.
    async fn probe(&self, at: usize, anew: bool) {
        let engine = &self.engines[at];
        let url = &engine.address.url;
        let health = probe::health(&engine.client).await;
        self.balance().probed(at, health.is_ok(), health.as_ref().ok().copied().flatten());
        let was_away = engine.is_away.swap(health.is_err(), Ordering::AcqRel);
        if let Err(fault) = health {
            if !was_away {
                warn!(model = self.model, url, %fault, "the engine is not well: it gets no requests");
            }
            engine.is_sure.store(false, Ordering::Release);
            return;
        }
        if was_away {
            info!(model = self.model, url, "the engine is well again");
        }
        let was_sure = engine.is_sure.load(Ordering::Acquire);
        if was_sure && !anew {
            return;
        }
        match probe::facts(&engine.client, engine.address.model.as_deref(), &self.scorer).await {
            Ok(mut facts) => {
                let mut known = engine.facts.lock().expect(POISONED);
                // After it was away, another program may be there, which has what the old one lacked.
                if let Some(known) = known.as_ref().filter(|_| was_sure) {
                    facts.lacks.clone_from(&known.lacks);
                }
                if known.as_ref() != Some(&facts) {
                    let Facts { kind, model, common, reason, context_tokens, .. } = &facts;
                    info!(model = self.model, url, %kind, engine_model = model, common = common.as_str(), reason, context_tokens, "engine");
                    *known = Some(facts);
                }
                engine.is_sure.store(true, Ordering::Release);
            }
            Err(fault) => warn!(model = self.model, url, %fault, "the engine does not say what it is"),
        }
    }

    /// Remembers what an engine was found not to have, and tells the operator.
    fn learn(&self, at: usize, lacks: &BTreeSet<Lack>) {
        let engine = &self.engines[at];
        let mut known = engine.facts.lock().expect(POISONED);
        let Some(facts) = known.as_mut() else { return };
        for &lack in lacks {
            if facts.lacks.insert(lack) {
                let (url, what, instead) = (&engine.address.url, lack.as_str(), lack.instead());
                warn!(model = self.model, url, lack = what, "the engine {instead}");
            }
        }
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().expect("nothing panics while the balance is locked")
    }
}

/// Waits until the service stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the engines.
    drop(stop.wait_for(|stopped| *stopped).await);
}

impl Engine {
    fn facts(&self) -> Option<Facts> {
        self.facts.lock().expect(POISONED).clone()
    }
}
