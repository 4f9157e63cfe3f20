//! The network between clients and the cloud: every event by itself, with what may happen to it.

use std::sync::Arc;
use std::time::Duration;

use baton_device::client::Remains;
use baton_device::relay::{CloudFault, RelayEvent};
use baton_protocol::{AssistEvent, AssistRequest};

use super::answer::ConnNo;
use super::cloud::{StreamNo, unreachable};
use super::scenario::{Fault, LineFault};
use super::world::{MS, What, World};

/// Events that a connection and the client behind it hold.
const WINDOW: usize = 64;
/// Longest time to resume a stream.
const RESUME_NS: u64 = 2_000 * MS;
/// How long a dead line keeps the cloud from noticing that its reader is gone.
const DEAD_NS: u64 = 5_000 * MS;

/// The cloud's end of a connection.
pub(super) struct Conn {
    pub(super) question: usize,
    /// Which connection of the question it is.
    nth: usize,
    pub(super) stream: StreamNo,
    /// Events of the stream that were sent, or left out.
    next: usize,
    /// Events that were put on the wire.
    sent: usize,
    /// Events under way.
    flying: usize,
    last_at: u64,
    late_ns: u64,
    /// Only events behind this token are wanted.
    seen: Option<u32>,
    silent: bool,
    over: bool,
}

/// What arrives at a client.
pub(super) enum ToClient {
    Event(AssistEvent),
    /// The connection ended.
    Eof,
    /// There is no stream.
    Lost(CloudFault),
}

impl World {
    /// Sends a request; its stream comes over a new connection.
    pub(super) fn open(&mut self, number: usize, request: Arc<AssistRequest>, continued: bool) {
        let sent = super::answer::check_sent(&request);
        self.check(sent);
        self.end_request(number);
        let conn = self.new_conn();
        let Some(answer) = self.answers.get_mut(&number) else { return };
        answer.open = Some((Arc::clone(&request), Remains::of_sent()));
        answer.client.begin(conn);
        let nth = answer.client.opened;
        answer.client.opened += 1;
        answer.request = Arc::clone(&request);
        let latency = self.latency(number, conn);
        let answer = self.answers.get_mut(&number).expect("it was just there");
        if answer.unreachable > 0 {
            answer.unreachable -= 1;
            let what = ToClient::Lost(unreachable());
            return self.at(self.now + 2 * latency, What::Arrive { question: number, conn, what });
        }
        let again = self.scenario.faults.iter().find_map(|fault| match fault {
            Fault::Twice { question, after_ms } if *question == number && !continued => Some(*after_ms),
            _ => None,
        });
        if let Some(after_ms) = again {
            let (conn, request) = (self.new_conn(), Arc::clone(&request));
            let post = What::Post { question: number, conn, nth: usize::MAX, continued, request };
            self.at(self.now + latency + after_ms * MS, post);
            // Nobody reads what comes of it.
            self.at(self.now + 4 * latency + 2 * after_ms * MS, What::Gone(conn));
        }
        self.at(self.now + latency, What::Post { question: number, conn, nth, continued, request });
    }

    fn new_conn(&mut self) -> ConnNo {
        self.next_conn += 1;
        self.next_conn
    }

    /// A request arrives at the cloud.
    pub(super) fn post(
        &mut self,
        question: usize,
        conn: ConnNo,
        nth: usize,
        continued: bool,
        request: &Arc<AssistRequest>,
    ) {
        let asked = self.scenario.questions.iter().find(|asked| asked.number == question);
        let deadline = asked.and_then(|asked| asked.deadline_ms).map(Duration::from_millis);
        let taken = self.cloud.post((question, continued), request, deadline);
        self.tell(|| format!("cloud takes question {question} on {conn}: {:?}", taken.as_ref().map(|_| ())));
        match taken {
            Ok(stream) => self.connect(question, conn, nth, stream, None),
            Err(fault) => {
                let at = self.now + self.latency(question, conn + 1);
                self.at(at, What::Arrive { question, conn, what: ToClient::Lost(fault) });
            }
        }
    }

    /// The device tells the cloud that it wants nothing of a request any more, if anything remains of it.
    pub(super) fn end_request(&mut self, number: usize) {
        let Some(answer) = self.answers.get_mut(&number) else { return };
        let Some((request, remains)) = answer.open.take() else { return };
        if remains.any() {
            // It may be faster than the request itself.
            let latency = self.latency(number, self.now);
            self.at(self.now + latency, What::End { request });
        }
    }

