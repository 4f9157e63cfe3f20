//! The route of a turn: the device alone, the cloud alone, or both as a relay.
//!
//! Forecasts for each route when the first token comes, how long the answer takes, and what it costs. The
//! route with the least weighted time is chosen ([`Weights`]). The same weights apply to measured times, so
//! that a choice can be audited: [`Weights::of`] of what was measured, compared between routes.
//!
//! What always holds: a route that is not possible has no forecast. A cloud that was not measured yet has no
//! forecast either; then a relay is tried, which measures it.

use crate::optimizer::{InputError, OptimizerInput, Plan, Verdict, optimize};

/// Who writes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// The device writes all of it, and nothing is sent.
    Device,
    /// The cloud begins, the device takes over.
    Relay,
    /// The cloud writes all of it.
    Cloud,
}

impl Route {
    /// All routes. Of equally good ones, the first is taken.
    pub const ALL: [Route; 3] = [Self::Device, Self::Relay, Self::Cloud];

    /// Returns the route's word, as in `--mode`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Relay => "relay",
            Self::Cloud => "cloud",
        }
    }

    /// Returns whether the cloud takes part.
    #[must_use]
    pub const fn asks_cloud(self) -> bool {
        !matches!(self, Self::Device)
    }
}

/// What a turn is expected to need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// The prompt, the costs of device and cloud, and the scene. The cloud's costs are used only if
    /// `is_cloud_known`.
    pub input: OptimizerInput,
    /// Whether the cloud's costs were measured.
    pub is_cloud_known: bool,
    /// The most prompt tokens that the device takes.
    pub device_room: f64,
    /// Expected tokens of the answer, at least 1.
    pub answer_tokens: f64,
    /// Whether a person reads along: then tokens may come up to `tau` apart. If not, only the time to the
    /// end counts.
    pub is_paced: bool,
    /// Bytes of the request to the cloud.
    pub request_bytes: f64,
    /// Power that the device takes when it computes, in watts, if that is known.
    pub device_watts: Option<f64>,
}

/// What a route costs. Times are milliseconds since the question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// The first token.
    pub first_ms: f64,
    /// The longest time between two tokens.
    pub gap_ms: f64,
    /// The last token.
    pub total_ms: f64,
    /// How long the cloud computes for it.
    pub cloud_ms: f64,
    /// Bytes that are sent.
    pub bytes: f64,
    /// Energy that the device's computing takes, if its power is known.
    pub joules: Option<f64>,
}

/// What times and amounts count, in milliseconds of waiting for the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// What a millisecond of waiting counts if the cloud takes part. Of 3.4, the cloud is asked only if it is
    /// expected to shorten the wait by 70 %. Then it shortens it by 60 % also if forecasts are 15 % wrong.
    pub cloud_wait: f64,
    /// What a millisecond of waiting for the device alone counts. More than 1 if the device should rest.
    pub device_wait: f64,
    /// What a millisecond of the cloud's computing counts.
    pub cloud_ms: f64,
    /// What a kilobyte that is sent counts: more than 0 if the network is metered.
    pub kilobyte: f64,
    /// What a joule of the device counts: more than 0 on a battery.
    pub joule: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { cloud_wait: 3.4, device_wait: 1.0, cloud_ms: 0.1, kilobyte: 0.0, joule: 0.0 }
    }
}

impl Weights {
    /// Returns the weighted time of a route with this outlook, in milliseconds. `tau_ms` is the time in which
    /// a reader takes a token; `None` if nobody reads along. `tokens` is the length of the answer.
    #[must_use]
    pub fn of(&self, route: Route, outlook: &Outlook, tau_ms: Option<f64>, tokens: f64) -> f64 {
        let waits = match tau_ms {
            // A reader waits for the first token, and for what comes later than one token each tau.
            Some(tau_ms) => {
                let pace_ms = (tokens - 1.0).max(0.0) * tau_ms;
                outlook.first_ms + (outlook.total_ms - outlook.first_ms - pace_ms).max(0.0)
            }
            None => outlook.total_ms,
        };
        let wait = if route.asks_cloud() { self.cloud_wait } else { self.device_wait };
        wait * waits
            + self.cloud_ms * outlook.cloud_ms
            + self.kilobyte * outlook.bytes / 1e3
            + self.joule * outlook.joules.unwrap_or(0.0)
    }
}

/// Why a route was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It has the least weighted time.
    Least,
    /// Nothing else is possible.
    Only,
    /// The cloud was not measured yet. Asking it measures it.
    Unmeasured,
}

impl Why {
    /// Returns the word for programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Least => "least",
            Self::Only => "only",
            Self::Unmeasured => "unmeasured",
        }
    }
}

/// A route with what it is expected to cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// The route.
    pub route: Route,
    /// Its outlook.
    pub outlook: Outlook,
    /// Its weighted time, in milliseconds.
    pub weighted_ms: f64,
}

/// The chosen route, and the forecasts of all that are possible and known.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The chosen route.
    pub route: Route,
    /// Why.
    pub why: Why,
    /// Forecasts, in the order of [`Route::ALL`].
    pub forecasts: Vec<Forecast>,
}

