//! Keys and values on their way to a device: the bytes of frames, cut anywhere, and the fetch that puts them
//! together.
//!
//! Frames, layouts and rows are the real ones. Never: makes bytes up, except for those that a fault changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cloud::service::Handoff;
use baton_device::relay::{KvNews, RelayEvent};
use baton_engine::KvRows;
use baton_engine::engine::KvFormat;
use baton_protocol::{KvFrames, KvLayer, KvLayout, KvTicket};
use baton_random::mix;
use uuid::Uuid;

use super::answer::Answer;
use super::scenario::{Fault, KvFault};
use super::world::{MS, What, World};

/// Counts the connections by which keys and values come.
pub(super) type FetchNo = u64;
/// The largest piece of a stream, in bytes.
const PIECE_BYTES: usize = 700;
/// Most times that a fetch is taken up again, as the agent does.
const CUTS_MAX: usize = 3;
/// Longest silence of a fetch.
const SILENCE_NS: u64 = 5_000 * MS;

/// The cloud's end of a fetch.
pub(super) struct Sending {
    question: usize,
    request: Uuid,
    handoff: Arc<Handoff>,
    /// Which connection of the question it is.
    nth: usize,
    at: u64,
    pieces: usize,
    last_ns: u64,
    silent: bool,
}

/// All fetches, by connection.
pub(super) type Fetches = BTreeMap<FetchNo, Sending>;

/// The device's end of a fetch.
pub(super) struct Fetch {
    pub(super) no: FetchNo,
    frames: KvFrames,
    rows: KvRows,
    /// Connections so far.
    opened: usize,
}

/// What comes to a device.
pub(super) enum Come {
    Bytes(Vec<u8>),
    /// The stream was cut, or is silent.
    Cut,
    /// There is nothing to fetch.
    Gone,
}

impl World {
    /// Begins to fetch.
    pub(super) fn fetch_kv(&mut self, number: usize, ticket: &KvTicket) {
        let no = self.new_fetch();
        let Some(answer) = self.answers.get_mut(&number) else { return };
        let side = self.machines[answer.question.device].device.kv();
        let format = KvFormat::F16;
        let Some(widths) = side.map(|side| side.widths) else {
            return self.fail(format!("I11: the device of question {number} fetches what it cannot take"));
        };
        let layers = widths.iter();
        let layers = layers
            .map(|width| KvLayer { heads: width.heads, token_bytes: width.token_bytes(format) })
            .collect();
        let of = (answer.first_request().request_id, ticket.prompt_sha256.as_str());
        let layout = KvLayout::new(ticket.format, ticket.tokens as usize, layers, of);
        if let Err(wrong) = layout.check(ticket) {
            return self.fail(format!("I11: a ticket of question {number}: {wrong}"));
        }
        let rows = KvRows::new(format, layout.tokens(), layout.layers().len());
        answer.fetch = Some(Fetch { no, frames: KvFrames::new(layout), rows, opened: 1 });
        self.ask_kv(number, no, 0, 0);
    }

    fn new_fetch(&mut self) -> FetchNo {
        self.next_fetch += 1;
        self.next_fetch
    }

    fn ask_kv(&mut self, number: usize, no: FetchNo, nth: usize, from: u64) {
        let Some(answer) = self.answers.get(&number) else { return };
        let request = answer.first_request().request_id;
        let at = self.now + self.latency(number, no << 9);
        self.at(at, What::Fetch { question: number, no, nth, from, request });
    }

    /// A fetch arrives at the cloud.
    pub(super) fn post_fetch(
        &mut self,
        question: usize,
        (no, nth): (FetchNo, usize),
        from: u64,
        request: Uuid,
    ) {
        let found = self.cloud.handoff(request);
        self.tell(|| format!("cloud gives question {question} from byte {from}: {}", found.is_some()));
        match found {
            Some(handoff) => {
                let last_ns = self.now;
                let sending =
                    Sending { question, request, handoff, nth, at: from, pieces: 0, last_ns, silent: false };
                self.fetches.insert(no, sending);
            }
            None => self.come(question, no, Come::Gone, self.now),
        }
    }

    /// Sends what is there of all fetches.
    pub(super) fn feed_kv(&mut self) {
        let all: Vec<FetchNo> = self.fetches.keys().copied().collect();
        for no in all {
            while self.feed_piece(no) {}
        }
    }

