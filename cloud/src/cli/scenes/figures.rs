//! Inputs of the optimizer on the command line: coefficients from the database, or others to try.

use std::str::FromStr;

use baton_pacing::refit::DeviceReport;
use baton_pacing::{DeviceClass, DeviceCost, NetworkClass, TableScene};
use clap::Args;

use crate::learn::coefficients::{Coefficients, DECOMPRESS_MS};
use crate::learn::cost::Measured;
use crate::learn::forecast;
use crate::scene::Scene;

/// Coefficients to try instead of those that the service measured.
#[derive(Debug, Clone, Default, Args)]
pub struct Figures {
    /// Also a device with these costs in milliseconds: k_d for each prompt token, TPOT_d for each token
    /// written; optionally q_d between them, for each squared token
    #[arg(long = "device", value_name = "NAME=K[,Q],T")]
    pub devices: Vec<Named<DeviceReport>>,
    /// Also a network with this round trip in milliseconds
    #[arg(long = "network", value_name = "NAME=MS")]
    pub networks: Vec<Named<f64>>,
    /// A cloud with these costs in milliseconds, instead of the measured ones: k_c for each prompt token,
    /// TPOT_c for each pass
    #[arg(long, value_name = "K,T")]
    pub cloud: Option<CloudFigures>,
    /// Tokens of a question
    #[arg(long, default_value_t = forecast::QUESTION_TOKENS, value_name = "N")]
    pub question_tokens: u32,
}

/// A name with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T> {
    /// The name.
    pub name: String,
    /// Its value.
    pub value: T,
}

/// k_c and TPOT_c.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudFigures {
    prefill_ms_per_token: f64,
    decode_ms: f64,
}

/// Costs on the command line that do not have the right form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` must be {want}")]
pub struct NotFigures {
    text: String,
    want: &'static str,
}

/// Parses numbers of 0 to 60,000, separated by commas.
fn numbers(text: &str) -> Option<Vec<f64>> {
    let number = |part: &str| part.trim().parse().ok().filter(|value| (0.0..=60_000.0).contains(value));
    text.split(',').map(number).collect()
}

fn named<T>(
    text: &str,
    want: &'static str,
    value: impl Fn(&str) -> Option<T>,
) -> Result<Named<T>, NotFigures> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let found =
        parts.and_then(|(name, figures)| Some(Named { name: name.to_owned(), value: value(figures)? }));
    found.ok_or_else(|| NotFigures { text: text.to_owned(), want })
}

impl FromStr for Named<DeviceReport> {
    type Err = NotFigures;

    fn from_str(text: &str) -> Result<Self, NotFigures> {
        named(text, "NAME=K_D,TPOT_D or NAME=K_D,Q_D,TPOT_D, milliseconds from 0 to 60000", |figures| {
            let (prefill_ms_per_token, prefill_ms_per_token2, decode_ms) = match numbers(figures)?[..] {
                [k, t] => (k, 0.0, t),
                [k, q, t] => (k, q, t),
                _ => return None,
            };
            Some(DeviceReport { prefill_ms_per_token, prefill_ms_per_token2, decode_ms })
        })
    }
}

impl FromStr for Named<f64> {
    type Err = NotFigures;

    fn from_str(text: &str) -> Result<Self, NotFigures> {
        named(text, "NAME=MS, milliseconds from 0 to 60000", |figures| match numbers(figures)?[..] {
            [ms] => Some(ms),
            _ => None,
        })
    }
}

impl FromStr for CloudFigures {
    type Err = NotFigures;

    fn from_str(text: &str) -> Result<Self, NotFigures> {
        match numbers(text).as_deref() {
            Some(&[prefill_ms_per_token, decode_ms]) => Ok(CloudFigures { prefill_ms_per_token, decode_ms }),
            _ => Err(NotFigures { text: text.to_owned(), want: "K_C,TPOT_C, milliseconds from 0 to 60000" }),
        }
    }
}