/// Chooses the route of a turn that a cloud may be asked for.
///
/// # Errors
/// [`InputError`] if a number is out of its range.
pub fn choose(turn: &Turn, weights: &Weights) -> Result<Choice, InputError> {
    turn.input.check()?;
    let fits = turn.input.prompt.tokens() <= turn.device_room;
    let plan = optimize(&turn.input)?;
    let refined =
        f64::from(turn.input.prompt.fixed_tokens) + plan.ratio * f64::from(turn.input.prompt.content_tokens);
    let possible = |route: Route| match route {
        Route::Device => fits,
        Route::Relay => refined <= turn.device_room,
        Route::Cloud => true,
    };
    let forecast = |route: Route| {
        let outlook = turn.outlook(route, &plan);
        let tau_ms = turn.is_paced.then_some(turn.input.scene.tau_ms);
        let weighted_ms = weights.of(route, &outlook, tau_ms, turn.answer_tokens);
        Forecast { route, outlook, weighted_ms }
    };
    let routes: Vec<Route> = Route::ALL.into_iter().filter(|route| possible(*route)).collect();
    let known = routes.iter().filter(|route| turn.is_cloud_known || !route.asks_cloud());
    let forecasts: Vec<Forecast> = known.map(|route| forecast(*route)).collect();
    let least = forecasts.iter().min_by(|a, b| a.weighted_ms.total_cmp(&b.weighted_ms));
    let (route, why) = match (&routes[..], least) {
        ([only], _) => (*only, Why::Only),
        (_, Some(least)) if turn.is_cloud_known => (least.route, Why::Least),
        (all, _) => {
            // The relay if it is possible, else the cloud, which always is.
            (all.iter().copied().find(|route| route.asks_cloud()).unwrap_or(Route::Cloud), Why::Unmeasured)
        }
    };
    Ok(Choice { route, why, forecasts })
}

impl Turn {
    /// Returns what a route is expected to cost.
    fn outlook(&self, route: Route, plan: &Plan) -> Outlook {
        match route {
            Route::Device => self.by_device(),
            Route::Cloud => self.by_cloud(),
            Route::Relay if plan.verdict == Verdict::CloudAlone => self.by_cloud(),
            Route::Relay => self.by_relay(plan),
        }
    }

    fn by_device(&self) -> Outlook {
        let (device, prompt) = (&self.input.device, &self.input.prompt);
        let cached = f64::from(prompt.cached_tokens);
        let first_ms = device.prefill_ms(cached, prompt.tokens() - cached);
        let written_ms = (self.answer_tokens - 1.0) * device.decode_ms;
        let total_ms = first_ms + written_ms;
        Outlook {
            first_ms,
            gap_ms: device.decode_ms,
            total_ms,
            cloud_ms: 0.0,
            bytes: 0.0,
            joules: self.joules(total_ms),
        }
    }

    /// Returns the time that the cloud computes before its first token.
    fn cloud_prefill_ms(&self) -> f64 {
        self.input.cloud.prefill_ms_per_token * self.input.prompt.tokens() + self.input.cloud.compress_ms
    }

    fn by_cloud(&self) -> Outlook {
        let cloud = &self.input.cloud;
        let (first_ms, written_ms) =
            (cloud.ttft_ms(self.input.prompt.tokens()), (self.answer_tokens - 1.0) * cloud.decode_ms);
        Outlook {
            first_ms,
            gap_ms: cloud.decode_ms,
            total_ms: first_ms + written_ms,
            cloud_ms: self.cloud_prefill_ms() + written_ms,
            bytes: self.request_bytes,
            joules: self.joules(0.0),
        }
    }

    fn by_relay(&self, plan: &Plan) -> Outlook {
        let (cloud, device) = (&self.input.cloud, &self.input.device);
        let takeover = self.input.takeover(plan.ratio);
        let assist = f64::from(plan.assist_tokens);
        let by_cloud = assist.min(self.answer_tokens);
        // The device may be ready before the cloud is; then its own token is the first.
        let first_ms = plan.predicted.ttft_c_ms.min(self.by_device().first_ms);
        let own = (self.answer_tokens - assist).max(0.0);
        // The cloud cannot send faster than it writes, even if the device is ready long before.
        let by_cloud_ms = plan.predicted.ttft_c_ms + (by_cloud - 1.0) * cloud.decode_ms;
        let (gap_ms, total_ms) = if own > 0.0 {
            let taken_over_ms = (plan.predicted.takeover_ms).max(by_cloud_ms + takeover.verify_ms(assist));
            let gap_ms = ((taken_over_ms - first_ms) / assist).max(device.decode_ms);
            (gap_ms, taken_over_ms + (own - 1.0) * device.decode_ms)
        } else {
            // The pacer shows the cloud's tokens at the gap that the takeover needs, and not slower than tau.
            let gap_ms = plan.predicted.gap_ms.min(self.input.scene.tau_ms).max(cloud.decode_ms);
            let gap_ms = if self.is_paced { gap_ms } else { cloud.decode_ms };
            (gap_ms, first_ms + (self.answer_tokens - 1.0) * gap_ms)
        };
        let busy_ms = takeover.remaining_ms + takeover.verify_ms(by_cloud) + own * device.decode_ms;
        Outlook {
            first_ms,
            gap_ms,
            total_ms,
            cloud_ms: self.cloud_prefill_ms() + (by_cloud - 1.0) * cloud.decode_ms,
            bytes: self.request_bytes,
            joules: self.joules(busy_ms),
        }
    }

    fn joules(&self, busy_ms: f64) -> Option<f64> {
        self.device_watts.map(|watts| watts * busy_ms / 1e3)
    }
}

#[cfg(test)]
mod tests;
