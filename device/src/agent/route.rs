//! Who answers a turn: this device, the cloud, or both. It is chosen by what each is expected to take.
//!
//! Reads the tokens of the prompt, what this device knows of it already, its own speed, the times of the
//! cloud's recent answers, and the state of the battery. Makes no decision itself: [`baton_pacing::route`]
//! does. What is chosen, what was not, and what was expected of each stands in the report of the answer.

use super::recent::{CloudExpected, Recent};
use super::{Agent, Question};
use crate::machine::power::Power;
use crate::prefix::Kept;
use crate::relay::{RelayMode, Timeline};
use crate::settings::{Settings, file_of_cloud};
use baton_engine::prompt::Prompt;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, BLOCK_TOKENS};
use baton_pacing::optimizer::{OptimizerInput, PromptShape, ScenePolicy, SlowDevice};
use baton_pacing::route::{Choice, Outlook, Route, Turn, Weights, Why, choose};
use baton_pacing::{CloudCost, DeviceCost, PaceMode};
use baton_terminal::chain;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{debug, warn};

/// Prompts that the engine computed last; it may still hold them.
const PROMPTS: usize = 4;
/// What the device's waiting counts if it should compute less.
const SPARED: f64 = 2.0;
/// What a kilobyte counts on a metered network, in milliseconds.
const METERED_KILOBYTE_MS: f64 = 10.0;
/// What a joule counts on a battery, in milliseconds.
const BATTERY_JOULE_MS: f64 = 5.0;

/// How routes are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// Whether bytes that are sent cost money.
    pub is_metered: bool,
    /// Whether the device reads a conversation behind its answers, so that the next turn computes little.
    pub reads_ahead: bool,
}

/// The state that choices are made from.
#[derive(Debug, Default)]
pub(super) struct Routes {
    options: RouteOptions,
    /// Where the times of the cloud's answers are kept, and in which file.
    kept: Option<(Settings, String)>,
    /// Prompts that this device has computed last, the newest first.
    prompts: Mutex<VecDeque<Arc<[TokenId]>>>,
}

/// What is known of a turn before a route is chosen.
pub(super) struct Known<'a> {
    /// The prompt as both models get it.
    pub(super) prompt: &'a Prompt,
    /// Which segments may be refined.
    pub(super) refinable: Vec<bool>,
    pub(super) question: &'a Question,
    pub(super) device: DeviceCost,
    /// Leading tokens of the prompt that need not be computed.
    pub(super) cached: usize,
    /// Most prompt tokens that this device takes.
    pub(super) room: usize,
    /// Bytes of the texts to send.
    pub(super) bytes: usize,
    pub(super) power: Power,
    pub(super) options: RouteOptions,
    /// Expected tokens of the answer, and the cloud's times, if they are known.
    pub(super) answer_tokens: f64,
    pub(super) cloud: Option<CloudExpected>,
}

/// The choice of a route, for the report of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteReport {
    /// The chosen route: `device`, `relay` or `cloud`.
    pub chosen: &'static str,
    /// `least` if it has the least weighted time; `only` if nothing else was possible; `unmeasured` if the
    /// cloud's speed is not known yet.
    pub why: &'static str,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading tokens of it that this device need not compute.
    pub cached_tokens: usize,
    /// Tokens that the answer was expected to have.
    pub answer_tokens: f64,
    /// What was expected of each route.
    pub forecasts: Vec<OutlookReport>,
    /// Whether bytes that are sent cost money.
    pub metered: bool,
    /// What the system said about power and heat.
    pub power: Power,
    /// What times and amounts counted.
    #[serde(skip)]
    pub(super) weights: Weights,
    /// How long the cloud was expected to compute one token of a prompt, in milliseconds.
    #[serde(skip)]
    pub(super) cloud_ms_per_token: f64,
}

/// What was expected of a route, or measured. Times are milliseconds since the question.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutlookReport {
    /// The route.
    pub route: &'static str,
    /// The first token.
    pub first_ms: f64,
    /// The longest time between two tokens.
    pub gap_ms: f64,
    /// The last token.
    pub total_ms: f64,
    /// Seconds of the cloud's computing.
    pub cloud_s: f64,
    /// Bytes of the texts that are sent, before they are compressed.
    pub bytes: f64,
    /// Energy of this device, if the system says what power it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// The weighted time that is compared.
    pub weighted_ms: f64,
}

