//! Links of a monitor: opened here, opened by other devices, read and written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_terminal::chain;

use super::ports::{Flushed, Port, WillGive};
use super::{By, Core, Monitor, spawn};
use crate::core::{DeviceId, Give, Gone, LinkEvent, LinkId, Node, Purpose};
use crate::wire::frame::Frame;
use crate::wire::link::{FrameReceiver, Link, LinkError};

/// Wait between two looks whether a link was closed, or whether to stop.
const SLICE: Duration = Duration::from_millis(100);
/// How long a control link that was closed here is still read, so that the other device reads the last words
/// before its own frames fail.
const LINGER: Duration = Duration::from_secs(2);

impl<C: Core> Monitor<C> {
    /// Opens a link on a thread of its own, which then reads it.
    pub(super) fn dial(self: &Arc<Self>, link: LinkId, to: Node, purpose: Purpose, within: Duration) {
        let own = Arc::clone(self);
        let dialed = spawn("ring-dial", move || {
            let done = own.around.network.connect(&to, purpose, within);
            match done {
                Ok(opened) => own.opened(link, opened, purpose),
                Err(err) => own.not_opened(link, chain(&err)),
            }
        });
        if let Err(err) = dialed {
            self.not_opened(link, chain(&err));
        }
    }

    fn not_opened(self: &Arc<Self>, link: LinkId, words: String) {
        self.step_if(By::Other, |inner| {
            inner.dialing.remove(&link).then(|| C::link(LinkEvent::Opened(link, Err(words))))
        });
    }

    fn opened(self: &Arc<Self>, id: LinkId, link: Link, purpose: Purpose) {
        let Link { peer, sender, receiver } = link;
        let port = Arc::new(Port::new(id, peer, purpose, Some(sender), self.limit(purpose)));
        let own = Arc::clone(&port);
        let told = self.step_if(By::Reader(id), |inner| {
            // It may have been closed meanwhile.
            inner.dialing.remove(&id).then(|| {
                inner.ports.insert(id, own);
                C::link(LinkEvent::Opened(id, Ok(())))
            })
        });
        // A link of the ring is used in one direction.
        if told && purpose != Purpose::Ring {
            self.read(&port, receiver);
        }
    }

