//! Pacing: how fast the device shows tokens while its own prefill runs, and when it takes over the answer. It
//! also chooses the refinement ratio `r` and the number of cloud tokens `L`.
//!
//! Pure arithmetic on counts and times: it reads no clock, does no I/O, and sees neither text nor tokens.
//! What always holds: the same inputs give the same outputs, and no input (infinite, negative, not a number)
//! causes a panic.
//!
//! | module | holds |
//! |---|---|
//! | [`cost`] | time costs of the device and the cloud, in milliseconds, and their inverse |
//! | [`curves`] | `TTFT_d` over `r` and the gap over `L`, by the optimizer's equations |
//! | [`equations`] | the gap up to the takeover, and the bounds of `L` |
//! | [`explain()`] | which bound is active, and what would relax it |
//! | [`optimizer`] | the closed form of the paper's problem P: `r`, `L`, their bounds, verdicts |
//! | [`refit`] | coefficients from measurements |
//! | [`route`] | who answers a turn: device, cloud or relay, by forecasts of each |
//! | [`table`] | the optimizer's plan for every scene, device class, prompt length and network class |
//! | [`takeover`] | the forecast of the device's own first token, from its prefill progress |
//! | [`pacer`] | the speed controller: how many tokens to show now, and when to check again |
//! | [`verify`] | how long a draft is that the cloud checks, and when it must be sent |
//! | [`gaps`] | the gaps of an answer as shown, and the best possible in hindsight |
//!
//! Symbols are those of the P/D-Device paper:
//!
//! - `l`: prompt tokens; `r`: refined divided by content tokens; `L`: cloud tokens;
//! - TTFT, TPOT: time to the first token, time per output token; `_c` for cloud, `_d` for device;
//! - `tau`: the largest tolerable gap; `xi`: the smallest `r` that a scene allows;
//! - `k`, `q`: the linear and the quadratic prefill coefficient.

pub mod cost;
pub mod curves;
pub mod equations;
pub mod explain;
pub mod gaps;
pub mod millis;
pub mod optimizer;
pub mod pacer;
pub mod refit;
pub mod route;
pub mod table;
pub mod takeover;
pub mod verify;

pub use cost::{CloudCost, DeviceCost};
pub use explain::{Explanation, Goal, Knob, Relaxation, explain};
pub use gaps::{GapStats, best_gap_in_hindsight};
pub use millis::Millis;
pub use optimizer::{
    AssistBounds, BoundBy, InputError, KeepsTau, OptimizerInput, Plan, Predicted, PromptShape, ScenePolicy,
    SlowDevice, Verdict, optimize, relay, under_load,
};
pub use pacer::{PaceEvent, PaceMode, PaceStep, Pacer, PacerConfig};
pub use route::Route;
pub use table::{DeviceClass, NetworkClass, TableAxes, TablePlace, TableScene};
pub use takeover::TakeoverEstimate;