impl RouteReport {
    /// Returns the chosen route.
    pub(super) fn chosen(&self) -> Route {
        Route::ALL.into_iter().find(|route| route.as_str() == self.chosen).unwrap_or(Route::Relay)
    }

    /// Returns whether it was chosen from several routes, all of them known.
    pub(super) fn is_compared(&self) -> bool {
        self.why == Why::Least.as_str() && self.forecasts.len() > 1
    }

    /// Returns the routes that were possible and not chosen.
    pub(super) fn others(&self) -> impl Iterator<Item = Route> {
        Route::ALL.into_iter().filter(|route| *route != self.chosen() && self.forecast(*route).is_some())
    }

    /// Returns what was expected of a route, if it was possible.
    pub(super) fn forecast(&self, route: Route) -> Option<&OutlookReport> {
        self.forecasts.iter().find(|of| of.route == route.as_str())
    }
}

impl OutlookReport {
    pub(super) fn new(route: Route, outlook: &Outlook, weighted_ms: f64) -> Self {
        Self {
            route: route.as_str(),
            first_ms: outlook.first_ms,
            gap_ms: outlook.gap_ms,
            total_ms: outlook.total_ms,
            cloud_s: outlook.cloud_ms / 1e3,
            bytes: outlook.bytes,
            joules: outlook.joules,
            weighted_ms,
        }
    }
}

impl Routes {
    pub(super) fn options(&self) -> RouteOptions {
        self.options
    }

    fn prompts(&self) -> MutexGuard<'_, VecDeque<Arc<[TokenId]>>> {
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many leading tokens of a prompt this device need not compute, as far as it is known here.
    pub(super) fn cached(&self, ids: &[TokenId], adapter: Option<AdapterId>, kept: Option<&Kept>) -> usize {
        let common = |held: &Arc<[TokenId]>| held.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let held = self.prompts().iter().map(common).max().unwrap_or(0);
        let on_disk = kept.map_or(0, |kept| kept.tokens(adapter, ids));
        // The last token is always computed, and the disk has only whole blocks before it.
        let last = ids.len().saturating_sub(1);
        held.min(last).max(on_disk.min(last / BLOCK_TOKENS * BLOCK_TOKENS))
    }

    /// Remembers a prompt that this device has computed.
    pub(super) fn computed(&self, ids: Arc<[TokenId]>) {
        let mut prompts = self.prompts();
        prompts.retain(|held| !ids.starts_with(held));
        prompts.push_front(ids);
        prompts.truncate(PROMPTS);
    }

    /// Forgets the prompts: the engine has left the memory.
    pub(super) fn forget(&self) {
        self.prompts().clear();
    }

    /// Stores the times of the cloud's answers for the next start.
    pub(super) fn keep(&self, recent: &Recent) {
        let Some((settings, file)) = &self.kept else { return };
        if let Err(err) = settings.remember_profile(file, recent) {
            warn!(err = chain(&err), "the times of the cloud's answers are not remembered");
        }
    }
}

impl Agent {
    /// Makes the agent choose a route for each turn in mode `relay`. It keeps the times of this cloud's
    /// answers in the settings.
    #[must_use]
    pub fn with_routes(mut self, options: RouteOptions, settings: &Settings, cloud: &str) -> Self {
        let file = file_of_cloud(cloud);
        if let Some(recent) = settings.profile(&file) {
            *self.recent() = recent;
        }
        let kept = Some((settings.clone(), file));
        self.routes = Some(Arc::new(Routes { options, kept, prompts: Mutex::default() }));
        self
    }

    /// Notes what an answer has taught. `bytes`: of the texts that were sent; `whole`: the tokens of the
    /// whole prompt, if this device knows them.
    pub(super) async fn learn(
        &self,
        timeline: &Timeline,
        bytes: Option<usize>,
        whole: Option<Arc<[TokenId]>>,
    ) {
        self.recent().add(timeline, bytes, now_s());
        let Some(routes) = self.routes.clone() else { return };
        if let Some(ids) = whole.filter(|_| timeline.is_read_whole()) {
            routes.computed(ids);
        }
        if timeline.ttft_cloud_ms.is_some() {
            let recent = self.recent().clone();
            // A file that cannot be written was told; the answer is not worse for it.
            let _kept = tokio::task::spawn_blocking(move || routes.keep(&recent)).await;
        }
    }
}

