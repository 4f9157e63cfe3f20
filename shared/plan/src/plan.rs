//! A plan: which device computes which layers, in what order, in how many rounds.
//!
//! A share counts the layers of all rounds. What a device computes in one round follows from it: its layers
//! are spread over the rounds as evenly as possible. So windows differ by at most one layer and the last
//! round is not a special case. Layers run through the devices in ring order, round by round.

use serde::{Deserialize, Serialize};

use crate::cluster::ClusterError;

/// The share of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// `l_m`: layers over all rounds. Only a head may have none.
    pub layers: usize,
    /// `k n_m`: how many of them run on the GPU.
    pub gpu_layers: usize,
    /// `P_m`: bytes of the memory budget that are kept for reading ahead while others compute.
    pub prefetch_bytes: f64,
    /// Devices that relay this one's output to the next, because the two do not see each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<String>,
}

/// Which device computes which layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Layers of the model.
    pub layers: usize,
    /// `k`.
    pub rounds: usize,
    /// The ring, the head first.
    pub shares: Vec<Share>,
}

/// A run of layers that one device computes in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The round, from 0.
    pub round: usize,
    /// Index in the ring; the head's is 0.
    pub place: usize,
    /// First layer.
    pub begin: usize,
    /// One past the last layer.
    pub end: usize,
    /// How many of them run on the GPU, the first ones of the window.
    pub gpu: usize,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The description is wrong.
    #[error(transparent)]
    Description(#[from] ClusterError),
    /// Nothing fits.
    #[error(
        "no plan for {layers} layers of `{model}`: {reason}; a shorter context, fewer sequences, a smaller model or a \
         further device would help"
    )]
    Impossible {
        /// The model.
        model: String,
        /// Its layers.
        layers: usize,
        /// The obstacle, device by device.
        reason: String,
    },
    /// Halda found no solution of its programmes.
    #[error("halda found no solution for its first assignment of devices to sets")]
    NoSolution,
    /// HiGHS is not built in.
    #[error(
        "halda needs HiGHS, which this program was built without (--no-default-features): build it with its default features, or choose another planner"
    )]
    NoSolver,
    /// HiGHS failed.
    #[error("halda's programme for k = {rounds}: solver says {status}")]
    Solver {
        /// `k`.
        rounds: usize,
        /// The solver's status.
        status: String,
    },
}

/// Returns how many layers the first `i` of `parts` parts of `total` hold together, all parts as even as
/// possible.
fn until(total: usize, parts: usize, i: usize) -> usize {
    total * i / parts
}

impl Plan {
    /// Returns all non-empty windows in the order in which a token passes through them.
    pub fn windows(&self) -> Vec<Window> {
        let mut windows = Vec::new();
        let mut begin = 0;
        for round in 0..self.rounds {
            for (place, share) in self.shares.iter().enumerate() {
                let own = [round, round + 1].map(|i| until(share.layers, self.rounds, i));
                let width = own[1] - own[0];
                if width > 0 {
                    let [before, after] = own.map(|own| until(share.gpu_layers, share.layers, own));
                    windows.push(Window { round, place, begin, end: begin + width, gpu: after - before });
                }
                begin += width;
            }
        }
        windows
    }

    /// Returns the most layers of one window at this index of the ring (`w_m`).
    pub fn widest(&self, place: usize) -> usize {
        self.shares[place].layers.div_ceil(self.rounds)
    }

    /// Whether the windows cover each layer once, in order.
    pub fn is_whole(&self) -> bool {
        let windows = self.windows();
        let gapless = windows.windows(2).all(|pair| pair[0].end == pair[1].begin);
        gapless
            && windows.first().is_some_and(|w| w.begin == 0)
            && windows.last().is_some_and(|w| w.end == self.layers)
    }
}

#[cfg(test)]
mod tests;