    /// A request to go on with a stream arrives at the cloud.
    pub(super) fn get(
        &mut self,
        question: usize,
        conn: ConnNo,
        nth: usize,
        seen: u32,
        request: &Arc<AssistRequest>,
    ) {
        let found = self.cloud.find(request);
        self.tell(|| format!("cloud resumes question {question} behind {seen}: {}", found.is_some()));
        match found {
            Some(stream) => self.connect(question, conn, nth, stream, Some(seen)),
            None => {
                let at = self.now + self.latency(question, conn + 1);
                self.at(at, What::Arrive { question, conn, what: ToClient::Eof });
            }
        }
    }

    fn connect(&mut self, question: usize, no: ConnNo, nth: usize, stream: StreamNo, seen: Option<u32>) {
        self.cloud.read_by(stream, true);
        let conn = Conn {
            question,
            nth,
            stream,
            next: 0,
            sent: 0,
            flying: 0,
            last_at: self.now,
            late_ns: 0,
            seen,
            silent: false,
            over: false,
        };
        self.conns.insert(no, conn);
    }

    /// The cloud notices that a reader is gone.
    pub(super) fn gone(&mut self, conn: ConnNo) {
        if let Some(conn) = self.conns.remove(&conn) {
            self.cloud.read_by(conn.stream, false);
        }
    }

    /// The client closes its connection.
    pub(super) fn hang_up(&mut self, number: usize) {
        let Some(answer) = self.answers.get_mut(&number) else { return };
        let Some(conn) = answer.client.conn.take() else { return };
        let dead = self.conns.get(&conn).is_some_and(|conn| conn.silent);
        // Behind the request, if that is still under way.
        let wait = 2 * self.latency(number, conn) + if dead { DEAD_NS } else { 0 };
        self.at(self.now + wait, What::Gone(conn));
    }

    /// Something arrives at a client.
    pub(super) fn arrive(&mut self, number: usize, no: ConnNo, what: ToClient) {
        if let Some(conn) = self.conns.get_mut(&no) {
            conn.flying = conn.flying.saturating_sub(1);
        }
        let Some(answer) = self.answers.get_mut(&number) else { return };
        if answer.client.conn != Some(no) || answer.finished() {
            return;
        }
        match what {
            ToClient::Event(event) => {
                answer.client.heard(&event);
                if !answer.continued {
                    answer.seen.cloud(&event);
                }
                self.trace_event(number, &event);
                self.relay(number, RelayEvent::Cloud(event));
            }
            ToClient::Lost(fault) => {
                answer.client.conn = None;
                self.relay(number, RelayEvent::CloudLost(fault));
            }
            ToClient::Eof => {
                let was_resuming = answer.client.resuming;
                let seen = answer.client.resume(answer.request.resume).filter(|_| !was_resuming);
                answer.client.conn = None;
                match seen {
                    Some(seen) => self.resume(number, seen),
                    None => self.relay(number, RelayEvent::CloudLost(CloudFault::Disconnected)),
                }
            }
        }
    }

    /// Asks for the rest of a stream that was cut.
    fn resume(&mut self, number: usize, seen: u32) {
        let conn = self.new_conn();
        let latency = self.latency(number, conn);
        let Some(answer) = self.answers.get_mut(&number) else { return };
        answer.client.conn = Some(conn);
        let nth = answer.client.opened;
        answer.client.opened += 1;
        let request = Arc::clone(&answer.request);
        self.at(self.now + latency, What::Get { question: number, conn, nth, seen, request });
        let fault = CloudFault::Disconnected;
        self.at(self.now + RESUME_NS, What::Limit { question: number, conn, fault });
    }

    /// The limit of a try to resume is over.
    pub(super) fn limit(&mut self, number: usize, conn: ConnNo, fault: CloudFault) {
        let waits = |answer: &super::answer::Answer| {
            answer.client.conn == Some(conn) && answer.client.resuming && !answer.finished()
        };
        if self.answers.get(&number).is_some_and(waits) {
            self.hang_up(number);
            self.relay(number, RelayEvent::CloudLost(fault));
        }
    }

    /// All connections break.
    pub(super) fn break_all(&mut self) {
        for (no, conn) in std::mem::take(&mut self.conns) {
            if !conn.silent {
                let at = (self.now + self.latency(conn.question, no)).max(conn.last_at);
                self.at(at, What::Arrive { question: conn.question, conn: no, what: ToClient::Eof });
            }
        }
    }

    /// Sends what is new and has room.
    pub(super) fn feed_all(&mut self) {
        let conns: Vec<ConnNo> = self.conns.keys().copied().collect();
        for no in conns {
            while self.feed(no) {}
        }
        let pulled = self.cloud.pull();
        self.check(pulled);
    }

