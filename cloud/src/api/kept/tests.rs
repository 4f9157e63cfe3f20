//! Tests of kept answers: readers that come back, go and never come, and what is bounded.

use super::*;
use crate::service::stream::{EventSink, UNREAD_TOKENS_MAX};
use baton_generate::scheduler::JobId;
use baton_protocol::{EndEvent, EndReason, TokenEvent};

const ID: Uuid = Uuid::from_u128(1);
const ASKED: Asked = Asked([7; 32]);

fn owner(key: &str) -> Owner {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    Owner::of(&headers)
}

fn token(index: u32) -> AssistEvent {
    AssistEvent::Token(TokenEvent { index, id: 7, text: "x".into() })
}

fn end() -> AssistEvent {
    AssistEvent::End(EndEvent { reason: EndReason::Cap, usage: Default::default(), timing: None })
}

fn answer() -> (EventSink, AssistStream) {
    AssistStream::new(JobId(1), 100, None)
}

async fn rest(reader: &mut KeptReader) -> Vec<AssistEvent> {
    let mut events = Vec::new();
    while let Some(batch) = reader.next_batch().await {
        events.extend(batch);
    }
    events
}

#[tokio::test]
async fn an_answer_goes_on_without_its_reader_and_is_taken_up_again() {
    let kept = KeptAnswers::default();
    let (sink, stream) = answer();
    let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(vec![token(0), token(1)]);
    assert_eq!(reader.next_batch().await.unwrap(), [token(0), token(1)]);
    drop(reader);
    sink.send(vec![token(2)]);
    assert!(!sink.cancel().is_set(), "nobody reads, and it goes on");
    let mut again = kept.find(owner("a"), ID, Some(0)).unwrap();
    assert_eq!(again.next_batch().await.unwrap()[0], token(1));
    sink.send(vec![token(3), end()]);
    drop(sink);
    assert_eq!(rest(&mut again).await.last(), Some(&end()));
    // Another key, another id, and then the whole stream again.
    assert!(kept.find(owner("b"), ID, None).is_none());
    assert!(kept.find(owner("a"), Uuid::from_u128(2), None).is_none());
    let mut whole = kept.find(owner("a"), ID, None).unwrap();
    assert_eq!(rest(&mut whole).await, [token(0), token(1), token(2), token(3), end()]);
    let mut only_end = kept.find(owner("a"), ID, Some(3)).unwrap();
    assert_eq!(rest(&mut only_end).await, [end()]);
    assert!(kept.lock().bytes > 0);
}

