//! Pacing: how fast the device shows tokens while its own prefill runs, when it takes the answer
//! over, and which refinement ratio `r` and number of cloud tokens `L` make that work.
//!
//! Pure arithmetic over numbers that are passed in: reads no clock, does no I/O, knows neither text
//! nor tokens, only counts and times. What always holds: the same inputs give the same outputs, and no
//! input (infinite, negative, not a number) panics.
//!
//! | module | holds |
//! |---|---|
//! | [`cost`] | what the device and the cloud cost, in milliseconds, and its inverse |
//! | [`curves`] | `TTFT_d` over `r` and the gap over `L`, as the optimizer sees them |
//! | [`equations`] | Eq. (4) as printed, (4') corrected, and the batched takeover, as functions |
//! | [`explain()`] | which bound binds, and what would relax it |
//! | [`optimizer`] | the closed form of the paper's problem P: `r`, `L`, what bounds them, verdicts |
//! | [`refit`] | coefficients from measurements |
//! | [`table`] | the optimizer's answer for every scene, device, length and network |
//! | [`takeover`] | the device's progress -> when its own first token will be there |
//! | [`pacer`] | the speed controller: what to show now, and when to look again |
//! | [`gaps`] | the gaps of an answer as shown, and the best possible in hindsight |
//!
//! Symbols are those of the P/D-Device paper: `l` prompt tokens, `r` refined / content tokens, `L` cloud
//! tokens, TTFT and TPOT with `_c` for cloud and `_d` for device, `tau` the largest tolerable gap, `xi`
//! the smallest `r` that a scene allows, `k` and `q` the linear and quadratic prefill coefficients.

pub mod cost;
pub mod curves;
pub mod equations;
pub mod explain;
pub mod gaps;
pub mod millis;
pub mod optimizer;
pub mod pacer;
pub mod refit;
pub mod table;
pub mod takeover;

pub use cost::{CloudCost, DeviceCost};
pub use explain::{Explanation, Goal, Knob, Relaxation, explain};
pub use gaps::{GapStats, best_gap_in_hindsight};
pub use millis::Millis;
pub use optimizer::{
    AssistBounds, BoundBy, InputError, KeepsTau, OptimizerInput, Plan, Predicted, PromptShape, ScenePolicy,
    SlowDevice, Verdict, Verification, optimize, relay, under_load,
};
pub use pacer::{PaceEvent, PaceMode, PaceStep, Pacer, PacerConfig};
pub use table::{DeviceClass, NetworkClass, TableAxes, TablePlace, TableScene};
pub use takeover::TakeoverEstimate;
