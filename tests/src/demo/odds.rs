//! Measures how often the demo's answers are right, with the same programs, questions and emulated speeds
//! over many seeds.

use std::ops::RangeInclusive;

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::task::JoinSet;

use super::{About, Demo, DemoOptions};

/// Demos that run at the same time; emulated passes mostly wait.
const AT_ONCE: usize = 4;

/// The result when the models and the questions last changed.
pub const MEASURED: Odds = Odds { first: 1001, last: 1100, cloud: 97, relay: 98 };

/// Number of right answers; each seed has one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Odds {
    /// The first seed.
    pub first: u64,
    /// The last seed.
    pub last: u64,
    /// Right answers of the cloud alone.
    pub cloud: usize,
    /// Right answers of the relay.
    pub relay: usize,
}

impl Odds {
    /// Returns the seeds.
    #[must_use]
    pub fn seeds(&self) -> RangeInclusive<u64> {
        self.first..=self.last
    }

    /// Returns the number of seeds.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.seeds().count()
    }

    /// Describes the result in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "right of {} answers about other documents: the relay's {}, the cloud's alone {} (./x demo --seeds {}..{})",
            self.asked(),
            self.relay,
            self.cloud,
            self.first,
            self.last
        )
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        json!({
            "seeds": [self.first, self.last],
            "asked": self.asked(),
            "relay_correct": self.relay,
            "cloud_alone_correct": self.cloud,
        })
    }
}

/// The result of one seed.
struct Judged {
    seed: u64,
    cloud: bool,
    relay: bool,
}

/// Asks the cloud alone and the relay about the document of every seed; `said` gets a line for each wrong
/// answer.
///
/// # Errors
/// Fails if a program or model is missing, or a run failed.
pub async fn odds(
    options: &DemoOptions,
    seeds: RangeInclusive<u64>,
    said: &mut dyn FnMut(&str),
) -> anyhow::Result<Odds> {
    let mut odds = Odds { first: *seeds.start(), last: *seeds.end(), cloud: 0, relay: 0 };
    if !matches!(options.about, About::Generated) || odds.asked() == 0 {
        bail!("the odds are those of generated documents of one seed or more");
    }
    let mut asked = JoinSet::new();
    let mut left = seeds;
    loop {
        while asked.len() < AT_ONCE
            && let Some(seed) = left.next()
        {
            asked.spawn(judge(DemoOptions { seed, quiet: true, ..options.clone() }));
        }
        let Some(judged) = asked.join_next().await else { return Ok(odds) };
        let Judged { seed, cloud, relay } = judged.context("a demo panicked")??;
        odds.cloud += usize::from(cloud);
        odds.relay += usize::from(relay);
        if !(cloud && relay) {
            let word = |right| if right { "right" } else { "wrong" };
            said(&format!("seed {seed}: the cloud alone {}, the relay {}", word(cloud), word(relay)));
        }
    }
}

async fn judge(options: DemoOptions) -> anyhow::Result<Judged> {
    let demo = Demo::new(options);
    let seed = demo.options.seed;
    let scratch = tempfile::tempdir().context("make a folder for a demo")?;
    let task = demo.task(scratch.path()).await?;
    let (cloud, _) = demo.ask_cloud(&task, scratch.path(), &["--mode", "cloud"]).await?;
    let (relay, _) = demo.ask_cloud(&task, scratch.path(), &[]).await?;
    let [cloud, relay] = [cloud, relay].map(|report| task.is_right(&report) == Some(true));
    Ok(Judged { seed, cloud, relay })
}