/// Something that lives as long as an answer's stream.
#[derive(Debug)]
struct Place(#[expect(dead_code, reason = "its end is what counts")] tokio::sync::oneshot::Sender<()>);

impl crate::service::stream::StreamWatch for Place {
    fn event(&mut self, _: &AssistEvent) {}
}

#[tokio::test]
async fn a_place_is_free_when_the_reader_hears_of_the_end() {
    let kept = KeptAnswers::default();
    let (sink, mut stream) = answer();
    let (place, mut free) = tokio::sync::oneshot::channel();
    stream.watch(Place(place));
    let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(vec![token(0)]);
    assert_eq!(reader.next_batch().await.unwrap(), [token(0)]);
    assert_eq!(free.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty));
    sink.send(vec![token(1), end()]);
    assert_eq!(reader.next_batch().await.unwrap(), [token(1), end()]);
    assert_eq!(free.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
    assert!(kept.find(owner("a"), ID, None).is_some(), "and the answer is still kept");
}

#[tokio::test]
async fn an_answer_that_is_full_and_has_no_reader_is_given_up() {
    let soon = KeptLimits { after_end: Duration::from_millis(1), ..KeptLimits::default() };
    let tokens = |from: u32, n: usize| (from..).take(n).map(token).collect::<Vec<_>>();
    let kept = KeptAnswers::new(soon);
    let (sink, stream) = AssistStream::new(JobId(1), 1000, None);
    let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(tokens(0, UNREAD_TOKENS_MAX - 1));
    assert!(!sink.unread().park(), "it may write one more");
    sink.send(tokens(UNREAD_TOKENS_MAX as u32 - 1, 1));
    assert!(sink.unread().park() && sink.unread().is_parked() && !sink.unread().unpark());
    // Its reader reads, so it can go on.
    assert_eq!(reader.next_batch().await.unwrap().len(), BATCH_EVENTS_MAX);
    assert!(sink.unread().unpark() && !sink.unread().is_parked());
    drop(reader);
    sink.send(tokens(UNREAD_TOKENS_MAX as u32, UNREAD_TOKENS_MAX));
    assert!(sink.unread().park());
    let given_up = async {
        while !sink.cancel().is_set() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given_up).await.expect("nobody comes");
}

#[tokio::test]
async fn an_answer_without_a_reader_is_given_up_in_every_phase() {
    let soon = KeptLimits { after_end: Duration::from_millis(1), ..KeptLimits::default() };
    // In the first case it waits or computes its prompt, in the second it writes and is far from full.
    for writes in [false, true] {
        let kept = KeptAnswers::new(soon);
        let (sink, stream) = AssistStream::new(JobId(1), 1000, None);
        let reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        let mut again = kept.find(owner("a"), ID, None).unwrap();
        drop(reader);
        sink.send(vec![token(0)]);
        assert_eq!(again.next_batch().await.unwrap(), [token(0)]);
        assert!(!sink.cancel().is_set(), "one reader is left");
        drop(again);
        let given_up = async {
            for index in 1.. {
                if sink.cancel().is_set() {
                    return;
                }
                if writes && index < UNREAD_TOKENS_MAX as u32 / 2 {
                    sink.send(vec![token(index)]);
                }
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), given_up).await.expect("nobody comes");
    }
}

#[tokio::test]
async fn a_request_that_its_client_has_ended_is_not_found_and_not_begun() {
    let kept = KeptAnswers::new(KeptLimits { after_end: Duration::from_secs(3600), ..KeptLimits::default() });
    let (sink, stream) = answer();
    let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(vec![token(0)]);
    for (whose, id) in [(owner("b"), ID), (owner("a"), Uuid::from_u128(2))] {
        kept.end(whose, id);
        assert!(kept.is_ended(whose, id) && !kept.is_ended(owner("a"), ID));
    }
    assert!(kept.find(owner("a"), ID, None).is_some(), "others ended requests of theirs");
    kept.end(owner("a"), ID);
    assert!(kept.is_ended(owner("a"), ID) && kept.find(owner("a"), ID, None).is_none());
    // Whoever reads it reads on, and the same request begins no more.
    assert_eq!(reader.next_batch().await.unwrap(), [token(0)]);
    let (_again, stream) = answer();
    assert!(kept.keep(owner("a"), ID, ASKED, stream).is_err());
    assert_eq!(kept.lock().bytes, 0);
}

#[tokio::test]
async fn ended_requests_are_remembered_for_a_while_and_bounded() {
    let limits = KeptLimits { answers_max: 2, ..KeptLimits::default() };
    let kept = KeptAnswers::new(KeptLimits { after_end: Duration::from_millis(1), ..limits });
    kept.end(owner("a"), ID);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!kept.is_ended(owner("a"), ID) && kept.lock().answers.is_empty());
    // They take no room from answers that run.
    let kept = KeptAnswers::new(KeptLimits { after_end: Duration::from_secs(3600), ..limits });
    let (_sink, stream) = answer();
    let _reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    for id in (2..9).map(Uuid::from_u128) {
        kept.end(owner("b"), id);
        assert!(kept.is_ended(owner("b"), id) && kept.lock().answers.len() == 2);
    }
    let (_sink, stream) = answer();
    assert!(kept.keep(owner("a"), Uuid::from_u128(9), ASKED, stream).is_ok());
    kept.end(owner("b"), Uuid::from_u128(2));
    assert!(!kept.is_ended(owner("b"), Uuid::from_u128(2)), "there is no room");
}

