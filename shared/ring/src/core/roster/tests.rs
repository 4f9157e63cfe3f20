//! The roster against scripted devices: who comes, who is silent, who is at fault.

use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_plan::{Plan, Share};

mod blame;
mod come;

use super::*;
use crate::core::echo::answer;
use crate::core::form::Formed;
use crate::core::head::{CacheSetup, Effect, Fault, Pace, Planned, Progress};
use crate::core::layout::Layout;
use crate::core::planted::{Bug, Planted};
use crate::core::{Give, LinkEffect, Note, Purpose};
use crate::wire::frame::{Activations, EchoData, Failure, FailureCode, LinkSpeed, MeasuredLink, Provide};

pub(in crate::core) const SECOND: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

/// A device with this number; the head is 0.
pub(in crate::core) fn device(number: u8) -> DeviceId {
    DeviceId([number; 32])
}

pub(in crate::core) fn node(number: u8) -> Node {
    Node { device: device(number), address: format!("address {number}") }
}

/// Its name.
pub(in crate::core) fn name(number: u8) -> String {
    format!("d{number}")
}

pub(in crate::core) fn hello(number: u8) -> Hello {
    Hello { name: name(number), device: None }
}

fn speed(bytes_per_s: f64) -> LinkSpeed {
    LinkSpeed { latency_s: 0.0, there_bytes_per_s: bytes_per_s, back_bytes_per_s: bytes_per_s }
}

/// A head of six layers that knows the paths between all of its devices.
pub(in crate::core) fn setup() -> HeadSetup {
    let mut ways = Ways::default();
    for a in 0..12 {
        (a + 1..12).for_each(|b| ways.put(device(a), device(b), speed(1e8)));
    }
    HeadSetup {
        own: node(0),
        name: name(0),
        n_layers: 6,
        width: 4,
        vocab: 32,
        engine: CacheSetup { kv_tokens: 64, kv_format: KvFormat::F32, prefix_percent: 25, window: None },
        activations: Activations::F32,
        reads_ahead: true,
        chunk_rows: (16, 128),
        heartbeat: HEARTBEAT,
        hop: SECOND * 5,
        floor: SECOND * 5,
        token: SECOND / 2,
        patience: PATIENCE,
        health: PATIENCE,
        ways,
    }
}

/// A plan of one round: so many layers for each of these devices.
pub(in crate::core) fn plan(shares: &[(u8, usize)]) -> Planned {
    let share = |(number, layers): &(u8, usize)| Share {
        device: name(*number),
        layers: *layers,
        gpu_layers: 0,
        prefetch_bytes: 1000.0,
        relays: Vec::new(),
    };
    let shares: Vec<Share> = shares.iter().map(share).collect();
    let plan = Plan { layers: shares.iter().map(|share| share.layers).sum(), rounds: 1, shares };
    Planned { plan, pace: Pace { token: SECOND, first: SECOND * 2 } }
}

/// What happens in one case of a test.
type Script<'a> = &'a dyn Fn(&mut Home);

/// A roster, and everything that it did.
pub(in crate::core) struct Home {
    pub(in crate::core) roster: Roster,
    pub(in crate::core) fx: Fx,
    pub(in crate::core) now: Duration,
    pub(in crate::core) effects: Vec<Effect>,
    /// Whether devices answer echoes, at once.
    pub(in crate::core) echoes: bool,
}

impl Home {
    pub(in crate::core) fn new() -> Self {
        Self::with(&setup(), Planted::default())
    }

    pub(in crate::core) fn with(setup: &HeadSetup, planted: Planted) -> Self {
        let mut roster = Roster::new(setup, planted);
        roster.read(ModelFacts { digest: [7; 32], file_len: 6_000_000, header_bytes: 256_000 });
        Self { roster, fx: Fx::default(), now: SECOND, effects: Vec::new(), echoes: true }
    }

