//! Reads the registry again and again, and pauses rollouts that devices could not load.

use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::config::RegistryConfig;
use crate::fleet::Fleet;
use crate::fleet::source::{RegistryReader, SourceError};
use crate::store::{Store, now_ms};

/// How often the registry is read, and rollouts are looked at.
const PERIOD: Duration = Duration::from_secs(10);

/// Makes what the service knows of devices' models; the registry was not read yet.
pub(super) fn fleet(config: Option<&RegistryConfig>) -> Fleet {
    let Some(config) = config else { return Fleet::default() };
    Fleet { registry: Some(config.source.clone()), mirrors: config.mirrors.clone(), ..Fleet::default() }
}

/// Reads the registry once, and begins to read it again and again. A registry that is away is only a warning,
/// because devices go on with what they have.
///
/// # Errors
/// Fails if no HTTP client can be made.
pub(super) async fn watch(
    config: Option<&RegistryConfig>,
    fleet: Fleet,
    store: Store,
) -> anyhow::Result<JoinHandle<()>> {
    let mut reader = match config {
        Some(RegistryConfig { source, keys, token, .. }) => {
            Some(RegistryReader::new(source.clone(), keys.clone(), token.clone())?)
        }
        None => None,
    };
    let mut failing = false;
    if let Some(reader) = &mut reader {
        told(&reader.read(&fleet.catalog).await, &fleet, &mut failing);
    }
    Ok(tokio::spawn(async move {
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Some(reader) = &mut reader {
                told(&reader.read(&fleet.catalog).await, &fleet, &mut failing);
            }
            match store.guard_rollouts(now_ms()).await {
                Ok(paused) => {
                    for target in paused {
                        warn!(
                            target = target.id,
                            "the rollout is paused: too many devices could not load it"
                        );
                    }
                }
                // The upkeep of settings says that the database is away.
                Err(err) if err.is_unavailable() => (),
                Err(err) => warn!(err = &err as &dyn std::error::Error, "rollouts are not guarded"),
            }
        }
    }))
}

/// Logs once that the registry cannot be read, and once that it can.
fn told(read: &Result<(), SourceError>, fleet: &Fleet, failing: &mut bool) {
    match read {
        Err(err) if !*failing => {
            warn!(
                err = err as &dyn std::error::Error,
                "the registry cannot be read; what was read last stays"
            );
        }
        Ok(()) if *failing => info!("the registry can be read again"),
        Ok(()) => tracing::debug!(versions = fleet.catalog.all().len(), "the registry was read"),
        Err(_) => (),
    }
    *failing = read.is_err();
}