/// Returns seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the mode of a route.
pub(super) fn mode_of(route: Route) -> RelayMode {
    match route {
        Route::Device => RelayMode::DeviceOnly,
        Route::Relay => RelayMode::Relay,
        Route::Cloud => RelayMode::CloudOnly,
    }
}

/// Chooses the mode of a turn, and reports the choice.
pub(super) fn chosen(known: &Known<'_>) -> (RelayMode, Option<RouteReport>) {
    let turn = turn(known);
    let weights = weights(known, turn.device_watts);
    let choice = match choose(&turn, &weights) {
        Ok(choice) => choice,
        Err(err) => {
            // The relay reports bad numbers itself.
            debug!(err = chain(&err), "no route is chosen");
            return (RelayMode::Relay, None);
        }
    };
    (mode_of(choice.route), Some(report(known, &choice, weights)))
}

fn report(known: &Known<'_>, choice: &Choice, weights: Weights) -> RouteReport {
    let forecasts =
        choice.forecasts.iter().map(|of| OutlookReport::new(of.route, &of.outlook, of.weighted_ms));
    RouteReport {
        chosen: choice.route.as_str(),
        why: choice.why.as_str(),
        prompt_tokens: known.prompt.ids.len(),
        cached_tokens: known.cached,
        answer_tokens: known.answer_tokens,
        forecasts: forecasts.collect(),
        weights,
        cloud_ms_per_token: known.cloud.map_or(0.0, |cloud| cloud.cost.prefill_ms_per_token),
        metered: known.options.is_metered,
        power: known.power,
    }
}

fn weights(known: &Known<'_>, watts: Option<f64>) -> Weights {
    let plain = Weights::default();
    Weights {
        device_wait: if known.power.spares() { SPARED } else { plain.device_wait },
        kilobyte: if known.options.is_metered { METERED_KILOBYTE_MS } else { plain.kilobyte },
        joule: if watts.is_some() { BATTERY_JOULE_MS } else { plain.joule },
        ..plain
    }
}

fn turn(known: &Known<'_>) -> Turn {
    let Question { scene, refine, tokens_max, .. } = known.question;
    let scene = &scene.settings;
    let whole = known.prompt.ids.len();
    let refines = scene.refine && refine.mode.as_deref() != Some("none");
    let parts = || known.prompt.segments.iter().zip(&known.refinable).filter(|(_, may)| **may && refines);
    let content: usize = parts().map(|(part, _)| part.spans.len()).sum();
    let prefix = parts().next().map_or(whole, |(part, _)| part.tokens.start);
    let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    let content = content.min(whole.saturating_sub(prefix));
    let prompt = PromptShape {
        fixed_tokens: count(whole - content),
        content_tokens: count(content),
        prefix_tokens: count(prefix.min(whole - content)),
        cached_tokens: count(known.cached),
    };
    let unknown = CloudCost {
        ttft_base_ms: 0.0,
        prefill_ms_per_token: 0.0,
        decode_ms: 0.0,
        rtt_ms: 0.0,
        queue_ms: 0.0,
        compress_ms: 0.0,
    };
    let cloud = known.cloud.filter(|cloud| whole as f64 <= cloud.tokens_max);
    let answer_tokens_max = count((*tokens_max).max(1));
    Turn {
        input: OptimizerInput {
            prompt,
            device: known.device,
            cloud: cloud.map_or(unknown, |cloud| cloud.cost),
            scene: ScenePolicy {
                xi: f64::from(scene.xi),
                ratio: refine.ratio.or(scene.ratio).map(f64::from),
                assist_tokens: known.question.assist_tokens.or(scene.assist_tokens),
                assist_floor: scene.assist_floor,
                tau_ms: f64::from(scene.tau_ms),
                answer_tokens_max,
                slow_device: SlowDevice::AcceptGap,
            },
            load: 0.0,
        },
        is_cloud_known: cloud.is_some(),
        device_room: known.room as f64,
        answer_tokens: known.answer_tokens.min(f64::from(answer_tokens_max)).max(1.0),
        is_paced: known.question.pace == PaceMode::Paced,
        request_bytes: known.bytes as f64,
        device_watts: known.power.watts,
    }
}
