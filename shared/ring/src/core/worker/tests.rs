//! A worker's core against a scripted head: frames by hand, and every effect is looked at.

mod edge;
mod fetch;
mod parts;
mod serving;
mod session;

use std::collections::BTreeSet;
use std::path::PathBuf;

use baton_engine::Wanted;
use baton_engine::engine::{Hidden, KvFormat};
use baton_plan::{Device, Disk, Os, Processor, Window};

use super::*;
use crate::core::{Bug, Digest, Gone, LinkEffect, Node, States, StepNo};
use crate::wire::frame::{Activations, Configure, Heartbeat, Hello, Operation, Span, Step};

pub(super) const HEAD: DeviceId = DeviceId([1; 32]);
pub(super) const BEFORE: DeviceId = DeviceId([2; 32]);
pub(super) const NEXT: DeviceId = DeviceId([3; 32]);
pub(super) const OTHER: DeviceId = DeviceId([4; 32]);
pub(super) const CONTROL: LinkId = LinkId(1);
pub(super) const MODEL: Digest = [9; 32];
pub(super) const WIDTH: usize = 4;
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const SEQ: SeqNo = SeqNo(1);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn node(device: DeviceId) -> Node {
    Node { device, address: format!("at:{}", device.0[0]) }
}

pub(super) fn send(link: LinkId, frame: Frame) -> Effect {
    Effect::Link(LinkEffect::Send(link, frame))
}

pub(super) fn close(link: LinkId) -> Effect {
    Effect::Link(LinkEffect::Close(link))
}

pub(super) fn hold(link: LinkId) -> Effect {
    Effect::Link(LinkEffect::Hold(link))
}

pub(super) fn release(link: LinkId) -> Effect {
    Effect::Link(LinkEffect::Release(link))
}

pub(super) fn failed(epoch: u64, code: FailureCode, words: &str) -> [Effect; 2] {
    let (epoch, words) = (Epoch(epoch), words.to_owned());
    let failure = Failure { epoch, code, words: words.clone() };
    [send(CONTROL, Frame::Failed(failure)), Effect::Tell(WorkerNews::Failed { epoch, words })]
}

fn device() -> Device {
    let cpu = Processor { flops: Default::default(), read_bytes_per_s: 1e10, kv_copy_s: 0.0 };
    Device {
        name: "desk".into(),
        os: Os::Linux,
        cpu,
        gpu: None,
        memory_bytes: 1e9,
        swap_bytes: 0.0,
        buffer_bytes: 0.0,
        stream_bytes: 0.0,
        weight_bytes_max: None,
        disk: Disk { sequential_bytes_per_s: 1e9, random_bytes_per_s: 1e8 },
    }
}

/// Place 1 of three, with layers 2 and 3 of six; a place without a window if `relay`.
pub(super) fn configure(epoch: u64, relay: bool) -> Configure {
    let window = |place, begin, end| Window { round: 0, place, begin, end, gpu: 0 };
    let windows = if relay {
        vec![window(0, 0, 2), window(2, 2, 6)]
    } else {
        vec![window(0, 0, 2), window(1, 2, 4), window(2, 4, 6)]
    };
    Configure {
        epoch: Epoch(epoch),
        place: 1,
        n_layers: 6,
        width: WIDTH as u32,
        prefetch_bytes: 0,
        reads_ahead: false,
        windows,
        model: MODEL,
        kv_tokens: 64,
        kv_format: KvFormat::F32,
        prefix_percent: 0,
        window: None,
        next: node(NEXT),
        before: BEFORE,
        others: vec![node(OTHER)],
        activations: Activations::F32,
        heartbeat: ms(300),
        hop: ms(5000),
    }
}

pub(super) fn states(rows: usize) -> States {
    States::of(Hidden { rows, width: WIDTH, values: vec![0.5; rows * WIDTH] })
}

/// The first frame of an epoch: a sequence, and a step of so many rows.
pub(super) fn first_step(epoch: u64, rows: usize) -> Step {
    let span = Span { seq: SEQ, start: 0, wanted: Wanted::Last, ids: vec![7; rows] };
    Step {
        epoch: Epoch(epoch),
        step: StepNo(5),
        round: 0,
        layers_done: 2,
        audit: None,
        rows: 0..rows,
        operations: vec![
            Operation::Create { seq: SEQ },
            Operation::Open { step: StepNo(5), spans: vec![span] },
        ],
        activations: Activations::F32,
        states: states(rows),
    }
}

