//! Tests ports: order, bounds, who writes, and what happens at the end.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::core::Epoch;
use crate::wire::frame::{Heartbeat, PieceData};
use crate::wire::link::LinkError;

/// Sends to the test; each frame waits for a word of the test if there is such a channel.
struct ToTest {
    sent: Sender<Vec<u8>>,
    may: Option<Receiver<Result<(), LinkError>>>,
}

impl FrameSender for ToTest {
    fn send(&mut self, frame: &[u8], _timeout: Duration) -> Result<(), LinkError> {
        let may = self.may.as_ref().map_or(Ok(()), |may| may.recv().unwrap_or(Err(LinkError::Closed)));
        may?;
        self.sent.send(frame.to_vec()).map_err(|_| LinkError::Closed)
    }
}

fn port(purpose: Purpose, may: Option<Receiver<Result<(), LinkError>>>) -> (Arc<Port>, Receiver<Vec<u8>>) {
    let (sent, frames) = channel();
    let sender: Box<dyn FrameSender> = Box::new(ToTest { sent, may });
    let port = Port::new(LinkId(0), DeviceId([1; 32]), purpose, Some(sender), Duration::from_secs(9));
    (Arc::new(port), frames)
}

fn piece(index: u32, bytes: usize) -> Frame {
    Frame::Piece(PieceData { index, bytes: vec![7; bytes] })
}

fn indices(frames: &Receiver<Vec<u8>>) -> Vec<u32> {
    let index = |bytes: Vec<u8>| match Frame::decode(&bytes) {
        Ok(Frame::Piece(piece)) => piece.index,
        other => panic!("{other:?}"),
    };
    frames.try_iter().map(index).collect()
}

#[test]
fn small_frames_are_sent_at_once_and_nothing_overtakes_a_large_one() {
    let (port, frames) = port(Purpose::Weights, None);
    assert!(port.put(piece(0, 10)));
    assert_eq!(port.flush(true), Flushed::Done);
    assert_eq!(indices(&frames), [0]);
    for (index, bytes) in [(1, 10), (2, DIRECT_BYTES), (3, 10)] {
        assert!(port.put(piece(index, bytes)));
    }
    assert_eq!(port.flush(true), Flushed::Left);
    assert_eq!(indices(&frames), [1], "the small one behind the large one waits");
    assert_eq!(port.flush(false), Flushed::Done);
    assert_eq!(indices(&frames), [2, 3]);
    assert!(port.moved().bytes_out > DIRECT_BYTES as u64);
}

#[test]
fn too_many_frames_are_refused_and_of_heartbeats_the_newest_waits() {
    let (control, frames) = port(Purpose::Control, None);
    let beat = |epoch| Frame::Heartbeat(Heartbeat { epoch: Epoch(epoch), ..Heartbeat::default() });
    for epoch in 1..=100 {
        assert!(control.put(beat(epoch)));
    }
    for index in 1..QUEUE as u32 {
        assert!(control.put(piece(index, 1)), "{index}");
    }
    assert!(!control.put(piece(99, 1)), "the queue is full");
    assert_eq!(control.flush(true), Flushed::Done);
    assert_eq!(Frame::decode(&frames.recv().unwrap()), Ok(beat(100)));
    assert_eq!(frames.try_iter().count(), QUEUE - 1);
}

#[test]
fn answers_are_given_in_the_order_of_the_questions_by_one_thread() {
    let (port, _frames) = port(Purpose::Control, None);
    let ask = |first| Give::Pieces { first, count: 2 };
    assert_eq!(port.will_give(ask(0)), WillGive::Starts);
    assert_eq!(port.will_give(ask(5)), WillGive::Waits, "one thread gives");
    assert_eq!([port.next_give(), port.next_give()], [Some(ask(0)), Some(ask(5))]);
    assert_eq!(port.will_give(Give::List), WillGive::Waits, "the thread looks once more");
    assert_eq!([port.next_give(), port.next_give()], [Some(Give::List), None]);
    assert_eq!(port.will_give(ask(1)), WillGive::Starts, "the thread has ended");
    for first in 1..GIVES as u32 {
        assert_eq!(port.will_give(ask(first)), WillGive::Waits);
    }
    assert_eq!(port.will_give(ask(99)), WillGive::Refused);
}

#[test]
fn one_thread_writes_at_a_time_and_takes_what_others_put_in() {
    let (go, may) = channel();
    let (port, frames) = port(Purpose::Weights, Some(may));
    assert!(port.put(piece(0, 1)));
    let writing = Arc::clone(&port);
    let thread = std::thread::spawn(move || writing.flush(false));
    // Until the other thread has the first frame in its hands.
    while !locked(&port.waiting).writing {
        std::thread::yield_now();
    }
    assert!(port.put(piece(1, 1)));
    assert_eq!(port.flush(false), Flushed::Done, "the other thread writes");
    go.send(Ok(())).unwrap();
    go.send(Ok(())).unwrap();
    assert_eq!(thread.join().unwrap(), Flushed::Done);
    assert_eq!(indices(&frames), [0, 1]);
}

#[test]
fn a_link_that_does_not_work_is_told_and_its_end_wakes_who_waits() {
    let (go, may) = channel();
    let (port, _frames) = port(Purpose::Weights, Some(may));
    let giving = Arc::clone(&port);
    let thread = std::thread::spawn(move || giving.send_and_wait(piece(0, 1)));
    go.send(Err(LinkError::TimedOut)).unwrap();
    assert_eq!(thread.join().unwrap(), Err(LinkError::TimedOut.to_string()));
    let reading = Arc::clone(&port);
    port.hold(true);
    let thread = std::thread::spawn(move || reading.may_read());
    port.abandon();
    assert!(!thread.join().unwrap());
    assert_eq!(port.send_and_wait(piece(1, 1)), Ok(false));
    assert_eq!(port.write_all(), None, "nothing is left to do");
}

#[test]
fn what_waits_is_sent_before_the_end_but_not_on_the_ring() {
    let (control, frames) = port(Purpose::Control, None);
    assert!(control.put(piece(4, 1)));
    control.close();
    assert!(!control.hang_up_if_done(), "a frame waits");
    assert!(control.put(piece(5, 1)), "a closed link takes frames and forgets them");
    assert_eq!(control.write_all(), None);
    assert_eq!(indices(&frames), [4]);
    assert!(frames.recv().is_err(), "the sender is dropped");
    let (ring, frames) = port(Purpose::Ring, None);
    assert!(ring.put(piece(6, 1)));
    ring.close();
    assert!(ring.hang_up_if_done());
    assert!(frames.recv().is_err());
}

#[test]
fn steps_that_wait_count_as_not_passed_on() {
    let (port, _frames) = port(Purpose::Ring, None);
    let steps = crate::wire::frame::samples::of_every_kind().into_iter();
    let steps: Vec<Frame> = steps.filter(|frame| matches!(frame, Frame::Step(_))).collect();
    assert!(!steps.is_empty());
    assert!(port.put(Frame::Enter { epoch: Epoch(1), place: 0 }));
    for (at, step) in steps.iter().enumerate() {
        assert!(port.put(step.clone()));
        assert_eq!(port.moved().unsent, at as u64 + 1);
    }
    assert_eq!(port.flush(false), Flushed::Done);
    assert_eq!(port.moved().unsent, 0);
}
