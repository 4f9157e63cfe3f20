//! The table of plans: the optimizer's result for every scene, device class, prompt length and network class.
//!
//! Computed from coefficients and never stored: a cell costs well under a microsecond. A request that carries
//! the device's own values is planned with those. The table is for people, and for values that a request does
//! not carry.

use crate::cost::{CloudCost, DeviceCost};
use crate::optimizer::{InputError, OptimizerInput, Plan, PromptShape, ScenePolicy, relay};
use crate::verify::with_first_check;

/// Representative lengths of whole prompts, in tokens; each is twice the one before.
pub const LENGTHS: [u32; 8] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536];

/// A scene, and the fixed part of its prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct TableScene {
    /// The scene's id.
    pub name: String,
    /// The scene's settings.
    pub policy: ScenePolicy,
    /// `p`: tokens that are never refined. A prompt of at most this length has no content.
    pub fixed_tokens: u32,
    /// The fixed tokens at the start of the prompt.
    pub prefix_tokens: u32,
    /// Tokens of the first draft, if the device's tokens are checked before they are shown.
    pub draft_tokens: Option<usize>,
}

/// A class of devices.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClass {
    /// Its name in requests.
    pub name: String,
    /// The typical costs of its devices.
    pub cost: DeviceCost,
}

/// A class of networks.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkClass {
    /// Its name in requests.
    pub name: String,
    /// The round-trip time that it adds to the time to the first token.
    pub rtt_ms: f64,
}

/// The axes of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableAxes {
    /// Scenes.
    pub scenes: Vec<TableScene>,
    /// Device classes.
    pub devices: Vec<DeviceClass>,
    /// Lengths of whole prompts in tokens, for example [`LENGTHS`].
    pub lengths: Vec<u32>,
    /// Network classes.
    pub networks: Vec<NetworkClass>,
    /// The cloud's costs; `rtt_ms` is replaced by that of the network class.
    pub cloud: CloudCost,
}

/// One cell of the table: an index into each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePlace {
    /// Index into [`TableAxes::scenes`].
    pub scene: usize,
    /// Index into [`TableAxes::devices`].
    pub device: usize,
    /// Index into [`TableAxes::lengths`].
    pub length: usize,
    /// Index into [`TableAxes::networks`].
    pub network: usize,
}

impl TableAxes {
    /// Returns the optimizer's input at `place`.
    ///
    /// # Panics
    /// If `place` is outside the axes.
    #[must_use]
    pub fn input(&self, place: TablePlace) -> OptimizerInput {
        let scene = &self.scenes[place.scene];
        let content_tokens = self.lengths[place.length].saturating_sub(scene.fixed_tokens);
        let device = self.devices[place.device].cost;
        let cloud = CloudCost { rtt_ms: self.networks[place.network].rtt_ms, ..self.cloud };
        OptimizerInput {
            prompt: PromptShape {
                fixed_tokens: scene.fixed_tokens,
                content_tokens,
                prefix_tokens: scene.prefix_tokens.min(scene.fixed_tokens),
                cached_tokens: 0,
            },
            device: scene.draft_tokens.map_or(device, |drafted| with_first_check(device, &cloud, drafted)),
            cloud,
            scene: scene.policy,
            load: 0.0,
        }
    }

    /// Iterates over every place, scenes outermost and lengths innermost.
    pub fn places(&self) -> impl Iterator<Item = TablePlace> + '_ {
        let (devices, networks, lengths) = (self.devices.len(), self.networks.len(), self.lengths.len());
        let count = self.scenes.len() * devices * networks * lengths;
        (0..count).map(move |index| TablePlace {
            scene: index / (lengths * networks * devices),
            device: index / (lengths * networks) % devices,
            network: index / lengths % networks,
            length: index % lengths,
        })
    }

    /// Returns the plan at every place, in the order of [`Self::places`].
    ///
    /// # Errors
    /// [`InputError`] for the first place with a number outside its range.
    pub fn plans(&self) -> Result<Vec<Plan>, InputError> {
        self.places().map(|place| relay(&self.input(place))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{SlowDevice, Verdict};

    fn axes() -> TableAxes {
        let policy = ScenePolicy {
            xi: 0.25,
            ratio: None,
            assist_tokens: None,
            assist_floor: 4,
            tau_ms: 100.0,
            answer_tokens_max: 4_096,
            slow_device: SlowDevice::AcceptGap,
        };
        let scene = |name: &str, policy| TableScene {
            name: name.to_owned(),
            policy,
            fixed_tokens: 100,
            prefix_tokens: 60,
            draft_tokens: None,
        };
        let device = |name: &str, prefill_ms_per_token| DeviceClass {
            name: name.to_owned(),
            cost: DeviceCost {
                prefill_ms_per_token,
                prefill_ms_per_token2: 0.0,
                decode_ms: 45.0,
                decompress_ms: 5.0,
            },
        };
        let network = |name: &str, rtt_ms| NetworkClass { name: name.to_owned(), rtt_ms };
        TableAxes {
            scenes: vec![scene("a", policy), scene("whole", ScenePolicy { xi: 1.0, ..policy })],
            devices: vec![device("slow", 2.5), device("fast", 0.05)],
            lengths: vec![64, 4_096, 8_192],
            networks: vec![network("wifi", 20.0), network("lte", 60.0)],
            cloud: CloudCost {
                ttft_base_ms: 60.0,
                prefill_ms_per_token: 0.1,
                decode_ms: 30.0,
                rtt_ms: 1e6,
                queue_ms: 0.0,
                compress_ms: 1.0,
            },
        }
    }

    #[test]
    fn every_place_is_planned_by_its_own_numbers() {
        let axes = axes();
        let places: Vec<TablePlace> = axes.places().collect();
        let plans = axes.plans().unwrap();
        assert_eq!((places.len(), plans.len()), (24, 24));
        let at = |scene, device, network, length| {
            let place = TablePlace { scene, device, length, network };
            let index = places.iter().position(|&other| other == place).expect("every place is there");
            plans[index]
        };
        assert_eq!(at(0, 0, 0, 1).verdict, Verdict::Relay);
        assert_eq!(at(0, 1, 0, 1).verdict, Verdict::DeviceAlone);
        assert_eq!(at(1, 0, 0, 1).verdict, Verdict::NoRefinement);
        let network = at(0, 0, 1, 2).predicted.ttft_c_ms - at(0, 0, 0, 2).predicted.ttft_c_ms;
        assert!((network - 40.0).abs() < 1e-9, "{network}");
        assert!(at(0, 0, 0, 2).assist_tokens > at(0, 0, 0, 1).assist_tokens, "a longer prompt, more tokens");
        // The prompt is shorter than the fixed part, so there is nothing to refine.
        assert_eq!(at(0, 0, 0, 0).ratio, 1.0);
    }
}