/// A worker, its host's view of links and works, and the time.
pub(super) struct Rig {
    pub(super) core: WorkerCore,
    pub(super) now: Duration,
    wake: Option<Duration>,
    open: BTreeSet<LinkId>,
    opening: BTreeSet<LinkId>,
    pub(super) computing: Option<WorkId>,
    pub(super) on_disk: Option<DiskId>,
    /// Whether heartbeats are among the effects that are returned.
    beats: bool,
    arrivals: u64,
}

impl Rig {
    pub(super) fn new(planted: Planted) -> Self {
        let setup = WorkerSetup {
            own: node(DeviceId([8; 32])),
            hello: Hello { name: "desk".into(), device: Some(device()) },
            patience: PATIENCE,
            silence: Duration::from_secs(15),
        };
        let now = Duration::from_secs(100);
        Self {
            core: WorkerCore::new(setup, now).planted(planted),
            now,
            wake: None,
            open: BTreeSet::new(),
            opening: BTreeSet::new(),
            computing: None,
            on_disk: None,
            beats: false,
            arrivals: 1,
        }
    }

    /// A worker with a head's session.
    pub(super) fn with_head() -> Self {
        Self::with_head_and(Planted::default())
    }

    pub(super) fn with_head_and(planted: Planted) -> Self {
        let mut rig = Self::new(planted);
        rig.arrive(CONTROL, HEAD, Purpose::Control);
        rig
    }

    /// Steps the core, and holds its effects to the rules of a host.
    pub(super) fn event(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = self.core.step(event, self.now);
        let Some(Effect::WakeAt(wake)) = effects.pop() else { panic!("the time is last") };
        assert!(wake.is_none_or(|wake| wake > self.now), "{wake:?} is not after {:?}", self.now);
        self.wake = wake;
        for effect in &effects {
            self.check(effect);
        }
        effects.retain(|effect| {
            self.beats || !matches!(effect, Effect::Link(LinkEffect::Send(_, Frame::Heartbeat(_))))
        });
        effects
    }

    fn check(&mut self, effect: &Effect) {
        match effect {
            Effect::Link(LinkEffect::Connect { link, .. }) => {
                assert!(link.0.is_multiple_of(2) && self.opening.insert(*link), "{effect:?}");
            }
            Effect::Link(LinkEffect::Send(link, _)) => assert!(self.open.contains(link), "{effect:?}"),
            Effect::Link(LinkEffect::Close(link)) => {
                assert!(self.open.remove(link) || self.opening.remove(link), "{effect:?}");
            }
            Effect::Link(LinkEffect::Hold(link) | LinkEffect::Release(link)) | Effect::Give(link, _) => {
                assert!(self.open.contains(link), "{effect:?}");
            }
            Effect::Compute(work, _) => assert_eq!(self.computing.replace(*work), None, "{effect:?}"),
            Effect::Interrupt => assert!(self.computing.is_some()),
            Effect::Disk(id, _) => assert_eq!(self.on_disk.replace(*id), None, "{effect:?}"),
            Effect::Abort(id) => assert_eq!(self.on_disk, Some(*id)),
            Effect::WakeAt(_) => panic!("the time is last"),
            Effect::Link(LinkEffect::Allow(_)) | Effect::Tell(_) | Effect::Note(_) | Effect::Discard(_) => {}
        }
    }

    pub(super) fn arrive(&mut self, link: LinkId, from: DeviceId, purpose: Purpose) -> Vec<Effect> {
        self.open.insert(link);
        self.event(Event::Link(LinkEvent::Arrived { link, from, purpose }))
    }

    /// Another device opens a link; returns its number too.
    pub(super) fn arrives(&mut self, from: DeviceId, purpose: Purpose) -> (LinkId, Vec<Effect>) {
        self.arrivals += 2;
        let link = LinkId(self.arrivals);
        (link, self.arrive(link, from, purpose))
    }

    pub(super) fn heard(&mut self, link: LinkId, frame: Frame) -> Vec<Effect> {
        assert!(self.open.contains(&link), "{link:?} is open");
        self.event(Event::Link(LinkEvent::Heard(link, frame)))
    }

    pub(super) fn head(&mut self, frame: Frame) -> Vec<Effect> {
        self.heard(CONTROL, frame)
    }

    pub(super) fn gone(&mut self, link: LinkId) -> Vec<Effect> {
        assert!(self.open.remove(&link), "{link:?} was open");
        self.event(Event::Link(LinkEvent::Gone(link, Gone::Closed("cut".into()))))
    }