    /// Takes the links that other devices open and that `admits` takes, until the end.
    ///
    /// # Errors
    /// [`LinkError`] if the network accepts no more links.
    pub(super) fn accept_all(
        self: &Arc<Self>,
        admits: &dyn Fn(&DeviceId, Purpose) -> bool,
        has_ended: &dyn Fn() -> bool,
    ) -> Result<(), LinkError> {
        while !has_ended() {
            match self.around.network.accept(SLICE) {
                Ok((link, purpose)) if admits(&link.peer, purpose) => self.arrived(link, purpose),
                Ok(_) | Err(LinkError::TimedOut) => {}
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    fn arrived(self: &Arc<Self>, link: Link, purpose: Purpose) {
        let Link { peer, sender, receiver } = link;
        let sender = (purpose != Purpose::Ring).then_some(sender);
        let mut made = None;
        let limit = self.limit(purpose);
        self.step_if(By::Other, |inner| {
            let id = LinkId(inner.incoming * 2 + 1);
            inner.incoming += 1;
            let port = Arc::new(Port::new(id, peer, purpose, sender, limit));
            inner.ports.insert(id, Arc::clone(&port));
            made = Some(port);
            Some(C::link(LinkEvent::Arrived { link: id, from: peer, purpose }))
        });
        let Some(port) = made else { return };
        let (own, id) = (Arc::clone(self), port.id);
        if let Err(err) = spawn("ring-read", move || own.read(&port, receiver)) {
            self.lose(id, Gone::Closed(chain(&err)));
        }
    }

    /// Reads a link until it ends or is closed.
    fn read(self: &Arc<Self>, port: &Port, mut receiver: Box<dyn FrameReceiver>) {
        while port.may_read() {
            let bytes = match receiver.receive(SLICE) {
                Ok(bytes) => bytes,
                Err(LinkError::TimedOut) => continue,
                Err(err) => return self.lose(port.id, Gone::Closed(chain(&err))),
            };
            port.received(bytes.len());
            let mut frame = match Frame::decode(&bytes) {
                Ok(frame) => frame,
                Err(err) => return self.lose(port.id, Gone::NoFrame(chain(&err))),
            };
            drop(bytes);
            (self.around.on_frame)(&port.peer, &mut frame);
            let known = self.step_if(By::Reader(port.id), |inner| {
                inner.ports.contains_key(&port.id).then(|| C::link(LinkEvent::Heard(port.id, frame)))
            });
            if !known {
                break;
            }
        }
        if port.purpose == Purpose::Control {
            self.linger(receiver);
        }
    }

    /// Drops what still comes over a link that was closed here, until the other device has closed it too.
    fn linger(&self, mut receiver: Box<dyn FrameReceiver>) {
        let begun = Instant::now();
        while begun.elapsed() < LINGER && !self.has_ended() {
            match receiver.receive(SLICE) {
                Ok(_) | Err(LinkError::TimedOut) => {}
                Err(_) => return,
            }
        }
    }

    /// Tells the core that a link has ended, unless it was closed before.
    pub(super) fn lose(self: &Arc<Self>, link: LinkId, gone: Gone) {
        let mut lost = None;
        self.step_if(By::Other, |inner| {
            lost = inner.ports.remove(&link);
            lost.is_some().then(|| C::link(LinkEvent::Gone(link, gone)))
        });
        if let Some(port) = lost {
            port.abandon();
        }
    }

    /// Sends what waits on a link: by this thread if it may, else by the link's own.
    pub(super) fn send_what_waits(self: &Arc<Self>, by: By, port: &Arc<Port>) {
        if by.may_write(port) {
            match port.flush(true) {
                Flushed::Done => return,
                Flushed::Left => {}
                Flushed::Failed(words) => return self.lose(port.id, Gone::Closed(words)),
            }
        }
        if port.hang_up_if_done() || !port.wake_writer() {
            return;
        }
        let (own, writing) = (Arc::clone(self), Arc::clone(port));
        let started = spawn("ring-write", move || {
            if let Some(words) = writing.write_all() {
                own.lose(writing.id, Gone::Closed(words));
                writing.abandon();
            }
        });
        if let Err(err) = started {
            self.lose(port.id, Gone::Closed(chain(&err)));
        }
    }

    /// Gives pieces over a link, on a thread of the link's own, after what is to be given already.
    pub(super) fn give(self: &Arc<Self>, port: &Arc<Port>, give: Give) {
        match port.will_give(give) {
            WillGive::Starts => {}
            WillGive::Waits => return,
            WillGive::Refused => {
                return self.lose(port.id, Gone::Closed("it asks faster than it takes".to_owned()));
            }
        }
        let (own, giving) = (Arc::clone(self), Arc::clone(port));
        let started = spawn("ring-give", move || {
            while let Some(give) = giving.next_give() {
                own.give_now(&giving, give);
            }
        });
        if let Err(err) = started {
            self.lose(port.id, Gone::Closed(chain(&err)));
        }
    }

    /// Gives pieces over a link; the core is told after each frame.
    fn give_now(self: &Arc<Self>, port: &Port, give: Give) {
        let link = port.id;
        let mut send = |frame| match port.send_and_wait(frame) {
            Ok(sent) => {
                if sent {
                    self.step_if(By::Other, |inner| inner.ports.contains_key(&link).then(|| C::gave(link)));
                }
                sent
            }
            Err(words) => {
                self.lose(link, Gone::Closed(words));
                false
            }
        };
        if let Err(words) = self.around.giver.give(link, give, &mut send) {
            self.lose(link, Gone::Closed(words));
        }
    }
}
