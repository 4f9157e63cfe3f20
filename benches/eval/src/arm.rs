//! The arms that are compared: ways to answer a question.
//!
//! The name of an arm can be parsed back to the arm. Results files and reports identify arms by these names.

use std::fmt;
use std::str::FromStr;

use baton_baselines::Ranking;
use baton_protocol::Corrector;

/// Policy for evicting keys and values on a device that prefills the whole prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// Keeps what the last queries of the prompt attend to (SnapKV, Li 2024).
    SnapKv,
    /// Keeps what all queries of the prompt attend to, and the latest tokens (H2O, Zhang 2023).
    HeavyHitters,
    /// Keeps the first tokens and the latest (StreamingLLM, Xiao 2023), at their original positions.
    Streaming,
}

impl Eviction {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::SnapKv, Self::HeavyHitters, Self::Streaming];

    /// Returns its name: `snapkv`, `h2o` or `streaming`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SnapKv => "snapkv",
            Self::HeavyHitters => "h2o",
            Self::Streaming => "streaming",
        }
    }
}

/// A way to answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Arm {
    /// `cloud`: the cloud's model over the whole prompt.
    Cloud,
    /// `device:NAME`: a device's model over the whole prompt.
    Device {
        /// Name of the device.
        device: String,
    },
    /// `mask:MODE@R`: no answer, only the sentences that are kept.
    Mask {
        /// How sentences are ranked.
        ranking: Ranking,
        /// r.
        ratio: f32,
    },
    /// `relay:NAME:MODE@R:L:CORRECTOR`: the device over the refined prompt and the cloud's first L tokens.
    Relay {
        /// Name of the device.
        device: String,
        /// How sentences are ranked.
        ranking: Ranking,
        /// r.
        ratio: f32,
        /// L, the number of the cloud's tokens; at least 1.
        assist_tokens: usize,
        /// The side whose token counts if they differ.
        corrector: Corrector,
    },
    /// `predict:NAME:MODE@R`: no answer, only how well the device's model predicts the right answer and the
    /// cloud's from the refined prompt.
    Predict {
        /// Name of the device.
        device: String,
        /// How sentences are ranked.
        ranking: Ranking,
        /// r.
        ratio: f32,
    },
    /// `evict:NAME:POLICY@R`: a device reads the whole prompt, then keeps a share r of its keys and values.
    Evict {
        /// Name of the device.
        device: String,
        /// The policy that chooses them.
        policy: Eviction,
        /// The share that is kept.
        ratio: f32,
    },
}

/// The text is not the name of an arm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no arm, must be cloud, device:NAME, mask:MODE@R, relay:NAME:MODE@R:L:cloud|device, predict:NAME:MODE@R or evict:NAME:POLICY@R"
)]
pub struct UnknownArm {
    name: String,
}

impl Arm {
    /// Makes a relay arm in which the cloud's tokens count.
    pub fn relay(device: &str, ranking: impl Into<Ranking>, ratio: f32, assist_tokens: usize) -> Self {
        let (device, ranking) = (device.to_owned(), ranking.into());
        Self::Relay { device, ranking, ratio, assist_tokens, corrector: Corrector::Cloud }
    }

    /// Makes the arm of a device alone.
    pub fn device(device: &str) -> Self {
        Self::Device { device: device.to_owned() }
    }

    /// Returns the ranking of the mask that the arm needs, or `None` if it needs no mask.
    pub fn ranking(&self) -> Option<Ranking> {
        match self {
            Self::Mask { ranking, .. } | Self::Relay { ranking, .. } | Self::Predict { ranking, .. } => {
                Some(*ranking)
            }
            Self::Cloud | Self::Device { .. } | Self::Evict { .. } => None,
        }
    }

    /// Returns r, or `None` if the arm has none.
    pub fn ratio(&self) -> Option<f32> {
        match self {
            Self::Mask { ratio, .. }
            | Self::Relay { ratio, .. }
            | Self::Predict { ratio, .. }
            | Self::Evict { ratio, .. } => Some(*ratio),
            Self::Cloud | Self::Device { .. } => None,
        }
    }

    /// Returns whether the cloud has to read the prompt.
    pub fn needs_cloud(&self) -> bool {
        matches!(self, Self::Cloud | Self::Mask { .. } | Self::Relay { .. } | Self::Predict { .. })
    }

    /// Returns how many of the cloud's tokens the arm needs, or `None` for all.
    pub fn cloud_tokens(&self) -> Option<usize> {
        match self {
            Self::Cloud | Self::Predict { .. } => None,
            Self::Relay { assist_tokens, .. } => Some(*assist_tokens),
            Self::Mask { .. } | Self::Device { .. } | Self::Evict { .. } => Some(0),
        }
    }

