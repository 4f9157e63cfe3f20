//! The cloud's stream for the driver: resumes a stream that was cut, or gives up within two seconds.
//!
//! What always holds: the driver receives the events that one unbroken stream would have had. Exactly one
//! fault ends them.

use std::time::Duration;

use baton_protocol::{AssistEvent, VerifyReply};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{CloudClient, OutgoingDraft, OutgoingRequest};
use crate::relay::CloudFault;

/// Cloud events that may wait for the core.
const CLOUD_EVENTS_MAX: usize = 256;
/// Longest time to resume a cut stream; after that the device goes on alone.
const RESUME_LIMIT: Duration = Duration::from_secs(2);
/// Most times that one answer's stream is resumed; a worse connection is not worth waiting for.
const RESUMES_MAX: usize = 3;

pub(super) enum CloudMessage {
    Event(AssistEvent),
    Lost(CloudFault),
}

/// The events of a request. Dropping it closes the connection.
pub(super) struct CloudStream {
    pub(super) messages: mpsc::Receiver<CloudMessage>,
    task: JoinHandle<()>,
}

/// A draft on its way to the cloud and back. Dropping it closes the connection, which ends the check.
pub(super) struct DraftCheck(JoinHandle<Result<VerifyReply, CloudFault>>);

impl DraftCheck {
    pub(super) fn send(client: CloudClient, draft: OutgoingDraft) -> Self {
        Self(tokio::spawn(async move { client.verify(&draft).await }))
    }

    /// Waits for the reply. Can be cancelled without losing it.
    pub(super) async fn reply(&mut self) -> Result<VerifyReply, CloudFault> {
        // A task that panicked has already printed its message.
        (&mut self.0).await.unwrap_or(Err(CloudFault::Disconnected))
    }
}

impl Drop for DraftCheck {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Events = BoxStream<'static, Result<AssistEvent, CloudFault>>;

impl CloudStream {
    pub(super) fn open(client: CloudClient, request: OutgoingRequest) -> Self {
        let (sender, messages) = mpsc::channel(CLOUD_EVENTS_MAX);
        let task = tokio::spawn(async move {
            if let Err(fault) = forward_events(&client, &request, &sender).await {
                // If nobody listens any more, the answer is over.
                let _unheard = sender.send(CloudMessage::Lost(fault)).await;
            }
        });
        Self { messages, task }
    }

    /// Closes the connection and joins the task.
    pub(super) async fn close(mut self) {
        self.task.abort();
        // A cancelled task always ends with a cancellation error.
        let _cancelled = (&mut self.task).await;
    }
}

impl Drop for CloudStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards events until nobody listens any more; returns the fault if the stream ends first.
async fn forward_events(
    client: &CloudClient,
    request: &OutgoingRequest,
    sender: &mpsc::Sender<CloudMessage>,
) -> Result<(), CloudFault> {
    let mut events: Events = client.assist(request).await?.boxed();
    let (mut seen, mut ended, mut cuts) = (None, false, 0);
    loop {
        let fault = loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    seen = event.index().or(seen);
                    ended |= matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
                    if sender.send(CloudMessage::Event(event)).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(None) => break CloudFault::Disconnected,
                Err(fault) => break fault,
            }
        };
        let mendable = fault == CloudFault::Disconnected && request.resumes() && !ended && cuts < RESUMES_MAX;
        let Some(seen) = seen.filter(|_| mendable) else { return Err(fault) };
        // A cloud that no longer keeps the stream refuses at once; the limit is for a cloud that does not
        // answer.
        match tokio::time::timeout(RESUME_LIMIT, client.resume(request, seen)).await {
            Ok(Ok(rest)) => events = rest.boxed(),
            Ok(Err(_)) | Err(_) => return Err(fault),
        }
        cuts += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::next::Lines;
    use crate::agent::next_event;
    use crate::local::{EngineReport, Message, PromptId, Reports};
    use crate::relay::RelayEvent;
    use baton_protocol::TokenEvent;

    #[tokio::test]
    async fn of_what_is_there_already_the_reader_comes_first_then_the_cloud() {
        let (cloud_says, messages) = mpsc::channel(4);
        let (engine_says, reports) = Reports::channel();
        let (events, reader) = mpsc::channel(1);
        let cloud = Some(CloudStream { messages, task: tokio::spawn(async {}) });
        let mut lines = Lines { cloud, ..Lines::default() };
        let mut reports = Some(reports);
        let token =
            || CloudMessage::Event(AssistEvent::Token(TokenEvent { index: 0, id: 1, text: "a".into() }));
        for _ in 0..24 {
            engine_says.send(Message::Report(EngineReport::Ready { prompt: PromptId(1) })).unwrap();
            cloud_says.send(token()).await.unwrap();
            let first = next_event(&mut lines, &mut reports, Some(Duration::ZERO), &events).await;
            assert!(matches!(first, RelayEvent::Cloud(_)), "{first:?}");
            let second = next_event(&mut lines, &mut reports, Some(Duration::ZERO), &events).await;
            assert!(matches!(second, RelayEvent::Engine(_)), "{second:?}");
            let third = next_event(&mut lines, &mut reports, Some(Duration::ZERO), &events).await;
            assert!(matches!(third, RelayEvent::Timer), "{third:?}");
        }
        drop(reader);
        cloud_says.send(token()).await.unwrap();
        let last = next_event(&mut lines, &mut reports, None, &events).await;
        assert!(matches!(last, RelayEvent::Cancel), "{last:?}");
    }
}