    /// Sends one event; returns whether there may be more.
    fn feed(&mut self, no: ConnNo) -> bool {
        let Some(conn) = self.conns.get_mut(&no) else { return false };
        let waiting = self.answers.get(&conn.question).map_or(0, |answer| answer.inbox.len());
        let room = conn.flying + waiting < WINDOW;
        let Some(stream) = self.cloud.up.as_mut().and_then(|up| up.streams.get_mut(&conn.stream)) else {
            return false;
        };
        let Some(event) = stream.log.get(conn.next).filter(|_| room && !conn.over).cloned() else {
            return false;
        };
        conn.next += 1;
        stream.taken = stream.taken.max(conn.next);
        if !wants(conn.seen, &event) {
            return true;
        }
        let at = conn.sent;
        conn.sent += 1;
        conn.over = matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
        self.put(no, at, event);
        true
    }

    /// Puts an event on the wire.
    fn put(&mut self, no: ConnNo, at: usize, event: AssistEvent) {
        let Some(conn) = self.conns.get(&no) else { return };
        let (question, nth) = (conn.question, conn.nth);
        let faults = self.scenario.faults.iter().filter_map(|fault| match fault {
            Fault::Line { question: of, stream, event, what }
                if (*of, *stream, *event) == (question, nth, at) =>
            {
                Some(*what)
            }
            _ => None,
        });
        let faults: Vec<LineFault> = faults.collect();
        let latency = self.latency(question, no << 20 | at as u64);
        let Some(conn) = self.conns.get_mut(&no) else { return };
        let mut arrival = (self.now + latency + conn.late_ns).max(conn.last_at);
        let mut copies = usize::from(!conn.silent);
        let mut event = event;
        for fault in faults {
            match fault {
                LineFault::Cut => return self.cut(no, arrival),
                LineFault::Late(ms) => {
                    conn.late_ns += ms * MS;
                    arrival += ms * MS;
                }
                LineFault::Silence => (conn.silent, copies) = (true, 0),
                LineFault::Double => copies *= 2,
                LineFault::Lose => copies = 0,
                // It is overtaken.
                LineFault::Swap => arrival += 40 * MS,
                LineFault::Damage => {
                    let fault = CloudFault::Damaged { reason: "a checksum".to_owned() };
                    conn.silent = true;
                    self.at(arrival, What::Arrive { question, conn: no, what: ToClient::Lost(fault) });
                    return;
                }
                LineFault::Spoil => spoil(&mut event),
            }
            let misleads =
                matches!(fault, LineFault::Double | LineFault::Lose | LineFault::Swap | LineFault::Spoil);
            if let Some(answer) = self.answers.get_mut(&question).filter(|_| misleads) {
                answer.misled = true;
            }
            if fault != LineFault::Swap {
                conn.last_at = arrival;
            }
        }
        let Some(conn) = self.conns.get_mut(&no) else { return };
        conn.flying += copies;
        conn.last_at = conn.last_at.max(if copies > 0 { self.now } else { 0 });
        if arrival < self.now + latency + conn.late_ns + 40 * MS {
            conn.last_at = conn.last_at.max(arrival);
        }
        for _ in 0..copies {
            let what = ToClient::Event(event.clone());
            self.at(arrival, What::Arrive { question, conn: no, what });
        }
        let Some(conn) = self.conns.get(&no) else { return };
        if conn.over && !conn.silent {
            // The reply is complete.
            let at = arrival.max(conn.last_at) + 1;
            self.at(at, What::Arrive { question, conn: no, what: ToClient::Eof });
            self.at(at, What::Gone(no));
        }
    }

    /// The connection is cut; what is under way still arrives.
    fn cut(&mut self, no: ConnNo, arrival: u64) {
        let Some(conn) = self.conns.get_mut(&no) else { return };
        conn.over = true;
        let (question, at) = (conn.question, arrival.max(conn.last_at));
        self.tell(|| format!("the line of question {question} is cut"));
        self.at(at, What::Arrive { question, conn: no, what: ToClient::Eof });
        self.at(at, What::Gone(no));
    }
}

/// Returns whether a reader that has seen this token wants an event, as the cloud decides it.
fn wants(seen: Option<u32>, event: &AssistEvent) -> bool {
    let Some(seen) = seen else { return true };
    match event {
        AssistEvent::Progress(_) | AssistEvent::Mask(_) => false,
        AssistEvent::First(_) | AssistEvent::Token(_) => event.index().is_some_and(|index| index > seen),
        AssistEvent::End(_) | AssistEvent::Error(_) => true,
    }
}

/// Changes a mask.
fn spoil(event: &mut AssistEvent) {
    if let AssistEvent::Mask(mask) = event {
        mask.kept += 1;
    }
}
