//! Waits for what happens next to an answer: of the cloud, of the device, in time, or with its reader.

use std::time::Duration;

use tokio::sync::mpsc;

use super::AnswerEvent;
use super::handoff::{self, KvFetch};
use super::stream::{CloudMessage, CloudStream, DraftCheck};
use crate::client::OpenRequest;
use crate::local::Reports;
use crate::relay::{CloudFault, RelayEvent};

/// What goes on between this device and the cloud for one answer.
#[derive(Default)]
pub(super) struct Lines {
    /// The cloud's stream.
    pub(super) cloud: Option<CloudStream>,
    /// The request, as long as the cloud is wanted. Without it the cloud is told that it is over.
    pub(super) request: Option<OpenRequest>,
    /// A draft that is being checked.
    pub(super) check: Option<DraftCheck>,
    /// Keys and values that are on their way.
    pub(super) kv: Option<KvFetch>,
}

impl Lines {
    /// Takes a stream that was opened; returns the event if there is none.
    pub(super) fn opened(
        &mut self,
        opened: Result<(CloudStream, OpenRequest), CloudFault>,
    ) -> Option<RelayEvent> {
        match opened {
            Ok((stream, request)) => {
                self.cloud = Some(stream);
                self.request = Some(request);
                None
            }
            Err(fault) => Some(RelayEvent::CloudLost(fault)),
        }
    }

    /// Notes what an event says of the request.
    pub(super) fn hear(&mut self, event: &RelayEvent) {
        if let Some(request) = &mut self.request {
            request.hear(event);
        }
    }

    /// Closes the cloud's stream, if one is open.
    pub(super) async fn close_cloud(&mut self) {
        if let Some(stream) = self.cloud.take() {
            stream.close().await;
        }
    }

    /// Fetches no more keys and values.
    pub(super) async fn close_kv(&mut self) {
        handoff::end(&mut self.kv).await;
    }

    /// Closes everything.
    pub(super) async fn close(&mut self) {
        self.check = None;
        self.close_kv().await;
        self.close_cloud().await;
        self.request = None;
    }
}

/// Waits for the next event. If several are ready, the first branch of the `select!` below wins.
pub(super) async fn next_event(
    lines: &mut Lines,
    reports: &mut Option<Reports>,
    sleep: Option<Duration>,
    events: &mpsc::Sender<AnswerEvent>,
) -> RelayEvent {
    let Lines { cloud, check, kv, .. } = lines;
    let cloud_message = async {
        match cloud {
            Some(stream) => stream.messages.recv().await,
            None => std::future::pending().await,
        }
    };
    let checked = async {
        match check {
            Some(check) => check.reply().await,
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
        checked = checked => {
            *check = None;
            RelayEvent::Checked(checked)
        }
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