    /// Returns the name of the device that the arm runs on, or `None` if it runs on none.
    pub fn device_name(&self) -> Option<&str> {
        match self {
            Self::Device { device }
            | Self::Relay { device, .. }
            | Self::Predict { device, .. }
            | Self::Evict { device, .. } => Some(device),
            Self::Cloud | Self::Mask { .. } => None,
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cloud => f.write_str("cloud"),
            Self::Device { device } => write!(f, "device:{device}"),
            Self::Mask { ranking, ratio } => write!(f, "mask:{ranking}@{ratio}"),
            Self::Relay { device, ranking, ratio, assist_tokens, corrector } => {
                let corrector = match corrector {
                    Corrector::Cloud => "cloud",
                    Corrector::Device => "device",
                };
                write!(f, "relay:{device}:{ranking}@{ratio}:{assist_tokens}:{corrector}")
            }
            Self::Predict { device, ranking, ratio } => write!(f, "predict:{device}:{ranking}@{ratio}"),
            Self::Evict { device, policy, ratio } => write!(f, "evict:{device}:{}@{ratio}", policy.as_str()),
        }
    }
}

/// Parses `NAME@R` with 0 < R <= 1.
fn at_ratio(text: &str) -> Option<(&str, f32)> {
    let (name, ratio) = text.rsplit_once('@')?;
    let ratio: f32 = ratio.parse().ok()?;
    (ratio > 0.0 && ratio <= 1.0).then_some((name, ratio))
}

fn parse(text: &str) -> Option<Arm> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "cloud" if rest.is_empty() => Some(Arm::Cloud),
        "device" if is_device_name(rest) => Some(Arm::device(rest)),
        "mask" => {
            let (name, ratio) = at_ratio(rest)?;
            Some(Arm::Mask { ranking: name.parse().ok()?, ratio })
        }
        "predict" => {
            let (device, rest) = rest.split_once(':')?;
            let (name, ratio) = at_ratio(rest)?;
            let ranking = name.parse().ok()?;
            is_device_name(device).then(|| Arm::Predict { device: device.to_owned(), ranking, ratio })
        }
        "evict" => {
            let (device, rest) = rest.split_once(':')?;
            let (name, ratio) = at_ratio(rest)?;
            let policy = Eviction::ALL.into_iter().find(|policy| policy.as_str() == name)?;
            is_device_name(device).then(|| Arm::Evict { device: device.to_owned(), policy, ratio })
        }
        "relay" => {
            let (rest, corrector) = rest.rsplit_once(':')?;
            let corrector = match corrector {
                "cloud" => Corrector::Cloud,
                "device" => Corrector::Device,
                _ => return None,
            };
            let (rest, assist_tokens) = rest.rsplit_once(':')?;
            let assist_tokens = assist_tokens.parse().ok().filter(|&tokens: &usize| tokens > 0)?;
            let (device, rest) = rest.split_once(':')?;
            let (name, ratio) = at_ratio(rest)?;
            let ranking = name.parse().ok()?;
            let device = is_device_name(device).then(|| device.to_owned())?;
            Some(Arm::Relay { device, ranking, ratio, assist_tokens, corrector })
        }
        _ => None,
    }
}

/// Returns whether `name` is a valid device name: letters, digits, `-`, `_` and `.`.
pub fn is_device_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl FromStr for Arm {
    type Err = UnknownArm;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| UnknownArm { name: text.chars().take(100).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_refine::Mode;

    #[test]
    fn names_read_back() {
        for name in [
            "cloud",
            "device:phone",
            "mask:attention@0.25",
            "mask:random:7@0.1",
            "relay:phone:bm25@0.5:16:device",
            "relay:a.b-c:random:3@1:1:cloud",
            "evict:phone:h2o@0.25",
            "predict:phone:none@1",
        ] {
            let arm: Arm = name.parse().unwrap();
            assert_eq!(arm.to_string(), name);
        }
        assert_eq!(Arm::relay("p", Mode::Attention, 0.25, 4).to_string(), "relay:p:attention@0.25:4:cloud");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "cloud:x",
            "device:",
            "device:a b",
            "mask:attention",
            "mask:attention@0",
            "mask:attention@1.5",
            "mask:nothing@0.5",
            "relay:p:attention@0.25:0:cloud",
            "relay:p:attention@0.25:1",
            "evict:p:lru@0.5",
        ] {
            let err = name.parse::<Arm>().unwrap_err().to_string();
            assert!(err.contains("must be cloud, device:NAME"), "{name}: {err}");
        }
    }
}