    /// Devices 1 to `count` are members.
    pub(in crate::core) fn of(count: u8) -> Self {
        let mut home = Self::new();
        home.admit(&(1..=count).collect::<Vec<_>>());
        home
    }

    /// Keeps what was done, and lets devices answer echoes.
    pub(in crate::core) fn settle(&mut self) {
        loop {
            let done = self.fx.take();
            let echo = |effect: &Effect| match effect {
                Effect::Link(LinkEffect::Send(link, Frame::Echo(echo))) => Some((*link, echo.clone())),
                _ => None,
            };
            let echoes: Vec<(LinkId, EchoData)> = done.iter().filter_map(echo).collect();
            self.effects.extend(done);
            if echoes.is_empty() || !self.echoes {
                return;
            }
            echoes.into_iter().for_each(|(link, echo)| {
                self.roster.heard(link, answer(&echo), self.now, &mut self.fx);
            });
        }
    }

    /// These devices come, one after the other.
    pub(in crate::core) fn admit(&mut self, numbers: &[u8]) {
        self.roster.begin_admit(numbers.iter().map(|number| node(*number)).collect(), true);
        for number in numbers {
            assert_eq!(self.roster.admit(&mut self.fx), Progress::Waiting);
            self.settle();
            self.open(*number);
            self.say(*number, Frame::Hello(hello(*number)));
        }
        let came = numbers.iter().map(|number| device(*number)).collect();
        assert_eq!(self.roster.admit(&mut self.fx), Progress::Done(Ok(came)));
    }

    /// The latest control channel to a device.
    pub(in crate::core) fn control(&self, number: u8) -> LinkId {
        let link = |effect: &Effect| match effect {
            Effect::Link(LinkEffect::Connect { link, to, purpose: Purpose::Control, .. })
                if to.device == device(number) =>
            {
                Some(*link)
            }
            _ => None,
        };
        self.effects.iter().rev().find_map(link).expect("a control channel")
    }

    pub(in crate::core) fn controls(&self, number: u8) -> usize {
        let is_it = |effect: &&Effect| {
            matches!(effect, Effect::Link(LinkEffect::Connect { to, purpose: Purpose::Control, .. })
                if to.device == device(number))
        };
        self.effects.iter().filter(is_it).count()
    }

    pub(in crate::core) fn open(&mut self, number: u8) {
        let link = self.control(number);
        self.roster.opened(link, Ok(()), self.now, &mut self.fx);
        self.settle();
    }

    /// A device sends a frame over its control channel.
    pub(in crate::core) fn say(&mut self, number: u8, frame: Frame) {
        let link = self.control(number);
        self.roster.heard(link, frame, self.now, &mut self.fx);
        self.settle();
    }

    /// The control channel of a device ends.
    pub(in crate::core) fn hang_up(&mut self, number: u8, words: &str) {
        let link = self.control(number);
        self.roster.gone(link, words.to_owned(), self.now, &mut self.fx);
        self.settle();
    }

    /// Time passes, in one leap.
    pub(in crate::core) fn leap(&mut self, time: Duration) {
        self.now += time;
        self.roster.on_time(self.now, &mut self.fx);
        self.settle();
    }

    pub(in crate::core) fn closed(&self, link: LinkId) -> usize {
        let is_it = |effect: &&Effect| matches!(effect, Effect::Link(LinkEffect::Close(at)) if *at == link);
        self.effects.iter().filter(is_it).count()
    }

    /// The frames that were sent on a link.
    pub(in crate::core) fn sent(&self, link: LinkId) -> Vec<&Frame> {
        let mut sent = Vec::new();
        for effect in &self.effects {
            if let Effect::Link(LinkEffect::Send(at, frame)) = effect
                && *at == link
            {
                sent.push(frame);
            }
        }
        sent
    }

