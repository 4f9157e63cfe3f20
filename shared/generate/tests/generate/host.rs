//! The host over a real, tiny engine, in virtual time: whatever runs beside it, an answer is what it would be
//! alone.

mod life;
mod moved;
mod world;

use std::sync::Arc;

use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, EngineOptions, StepControl, StepError};
use baton_generate::answer::{Accepted, Keep};
use baton_generate::host::{Host, HostHandle, HostOptions};
use baton_generate::job::Order;
use baton_generate::scheduler::{CloseReason, Goal, JobId, Limits, SchedulerStats};
use baton_generate::speculation::{Drafts, Lookups, Policy, Proposer, SpeculationLimits, Want};
use baton_random::SplitMix64;

use self::world::{Ask, ByHand, Reader, adapter, engine, model, options, prompt, sampling};

/// Turns after which a simulation has not ended and never will.
const TURNS_MAX: usize = 20_000;

/// What a job does.
#[derive(Debug)]
enum Kind {
    /// Writes its answer.
    Write,
    /// Holds a part of its prompt until it is cancelled.
    Hold,
    /// Holds its prompt, then goes on behind a part that another wrote.
    Relay(Relay),
}

#[derive(Debug)]
struct Relay {
    /// The prompt that it begins with, if it is another one than the answer's.
    before: Option<Vec<TokenId>>,
    accepted: Accepted,
    keep: Keep,
    index: usize,
    /// Whether the decision is sent before the verification is known.
    blind: bool,
    next: Next,
}

/// The order that a relay sends next.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Prompt,
    Accept,
    Decide,
    Done,
}

struct Sim {
    id: JobId,
    ask: Ask,
    kind: Kind,
    arrives_at: usize,
    cancelled_at: Option<usize>,
    reads_percent: usize,
    reader: Option<Reader>,
}

impl Sim {
    fn random(random: &mut SplitMix64, id: JobId) -> Sim {
        let longest = [16, 90][random.below(2)];
        let mut ask = Ask {
            prompt: prompt(random, 120),
            sampling: sampling(random),
            max_tokens: 1 + random.below(longest),
            adapted: random.percent(25),
            owner: random.below(2) as u128,
        };
        let kind = match random.below(5) {
            0..=1 => Kind::Write,
            2 => Kind::Hold,
            _ => {
                ask.max_tokens += 20;
                Kind::Relay(relay(random, &ask))
            }
        };
        let may_cancel = random.percent(20) || matches!(kind, Kind::Hold);
        let arrives_at = random.below(40);
        Sim {
            id,
            ask,
            kind,
            arrives_at,
            cancelled_at: may_cancel.then(|| arrives_at + random.below(60)),
            reads_percent: [100, 60, 10][random.below(3)],
            reader: None,
        }
    }

    fn submit(&mut self, handle: &HostHandle, adapter: AdapterId) {
        let (ask, goal) = match &self.kind {
            Kind::Write => (self.ask.clone(), Goal::Write),
            Kind::Hold => (self.ask.clone(), Goal::Hold { upto: self.ask.prompt.len() / 2 }),
            Kind::Relay(Relay { before: Some(before), .. }) => {
                (Ask { prompt: before.clone(), ..self.ask.clone() }, Goal::Hold { upto: before.len() })
            }
            Kind::Relay(_) => (self.ask.clone(), Goal::Hold { upto: self.ask.prompt.len() - 1 }),
        };
        let (job, reader) = ask.job(self.id, goal, Some(adapter));
        handle.submit(job).unwrap();
        self.reader = Some(reader);
    }

