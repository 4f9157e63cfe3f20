//! Waits for what happens next to an answer: of the cloud, of the device, in time, or with its reader.

use std::time::Duration;

use tokio::sync::mpsc;

use super::AnswerEvent;
use super::handoff::KvFetch;
use super::stream::{CloudMessage, CloudStream};
use crate::local::Reports;
use crate::relay::{CloudFault, RelayEvent};

/// Waits for the next event. If several are ready, the first branch of the `select!` below wins.
pub(super) async fn next_event(
    cloud: &mut Option<CloudStream>,
    reports: &mut Option<Reports>,
    kv: &mut Option<KvFetch>,
    sleep: Option<Duration>,
    events: &mpsc::Sender<AnswerEvent>,
) -> RelayEvent {
    let cloud_message = async {
        match cloud {
            Some(stream) => stream.messages.recv().await,
            None => std::future::pending().await,
        }
    };
    let report = async {
        match reports {
            Some(reports) => reports.recv().await,
            None => std::future::pending().await,
        }
    };
    let news = async {
        match kv {
            Some(fetch) => fetch.news.recv().await,
            None => std::future::pending().await,
        }
    };
    let timer = async {
        match sleep {
            Some(sleep) => tokio::time::sleep(sleep).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = events.closed() => RelayEvent::Cancel,
        message = cloud_message => match message {
            Some(CloudMessage::Event(event)) => RelayEvent::Cloud(event),
            Some(CloudMessage::Lost(fault)) => {
                *cloud = None;
                RelayEvent::CloudLost(fault)
            }
            None => {
                *cloud = None;
                RelayEvent::CloudLost(CloudFault::Disconnected)
            }
        },
        report = report => match report {
            Some(report) => RelayEvent::Engine(report),
            None => {
                *reports = None;
                RelayEvent::EngineLost
            }
        },
        news = news => match news {
            Some(news) => RelayEvent::Kv(news),
            None => {
                *kv = None;
                RelayEvent::Timer
            }
        },
        () = timer => RelayEvent::Timer,
    }
}