    /// The frames but heartbeats and echoes that were sent to a device over its latest control channel.
    pub(in crate::core) fn told(&self, number: u8) -> Vec<&Frame> {
        let quiet = |frame: &&Frame| !matches!(frame, Frame::Heartbeat(_) | Frame::Echo(_));
        self.sent(self.control(number)).into_iter().filter(quiet).collect()
    }

    pub(in crate::core) fn notes(&self) -> Vec<&Note> {
        let mut notes = Vec::new();
        for effect in &self.effects {
            if let Effect::Note(note) = effect {
                notes.push(note);
            }
        }
        notes
    }

    pub(in crate::core) fn lost(&self) -> Vec<String> {
        self.roster.lost().map(|lost| format!("{}: {}", lost.name, lost.words)).collect()
    }

    /// A device reports a failure.
    pub(in crate::core) fn fail(&mut self, number: u8, epoch: u64, code: FailureCode) {
        let words = format!("{code:?}");
        self.say(number, Frame::Failed(Failure { epoch: Epoch(epoch), code, words }));
    }

    fn greet(&mut self, number: u8, strict: bool) {
        self.roster.begin_admit(vec![node(number)], strict);
        assert_eq!(self.roster.admit(&mut self.fx), Progress::Waiting);
        self.settle();
    }

    fn admitted(&mut self) -> Result<Vec<DeviceId>, String> {
        match self.roster.admit(&mut self.fx) {
            Progress::Done(done) => done,
            Progress::Waiting => panic!("it still greets"),
        }
    }
}

fn unknown() -> Home {
    Home::with(&HeadSetup { ways: Ways::default(), ..setup() }, Planted::default())
}

fn beat(epoch: u64, received: u64, sent: u64) -> Frame {
    Frame::Heartbeat(Heartbeat { epoch: Epoch(epoch), received, sent, ..Heartbeat::default() })
}

// What is heard.

#[test]
fn frames_of_a_control_channel_change_what_is_known() {
    let mut home = Home::of(1);
    let link = home.control(1);
    home.say(1, beat(3, 2, 1));
    assert_eq!(home.roster.beat(device(1)).map(|beat| (beat.epoch, beat.received)), Some((Epoch(3), 2)));
    home.say(1, Frame::Ready { epoch: Epoch(3) });
    assert!(home.roster.is_ready(device(1), Epoch(3)) && !home.roster.is_ready(device(1), Epoch(2)));
    let begun = home.roster.fed_at(device(1)).unwrap();
    home.now += SECOND;
    home.say(1, Frame::FetchProgress);
    assert_eq!(home.roster.fed_at(device(1)), Some(begun + SECOND));
    home.now += SECOND;
    home.roster.gave(link, home.now);
    assert_eq!(home.roster.fed_at(device(1)), Some(begun + SECOND * 2));
    home.fail(1, 3, FailureCode::Before);
    home.fail(1, 3, FailureCode::Engine);
    let places = [device(1)];
    let trouble = home.roster.trouble(&places, Epoch(3));
    assert!(matches!(trouble, Some(Fault::Lost { place: 1, .. })), "the latest failure counts");
    home.fail(1, 2, FailureCode::Engine);
    assert_eq!(home.roster.trouble(&places, Epoch(3)), None, "of another epoch");
}

#[test]
fn pieces_of_the_model_are_given_in_bounds() {
    let mut home = Home::of(1);
    let link = home.control(1);
    home.say(1, Frame::FetchManifest);
    home.say(1, Frame::FetchPieces { first: 5, count: 16 });
    let given: Vec<&Give> = home
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Give(at, give) if *at == link => Some(give),
            _ => None,
        })
        .collect();
    assert!(matches!(given[..], [Give::List, Give::Pieces { first: 5, count: 16 }]), "{given:?}");
    home.say(1, Frame::FetchPieces { first: 5, count: 17 });
    assert_eq!(home.closed(link), 1);
}