impl Figures {
    /// Returns the costs of the cloud: the given ones, the measured ones, or those assumed of a small model
    /// on two cores.
    pub(super) fn cloud(&self, known: &Coefficients) -> Measured {
        let measured = forecast::cloud(known);
        match self.cloud {
            None => measured,
            Some(CloudFigures { prefill_ms_per_token, decode_ms }) => {
                Measured { prefill_ms_per_token, decode_ms, ..measured }
            }
        }
    }

    /// Returns the cloud's cost without network and queue.
    pub(super) fn cloud_cost(&self, known: &Coefficients) -> baton_pacing::CloudCost {
        forecast::cloud_cost(&self.cloud(known))
    }

    /// Returns the measured and the given device classes, or the assumed class if there are none.
    pub(super) fn device_classes(&self, known: &Coefficients) -> Vec<DeviceClass> {
        let given = self.devices.iter().map(|Named { name, value }| DeviceClass {
            name: name.clone(),
            cost: DeviceCost {
                prefill_ms_per_token: value.prefill_ms_per_token,
                prefill_ms_per_token2: value.prefill_ms_per_token2,
                decode_ms: value.decode_ms,
                decompress_ms: DECOMPRESS_MS,
            },
        });
        let mut classes: Vec<DeviceClass> =
            forecast::device_classes(known).into_iter().chain(given).collect();
        if classes.is_empty() {
            classes.push(forecast::assumed_class(known));
        }
        classes
    }

    /// Returns the assumed, measured and given networks. Measured ones replace assumed ones.
    pub(super) fn network_classes(&self, known: &Coefficients) -> Vec<NetworkClass> {
        let given =
            self.networks.iter().map(|given| NetworkClass { name: given.name.clone(), rtt_ms: given.value });
        let mut all: Vec<NetworkClass> = forecast::network_classes(known).into_iter().chain(given).collect();
        all.sort_by(|a, b| a.rtt_ms.total_cmp(&b.rtt_ms));
        all
    }

    /// Returns the scene as the optimizer takes it. Texts are counted as one token for each four bytes.
    pub(super) fn scene(&self, scene: &Scene) -> TableScene {
        forecast::table_scene(&scene.id, &scene.settings, self.question_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::coefficients::NETWORKS_ASSUMED;

    #[test]
    fn figures_are_read() {
        let device: Named<DeviceReport> = "tablet=1.5,1e-4,30".parse().unwrap();
        assert_eq!((device.name.as_str(), device.value.prefill_ms_per_token2), ("tablet", 1e-4));
        assert_eq!("x=1,2".parse::<Named<DeviceReport>>().unwrap().value.decode_ms, 2.0);
        assert_eq!("sat=600".parse::<Named<f64>>().unwrap().value, 600.0);
        assert_eq!("0.1,9".parse::<CloudFigures>().unwrap().decode_ms, 9.0);
        for bad in ["", "=1,2", "x", "x=1", "x=1,2,3,4", "x=-1,2", "x=NaN,2", "x=1,1e9"] {
            assert!(bad.parse::<Named<DeviceReport>>().is_err(), "{bad}");
        }
        let err = "lte".parse::<Named<f64>>().unwrap_err().to_string();
        assert_eq!(err, "`lte` must be NAME=MS, milliseconds from 0 to 60000");
    }

    #[test]
    fn what_is_measured_replaces_what_is_assumed() {
        let figures = Figures::default();
        let none = Coefficients::default();
        assert_eq!(figures.device_classes(&none)[0].name, "assumed");
        assert_eq!(figures.network_classes(&none).len(), NETWORKS_ASSUMED.len());
        let known = Coefficients {
            networks: [("wifi".to_owned(), crate::learn::coefficients::Known { value: 7.0, samples: 5 })]
                .into(),
            ..none
        };
        let networks = figures.network_classes(&known);
        assert_eq!(networks.len(), NETWORKS_ASSUMED.len());
        assert!(networks.iter().any(|network| network.name == "wifi" && network.rtt_ms == 7.0));
    }
}