    /// Does what the job's reader does at this time.
    fn act(&mut self, now: usize, handle: &HostHandle, random: &mut SplitMix64) {
        let Some(reader) = self.reader.as_ref().filter(|reader| !reader.ended()) else { return };
        if self.cancelled_at.is_some_and(|at| at <= now) {
            reader.cancel.set();
            handle.cancelled();
        }
        if random.percent(self.reads_percent) {
            reader.read();
        }
        let Kind::Relay(relay) = &mut self.kind else { return };
        let known = relay.blind || reader.with(|record| !record.verified.is_empty());
        if !random.percent(30) {
            return;
        }
        match relay.next {
            Next::Prompt => {
                let ids = self.ask.prompt.clone();
                let goal = Goal::Hold { upto: ids.len() - 1 };
                let (max_tokens, pass_tokens) = (self.ask.max_tokens, 8 + random.below(20));
                handle.order(self.id, Order::Prompt { ids, evidence: None, max_tokens, goal, pass_tokens });
                relay.next = Next::Accept;
            }
            Next::Accept => {
                handle.order(self.id, Order::Accept(relay.accepted.clone()));
                relay.next = Next::Decide;
            }
            Next::Decide if known => {
                handle.order(self.id, Order::Decide { keep: relay.keep, index: relay.index });
                relay.next = Next::Done;
            }
            Next::Decide | Next::Done => {}
        }
    }

    /// Checks the end against an answer that was written alone.
    fn check(&self, what: &str) {
        let reader = self.reader.as_ref().unwrap();
        let (want, by_itself) = match &self.kind {
            Kind::Write => self.ask.alone(&[]),
            Kind::Hold => (Vec::new(), false),
            Kind::Relay(Relay { accepted: Accepted::Ids(ids), keep, .. }) => {
                let Keep::Tokens(kept) = keep else { panic!("ids are kept by their number") };
                self.ask.alone(&ids[..*kept])
            }
            Kind::Relay(Relay { accepted: Accepted::Text(text), .. }) => self.ask.alone_behind(text),
        };
        reader.with(|record| {
            let (reason, tokens, fault) = record.end.as_ref().unwrap();
            let what = format!("{what}: job {:?} {:?} ended {reason:?}, {fault:?}", self.id, self.kind);
            match reason {
                CloseReason::Stop => assert!(by_itself, "{what}"),
                CloseReason::Cap => assert!(!by_itself, "{what}"),
                CloseReason::Cancelled => assert!(self.cancelled_at.is_some(), "{what}"),
                other => panic!("{what}: {other:?}"),
            }
            assert_eq!(record.opened.min(1), record.begun.min(1), "{what}");
            assert_eq!(record.closed.unwrap().id, self.id, "{what}");
            if *reason == CloseReason::Cancelled {
                assert!(want.starts_with(tokens), "{what}");
                return;
            }
            assert_eq!(*tokens, want, "{what}");
            let ids: Vec<TokenId> = record.written.iter().map(|(_, id)| *id).collect();
            if let Kind::Write = self.kind {
                assert_eq!(ids, want, "{what}");
                assert!(record.computed_tokens > 0, "{what}");
            }
            if let Kind::Relay(Relay { accepted: Accepted::Ids(_), keep: Keep::Tokens(kept), .. }) = self.kind
            {
                assert_eq!(ids, want[kept..], "{what}");
                assert_eq!(record.written.first().map(|(index, _)| *index), ids.first().map(|_| kept));
            }
        });
    }
}

fn relay(random: &mut SplitMix64, ask: &Ask) -> Relay {
    let before = random.percent(50).then(|| {
        let shared = random.below(ask.prompt.len());
        [&ask.prompt[..shared], &prompt(random, 40)].concat()
    });
    let next = if before.is_some() { Next::Prompt } else { Next::Accept };
    let blind = random.percent(30);
    if random.percent(30) {
        let text = ["the red item", "a", "Baton holds", "12 34 5"][random.below(4)].to_owned();
        let index = model().tokenizer().encode_answer(&text).0.len();
        return Relay { before, accepted: Accepted::Text(text), keep: Keep::All, index, blind, next };
    }
    // What the model would write itself, and then something else.
    let (mut ids, _) = ask.alone(&[]);
    ids.truncate(random.below(ids.len() + 1).min(ask.max_tokens - 1));
    if let Some(last) = ids.last_mut().filter(|_| random.percent(50)) {
        *last = random.below(200) as u32;
    }
    let kept = random.below(ids.len() + 1);
    Relay { before, accepted: Accepted::Ids(ids), keep: Keep::Tokens(kept), index: kept, blind, next }
}