    pub(super) fn no_frame(&mut self, link: LinkId) -> Vec<Effect> {
        assert!(self.open.remove(&link), "{link:?} was open");
        self.event(Event::Link(LinkEvent::Gone(link, Gone::NoFrame("odd bytes".into()))))
    }

    pub(super) fn opened(&mut self, link: LinkId) -> Vec<Effect> {
        assert!(self.opening.remove(&link) && self.open.insert(link));
        self.event(Event::Link(LinkEvent::Opened(link, Ok(()))))
    }

    pub(super) fn not_opened(&mut self, link: LinkId) -> Vec<Effect> {
        assert!(self.opening.remove(&link));
        self.event(Event::Link(LinkEvent::Opened(link, Err("refused".into()))))
    }

    /// The engine has done its present work.
    pub(super) fn computed(&mut self, done: WorkerDone) -> Vec<Effect> {
        let work = self.computing.take().expect("the engine works");
        self.event(Event::Computed { work, done, took: ms(7) })
    }

    /// The disk has something to say of its present work.
    pub(super) fn disk(&mut self, event: DiskEvent) -> Vec<Effect> {
        let id = self.on_disk.expect("the disk works");
        if !matches!(event, DiskEvent::Progress { .. }) {
            self.on_disk = None;
        }
        self.event(Event::Disk(id, event))
    }

    /// Lets time pass, with all ticks. The head says that it lives.
    pub(super) fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.pass_with(time, true)
    }

    pub(super) fn pass_with(&mut self, time: Duration, head_lives: bool) -> Vec<Effect> {
        let (end, mut effects) = (self.now + time, Vec::new());
        while let Some(wake) = self.wake.filter(|wake| *wake <= end) {
            self.now = wake;
            effects.extend(self.event(Event::Tick(Meters::default())));
            if head_lives && self.open.contains(&CONTROL) {
                effects.extend(self.head(Frame::Heartbeat(Heartbeat::default())));
            }
        }
        self.now = end;
        effects
    }

    /// Has the weights of a part of this epoch, and its links. Returns the link to the next device and the
    /// one from the device before.
    pub(super) fn serve(&mut self, configure: Configure) -> (LinkId, LinkId) {
        let (epoch, relay) = (configure.epoch, !configure.windows.iter().any(|w| w.place == 1));
        let mut effects = self.head(Frame::Configure(Box::new(configure)));
        while !relay && !begins(&effects) {
            effects = match self.on_disk {
                Some(_) => self.disk(DiskEvent::Whole(PathBuf::from("model"))),
                None => self.computed(WorkerDone::Forgotten),
            };
        }
        if !relay {
            effects = self.computed(WorkerDone::Begun);
        }
        let out = connected(&effects);
        self.opened(out);
        let (back, _) = self.arrives(BEFORE, Purpose::Ring);
        let effects = self.heard(back, Frame::Enter { epoch, place: 0 });
        assert_eq!(effects[0], send(CONTROL, Frame::Ready { epoch }));
        (out, back)
    }

    /// The heartbeat that is sent next.
    pub(super) fn next_beat(&mut self, meters: Meters) -> Heartbeat {
        self.beats = true;
        self.now += Duration::from_secs(1);
        let effects = self.event(Event::Tick(meters));
        self.beats = false;
        let beat = effects.into_iter().find_map(|effect| match effect {
            Effect::Link(LinkEffect::Send(CONTROL, Frame::Heartbeat(beat))) => Some(beat),
            _ => None,
        });
        beat.expect("a heartbeat is due")
    }
}

/// Returns the link that is opened.
pub(super) fn connected(effects: &[Effect]) -> LinkId {
    let link = effects.iter().find_map(|effect| match effect {
        Effect::Link(LinkEffect::Connect { link, .. }) => Some(*link),
        _ => None,
    });
    link.unwrap_or_else(|| panic!("no link is opened: {effects:?}"))
}

pub(super) fn begins(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Compute(_, WorkerWork::Begin { .. })))
}

/// Returns the step and the layers that are computed.
pub(super) fn passes(effects: &[Effect]) -> Option<(Step, std::ops::Range<usize>)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Compute(_, WorkerWork::Pass { step, layers }) => {
            Some((step.as_ref().clone(), layers.clone()))
        }
        _ => None,
    })
}

/// Returns what the disk shall do.
pub(super) fn on_disk(effects: &[Effect]) -> Option<&DiskWork> {
    effects.iter().find_map(|effect| match effect {
        Effect::Disk(_, work) => Some(work),
        _ => None,
    })
}
