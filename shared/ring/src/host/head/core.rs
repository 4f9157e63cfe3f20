//! The head's core, as its monitor runs it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::head::{Effect, Event, HeadCore, HeadWork, Outputs, PlanFor, RingFault, Shown};
use crate::core::ways::Ways;
use crate::core::worker::Meters;
use crate::core::{LinkEvent, LinkId, WorkId};
use crate::host::{Core, Sorted, Wakes};

/// What the caller's thread has to do.
pub(super) enum Task {
    Compute(WorkId, HeadWork),
    Plan(PlanFor),
    Draft(PlanFor),
    Judge(Vec<Shown>),
    Done(Result<Outputs, RingFault>),
}

/// What the head's threads take from its monitor.
#[derive(Default)]
pub(crate) struct HeadHost {
    pub(super) tasks: VecDeque<Task>,
    /// What is known of the paths, if it has changed.
    ways: Option<Ways>,
}

impl Core for HeadCore {
    type Event = Event;
    type Effect = Effect;
    type Desk = HeadHost;
    type News = Ways;

    fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        Self::step(self, event, now)
    }

    fn link(event: LinkEvent) -> Event {
        Event::Link(event)
    }

    fn gave(link: LinkId) -> Event {
        Event::Gave(link)
    }

    fn tick(_meters: Meters) -> Event {
        Event::Tick
    }

    fn sort(effect: Effect) -> Sorted<Effect> {
        match effect {
            Effect::Link(effect) => Sorted::Link(effect),
            Effect::Give(link, give) => Sorted::Give(link, give),
            Effect::WakeAt(at) => Sorted::WakeAt(at),
            Effect::Note(note) => Sorted::Note(note),
            Effect::Discard(step) => Sorted::Discard(step),
            own => Sorted::Own(own),
        }
    }

    fn put(&self, effect: Effect, desk: &mut HeadHost) -> Wakes {
        let task = match effect {
            Effect::Compute(id, work) => Task::Compute(id, work),
            Effect::Plan(of) => Task::Plan(of),
            Effect::Draft(of) => Task::Draft(of),
            Effect::Judge(shown) => Task::Judge(shown),
            Effect::Done(done) => Task::Done(done),
            Effect::KeepWays => {
                desk.ways = Some(self.ways().clone());
                return Wakes::Program;
            }
            // The monitor has taken these.
            Effect::Link(_) | Effect::Give(..) | Effect::Note(_) | Effect::Discard(_) | Effect::WakeAt(_) => {
                return Wakes::Nobody;
            }
        };
        desk.tasks.push_back(task);
        Wakes::Engine
    }

    fn news(desk: &mut HeadHost) -> Option<Ways> {
        desk.ways.take()
    }
}