#[tokio::test]
async fn what_has_ended_is_forgotten() {
    let soon = KeptLimits { after_end: Duration::from_millis(1), ..KeptLimits::default() };
    let kept = KeptAnswers::new(soon);
    let (sink, stream) = answer();
    let _reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(vec![token(0), end()]);
    drop(sink);
    let gone = async {
        while kept.find(owner("a"), ID, None).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("it is forgotten");
    assert_eq!(kept.lock().bytes, 0);
}

#[tokio::test]
async fn a_name_stands_for_one_answer() {
    let kept = KeptAnswers::default();
    let ((first, first_stream), (second, second_stream)) = (answer(), answer());
    let _one = kept.keep(owner("a"), ID, ASKED, first_stream).unwrap();
    let mut two = kept.keep(owner("a"), ID, ASKED, second_stream).unwrap();
    assert!(second.cancel().is_set(), "the later one is given up");
    first.send(vec![token(0), end()]);
    drop(first);
    assert_eq!(rest(&mut two).await, [token(0), end()]);
    // Another request with the same id gets no part of it.
    let (_other, other_stream) = answer();
    assert!(kept.keep(owner("a"), ID, Asked([8; 32]), other_stream).is_err());
    let reader = kept.find(owner("a"), ID, None).unwrap();
    assert!(reader.answers(ASKED) && !reader.answers(Asked([8; 32])));
}

#[tokio::test]
async fn what_is_kept_is_bounded() {
    let limits = KeptLimits { answers_max: 2, ..KeptLimits::default() };
    let kept = KeptAnswers::new(limits);
    let (running, stream) = answer();
    let _running = kept.keep(owner("a"), Uuid::from_u128(1), ASKED, stream).unwrap();
    let (ended, stream) = answer();
    let mut ended_reader = kept.keep(owner("a"), Uuid::from_u128(2), ASKED, stream).unwrap();
    let (third, stream) = answer();
    let Err(stream) = kept.keep(owner("a"), Uuid::from_u128(3), ASKED, stream) else { panic!("both run") };
    ended.send(vec![end()]);
    drop(ended);
    rest(&mut ended_reader).await;
    assert!(kept.keep(owner("a"), Uuid::from_u128(3), ASKED, *stream).is_ok(), "what has ended gives way");
    assert!(kept.find(owner("a"), Uuid::from_u128(2), None).is_none());
    drop((running, third));

    // The owner who fills the room loses an answer first, even if another owner's answer ended earlier.
    let kept = KeptAnswers::new(limits);
    for (key, id) in [("a", 1), ("b", 2)] {
        let (sink, stream) = answer();
        let mut reader = kept.keep(owner(key), Uuid::from_u128(id), ASKED, stream).unwrap();
        sink.send(vec![end()]);
        drop(sink);
        rest(&mut reader).await;
    }
    let (_sink, stream) = answer();
    let _third = kept.keep(owner("b"), Uuid::from_u128(3), ASKED, stream).unwrap();
    assert!(kept.find(owner("a"), Uuid::from_u128(1), None).is_some());
    assert!(kept.find(owner("b"), Uuid::from_u128(2), None).is_none());

    let one = bytes_of(&token(0));
    let kept = KeptAnswers::new(KeptLimits { bytes_max: 2 * one, ..KeptLimits::default() });
    let (sink, stream) = answer();
    let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
    sink.send(vec![token(0), token(1)]);
    reader.next_batch().await.unwrap();
    sink.send(vec![token(2), end()]);
    drop(sink);
    assert_eq!(rest(&mut reader).await, [token(2), end()], "its reader sees everything");
    assert!(kept.find(owner("a"), ID, None).is_none(), "but nobody else does");
    assert_eq!(kept.lock().bytes, 0);
}