#[test]
fn a_device_that_sends_what_is_the_heads_to_send_is_lost() {
    for frame in [Frame::Hello(hello(1)), Frame::AwaitEdge { from: device(2) }, Frame::Manifest(vec![1])] {
        let mut home = Home::of(1);
        let link = home.control(1);
        home.say(1, frame);
        assert_eq!(home.closed(link), 1);
        let fault = home.roster.trouble(&[device(1)], Epoch(0));
        let words = "it sent a frame that is the head's to send".to_owned();
        assert_eq!(fault, Some(Fault::Lost { place: 1, words }));
        home.say(1, beat(1, 1, 1));
        home.leap(SECOND * 9);
        assert_eq!(home.roster.beat(device(1)), Some(&Heartbeat::default()), "nothing is heard any more");
        assert_eq!(home.closed(link), 1);
        home.roster.bury(&mut home.fx);
        home.settle();
        assert_eq!((home.closed(link), home.roster.present()), (1, vec![]));
    }
}

#[test]
fn the_first_reason_of_a_loss_stays() {
    let mut home = Home::of(1);
    home.hang_up(1, "first");
    home.hang_up(1, "second");
    home.roster.bury(&mut home.fx);
    home.settle();
    assert_eq!(home.lost(), ["d1: first"]);
    assert_eq!(home.closed(home.control(1)), 0, "it had ended");
    assert_eq!(home.notes(), [&Note::Lost { device: "d1".into(), words: "first".into() }]);
}

// Time.

#[test]
fn a_device_is_lost_by_its_own_silence_and_not_by_this_devices_lateness() {
    let tick = HEARTBEAT / 4;
    let mut home = Home::of(1);
    for _ in 0..30 {
        // This device is late each time; the heartbeat is there when it goes on.
        home.leap(SECOND * 4);
        home.say(1, beat(0, 0, 0));
    }
    assert_eq!(home.roster.trouble(&[device(1)], Epoch(0)), None);
    for quiet in 0..12 {
        home.leap(tick);
        assert_eq!(home.roster.trouble(&[device(1)], Epoch(0)), None, "{quiet} ticks");
    }
    home.leap(tick);
    let words = format!("silent for {} ms", (tick * 13).as_millis());
    assert_eq!(home.roster.trouble(&[device(1)], Epoch(0)), Some(Fault::Lost { place: 1, words }));
    assert_eq!(home.closed(home.control(1)), 1);
}

#[test]
fn any_frame_ends_the_silence() {
    let mut home = Home::of(1);
    for _ in 0..100 {
        home.leap(HEARTBEAT * 2);
        home.say(1, Frame::FetchProgress);
    }
    assert_eq!(home.roster.trouble(&[device(1)], Epoch(0)), None);
}

#[test]
fn the_planted_bug_counts_own_lateness() {
    let mut home = Home::with(&setup(), Planted::bug(Bug::OwnLatenessCounts));
    home.admit(&[1]);
    home.leap(SECOND * 4);
    assert!(home.roster.trouble(&[device(1)], Epoch(0)).is_some());
}

#[test]
fn heartbeats_go_to_members_in_time() {
    let mut home = Home::of(2);
    let beats = |home: &Home, number| {
        let sent = home.sent(home.control(number));
        sent.into_iter().filter(|frame| matches!(frame, Frame::Heartbeat(_))).count()
    };
    for at in 1..=8 {
        assert_eq!(home.roster.wake_at(), Some(home.now + HEARTBEAT / 4));
        home.leap(HEARTBEAT / 4);
        assert_eq!(beats(&home, 1), 1 + at / 4);
    }
    home.hang_up(1, "cut");
    home.leap(HEARTBEAT);
    assert_eq!((beats(&home, 1), beats(&home, 2)), (3, 4));
    home.hang_up(2, "cut");
    assert_eq!(home.roster.wake_at(), None);
    home.roster.end(&mut home.fx);
    home.settle();
    assert_eq!(home.closed(home.control(1)) + home.closed(home.control(2)), 0);
}