    /// Sends a piece; returns whether there may be more.
    fn feed_piece(&mut self, no: FetchNo) -> bool {
        let (seed, bytes_per_s) = (self.scenario.seed, self.scenario.cloud.kv_bytes_per_s);
        let Some(sending) = self.fetches.get_mut(&no) else { return false };
        let (question, request) = (sending.question, sending.request);
        let bytes = match sending.handoff.look(sending.at) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return false,
            Err(_) => {
                self.fetches.remove(&no);
                self.come(question, no, Come::Cut, self.now);
                return false;
            }
        };
        let most = 1 + mix(mix(seed, no), sending.at) as usize % PIECE_BYTES;
        let mut piece = bytes[..bytes.len().min(most)].to_vec();
        sending.at += piece.len() as u64;
        let is_last = sending.at >= sending.handoff.bytes();
        let (nth, place) = (sending.nth, sending.pieces);
        sending.pieces += 1;
        sending.last_ns = sending.last_ns.max(self.now) + piece.len() as u64 * 1_000_000_000 / bytes_per_s;
        let (was_silent, mut sent_ns) = (sending.silent, sending.last_ns);
        let mut silent = was_silent;
        let mut faults = self.scenario.faults.iter().filter_map(|fault| match fault {
            Fault::Kv { question: of, fetch, piece, what }
                if (*of, *fetch, *piece) == (question, nth, place) =>
            {
                Some(*what)
            }
            _ => None,
        });
        let fault = faults.next_back();
        match fault {
            Some(KvFault::Cut) => {
                self.fetches.remove(&no);
                self.come(question, no, Come::Cut, sent_ns);
                return false;
            }
            Some(KvFault::Silence) => silent = true,
            Some(KvFault::Damage) => piece[0] ^= 0x40,
            Some(KvFault::Late(ms)) => sent_ns += ms * MS,
            None => {}
        }
        if let Some(sending) = self.fetches.get_mut(&no) {
            (sending.silent, sending.last_ns) = (silent, sent_ns);
        }
        if !silent {
            self.come(question, no, Come::Bytes(piece), sent_ns);
        } else if !was_silent {
            self.at(sent_ns + SILENCE_NS, What::Come { question, no, what: Come::Cut });
        }
        if is_last {
            self.fetches.remove(&no);
            self.cloud.handoff_read(request);
        }
        !is_last
    }

    fn come(&mut self, question: usize, no: FetchNo, what: Come, sent_ns: u64) {
        // Of one connection, so nothing overtakes what was sent before.
        let at = sent_ns + self.latency(question, no << 9 | 1);
        self.at(at, What::Come { question, no, what });
    }

    /// Something of a fetch arrives at a device.
    pub(super) fn came(&mut self, number: usize, no: FetchNo, what: Come) {
        let waits = |answer: &Answer| answer.fetch.as_ref().is_some_and(|fetch| fetch.no == no);
        let Some(answer) = self.answers.get_mut(&number).filter(|answer| waits(answer)) else { return };
        if answer.finished() {
            return;
        }
        let Some(fetch) = &mut answer.fetch else { return };
        let news = match what {
            Come::Bytes(bytes) => {
                let before = fetch.frames.whole_bytes();
                let rows = &mut fetch.rows;
                let pushed = fetch.frames.push(&bytes, |place, bytes| rows.push(place.layer, bytes));
                match pushed {
                    Err(wrong) => Some(KvNews::Failed { reason: wrong.to_string() }),
                    Ok(()) if fetch.frames.is_complete() => Some(KvNews::Whole(Arc::new(fetch.rows.clone()))),
                    Ok(()) if fetch.frames.whole_bytes() > before => {
                        Some(KvNews::Come { bytes: fetch.frames.whole_bytes() })
                    }
                    Ok(()) => None,
                }
            }
            Come::Cut if fetch.opened > CUTS_MAX => Some(KvNews::Failed { reason: "cut".to_owned() }),
            Come::Cut => {
                fetch.frames.cut();
                let (nth, from) = (fetch.opened, fetch.frames.whole_bytes());
                fetch.opened += 1;
                let again = self.new_fetch();
                if let Some(fetch) = self.answers.get_mut(&number).and_then(|answer| answer.fetch.as_mut()) {
                    fetch.no = again;
                }
                return self.ask_kv(number, again, nth, from);
            }
            Come::Gone => Some(KvNews::Failed { reason: "gone".to_owned() }),
        };
        let Some(news) = news else { return };
        if matches!(news, KvNews::Whole(_) | KvNews::Failed { .. }) {
            answer.fetch = None;
        }
        self.tell(|| format!("question {number} hears of keys and values: {news:?}"));
        self.trace.add("kv", &[self.now, number as u64]);
        self.relay(number, RelayEvent::Kv(news));
    }

    /// The device gives its fetch up.
    pub(super) fn drop_kv(&mut self, number: usize) {
        let Some(fetch) = self.answers.get_mut(&number).and_then(|answer| answer.fetch.take()) else {
            return;
        };
        let at = self.now + 2 * self.latency(number, fetch.no << 9);
        self.at(at, What::FetchGone(fetch.no));
    }

    /// The cloud ends: whoever fetches is told.
    pub(super) fn break_fetches(&mut self) {
        for (no, sending) in std::mem::take(&mut self.fetches) {
            if !sending.silent {
                self.come(sending.question, no, Come::Cut, self.now);
            }
        }
    }
}