/// Proposes anything.
struct Anything(SplitMix64);

impl Proposer for Anything {
    fn propose(
        &mut self,
        wants: &[Want<'_>],
        _control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError> {
        let propose = |want: &Want<'_>| (0..want.k + 1).map(|_| self.0.below(200) as u32).collect();
        Ok(wants.iter().map(propose).collect())
    }

    fn forget(&mut self, _id: JobId) {}
}

fn proposer(random: &mut SplitMix64) -> Option<Box<dyn Proposer>> {
    match random.below(4) {
        0 => None,
        1 => Some(Box::new(Lookups::default())),
        2 => {
            let options = EngineOptions { kv_tokens: 512, ..EngineOptions::default() };
            Some(Box::new(Drafts::new(model(), Arc::clone(model()), options).unwrap()))
        }
        _ => Some(Box::new(Anything(SplitMix64::new(random.next_u64())))),
    }
}

/// Runs one simulation; returns the scheduler's figures at its end, and how often answers were parked.
fn simulate(seed: u64) -> (SchedulerStats, usize) {
    let mut random = SplitMix64::new(seed);
    let clock = ByHand::default();
    let kv_tokens = 288 + random.below(400);
    let proposer = proposer(&mut random);
    let base = options(kv_tokens, clock.clock());
    let mut limits = Limits {
        slots: 1 + random.below(5),
        admit_tokens: [1, 16][random.below(2)],
        logit_rows: 1 + random.below(16),
        ..base.limits
    };
    limits.budget.chunk_tokens = 8 + random.below(90);
    limits.speculation = proposer.is_some().then(|| SpeculationLimits::lookup(Policy::Always));
    let idle_sequences = random.below(4);
    let mut host = Host::new(engine(kv_tokens), HostOptions { limits, proposer, idle_sequences, ..base });
    let adapter = host.engine_mut().add_adapter(Arc::clone(adapter())).unwrap();
    let handle = host.handle();
    let mut jobs: Vec<Sim> =
        (0..3 + random.below(6)).map(|_| Sim::random(&mut random, handle.new_id())).collect();
    let mut ended = false;
    for now in 0..TURNS_MAX {
        for job in &mut jobs {
            if job.arrives_at == now {
                job.submit(&handle, adapter);
            }
            job.act(now, &handle, &mut random);
        }
        if let Some(pass) = host.turn() {
            clock.advance(500 + random.below(1000) as u64);
            host.commit(pass);
        }
        ended = jobs.iter().all(|job| job.reader.as_ref().is_some_and(Reader::ended));
        if ended {
            break;
        }
    }
    assert!(ended, "seed {seed} does not end: {:?}", handle.stats());
    jobs.iter().for_each(|job| job.check(&format!("seed {seed}")));
    let stats = handle.stats();
    assert_eq!((stats.running, stats.waiting, stats.parked), (0, 0, 0), "seed {seed}");
    assert_eq!(stats.closed_total, jobs.len() as u64, "seed {seed}");
    let free = host.free_kv_tokens();
    match idle_sequences {
        0 => assert_eq!(free, limits.kv_tokens, "seed {seed}"),
        kept => assert!(free + kept * 288 >= limits.kv_tokens, "seed {seed}: {free} are free"),
    }
    let parked = jobs.iter().filter_map(|job| job.reader.as_ref()).map(|reader| reader.with(|r| r.parked));
    (stats, parked.sum())
}

#[test]
fn every_answer_is_what_it_would_be_alone() {
    let (mut preempted, mut accepted, mut rejected, mut parked) = (0, 0, 0, 0);
    for seed in 0..300 {
        let (stats, parks) = simulate(seed);
        preempted += stats.preemptions_total;
        accepted += stats.accepted_total;
        rejected += stats.proposed_total - stats.accepted_total;
        parked += parks as u64;
    }
    let happened = [preempted, accepted, rejected, parked];
    assert!(happened.iter().all(|&times| times > 0), "all of it must have happened: {happened:?}");
}
