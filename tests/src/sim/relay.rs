//! What devices do: questions are asked, relays step, effects are performed. And what goes wrong.

use baton_device::relay::{Ending, Note, RelayEffect, RelayEvent, RelayMode};
use baton_pacing::Millis;

use super::answer::Answer;
use super::device::Device;
use super::scenario::{Fault, LineFault};
use super::world::{MS, What, World};

impl World {
    /// A question is asked.
    pub(super) fn ask(&mut self, number: usize) {
        let Some(question) = self.scenario.questions.iter().find(|asked| asked.number == number).cloned()
        else {
            return;
        };
        let shape = &self.scenario.devices[question.device];
        let kv = self.machines[question.device].device.kv().map(|side| side.identity.to_string());
        let made =
            Answer::new(&question, shape, (Device::model(shape), kv), &self.cloud.settings(), self.now);
        let mut answer = match made {
            Ok(answer) => answer,
            Err(words) => return self.fail(words),
        };
        answer.unreachable = self
            .scenario
            .faults
            .iter()
            .map(|fault| match fault {
                Fault::Unreachable { question, tries } if *question == number => *tries,
                _ => 0,
            })
            .sum();
        self.tell(|| format!("question {number} on device {}: {:?}", question.device, question.mode));
        self.answers.insert(number, answer);
        self.machines[question.device].device.attach(number);
        self.relay(number, RelayEvent::Begin);
    }

    /// Gives a relay an event, or keeps it while the reader pauses.
    pub(super) fn relay(&mut self, number: usize, event: RelayEvent) {
        let Some(answer) = self.answers.get_mut(&number) else { return };
        if answer.finished() {
            return;
        }
        let paused = self.now < answer.paused_until;
        // The agent takes what came first, and looks at the time last.
        if !(paused && matches!(event, RelayEvent::Timer)) {
            answer.inbox.push_back(event);
        }
        if paused {
            return;
        }
        while let Some(event) = self.answers.get_mut(&number).and_then(|answer| answer.inbox.pop_front()) {
            self.step();
            if self.broken.is_some() {
                return;
            }
            let Some(answer) = self.answers.get_mut(&number) else { return };
            let now = Millis::new(self.now as f64 / 1e6);
            if let Some((_, remains)) = &mut answer.open {
                remains.hear(&event);
            }
            let effects = answer.core.step(event, now);
            for effect in effects {
                self.perform(number, effect);
            }
            if self.answers.get(&number).is_some_and(|answer| !answer.core.wants_cloud()) {
                self.end_request(number);
            }
        }
    }

    fn perform(&mut self, number: usize, effect: RelayEffect) {
        let Some(answer) = self.answers.get_mut(&number) else { return };
        if answer.finished() {
            return self.fail(format!("I3: an effect behind the end of question {number}"));
        }
        match effect {
            RelayEffect::Ask => {
                let request = std::sync::Arc::clone(&answer.request);
                self.open(number, request, false);
            }
            RelayEffect::AskToContinue { accepted, tokens_max } => {
                answer.continued = true;
                match answer.continuation(&accepted, tokens_max) {
                    Ok(request) => self.open(number, request, true),
                    Err(fault) => answer.inbox.push_back(RelayEvent::CloudLost(fault)),
                }
            }
            RelayEffect::Check(draft) => self.send_draft(number, draft),
            RelayEffect::DropCheck => self.drop_draft(number),
            RelayEffect::CancelCloud => self.hang_up(number),
            RelayEffect::Engine(command) => {
                answer.seen.command(&command);
                let device = answer.question.device;
                self.machines[device].device.command(number, command);
            }
            RelayEffect::Show { index, text, source } => {
                let shown = answer.seen.show(index, &text, source);
                self.machines[answer.question.device].shown_ns = self.now;
                self.trace.add("show", &[self.now, number as u64, index as u64]);
                self.trace.text(&text);
                self.tell(|| format!("question {number} shows {index} {text:?} by {source:?}"));
                self.check(shown);
            }
            RelayEffect::Tail { text } => {
                answer.seen.tail(&text);
                self.trace.text(&text);
            }
            RelayEffect::Note(note) => {
                self.trace.add(note.code(), &[self.now, number as u64]);
                answer.seen.note(note.clone());
                self.tell(|| format!("question {number}: {note}"));
            }
            RelayEffect::FetchKv(ticket) => self.fetch_kv(number, &ticket),
            RelayEffect::DropKv => self.drop_kv(number),
            RelayEffect::Progress(_) => {}
            RelayEffect::WakeAt(at) => {
                answer.timer += 1;
                let set = answer.timer;
                if let Some(at) = at {
                    // Time passes before it wakes, also if the time that it wants was rounded to now.
                    let ns = ((at.as_f64() * 1e6).ceil() as u64).max(self.now + 1);
                    self.at(ns, What::Timer { question: number, set });
                }
            }
            RelayEffect::Finish(outcome) => {
                self.trace.add(outcome.ending.code(), &[self.now, number as u64]);
                let ending = outcome.ending.clone();
                let finished = answer.seen.finish(*outcome);
                answer.inbox.clear();
                let device = answer.question.device;
                self.tell(|| format!("question {number} ends: {ending:?}"));
                self.check(finished);
                self.hang_up(number);
                self.machines[device].device.detach(number);
            }
        }
    }

    /// A paused reader reads again.
    pub(super) fn reads(&mut self, number: usize) {
        self.relay(number, RelayEvent::Timer);
    }

    /// A fault begins.
    pub(super) fn fault(&mut self, place: usize) {
        let fault = self.scenario.faults[place].clone();
        self.tell(|| format!("{fault:?}"));
        match fault {
            Fault::Line { .. }
            | Fault::Check { .. }
            | Fault::Kv { .. }
            | Fault::Unreachable { .. }
            | Fault::Twice { .. } => {}
            Fault::Leave { question, .. } => {
                if let Some(answer) = self.answers.get_mut(&question) {
                    answer.paused_until = 0;
                    answer.inbox.clear();
                }
                self.relay(question, RelayEvent::Cancel);
            }
            Fault::Pause { question, for_ms, .. } => {
                let until = self.now + for_ms * MS;
                if let Some(answer) = self.answers.get_mut(&question) {
                    answer.paused_until = until;
                    self.at(until, What::Reads(question));
                }
            }
            Fault::Cloud { down_ms, drains, .. } if self.cloud.up.is_some() => {
                if drains {
                    self.cloud.drain();
                } else {
                    self.stop_cloud(down_ms);
                }
            }
            Fault::Cloud { .. } => {}
            Fault::Device { device, .. } => self.kill(device),
            Fault::Engine { device, steps, .. } => match device {
                Some(device) => self.machines[device].device.trouble.fail(steps),
                None => {
                    if let Some(up) = &self.cloud.up {
                        up.trouble.fail(steps);
                    }
                }
            },
            Fault::Wall { by_ms, .. } => {
                self.cloud.wall_ms.fetch_add(by_ms, std::sync::atomic::Ordering::Relaxed);
                self.cloud.books.jumped = true;
            }
            Fault::Database { for_ms, .. } => {
                self.cloud.database.away = true;
                self.at(self.now + for_ms * MS, What::DatabaseUp);
            }
        }
    }

    fn stop_cloud(&mut self, down_ms: u64) {
        self.break_drafts();
        self.break_fetches();
        let stopped = self.cloud.stop();
        self.check(stopped);
        self.break_all();
        self.at(self.now + down_ms * MS, What::CloudUp);
    }

    /// A drained cloud tells the database what was used, and begins anew.
    pub(super) fn end_of_draining(&mut self) {
        let sent = self.cloud.deltas();
        self.cloud.exchange(&sent);
        self.feed_all();
        self.stop_cloud(5);
    }

    /// The program on a device is killed: nothing of its answers is left, and connections break.
    fn kill(&mut self, device: usize) {
        let shape = self.scenario.devices[device].clone();
        let numbers: Vec<usize> = self
            .answers
            .iter()
            .filter(|(_, answer)| answer.question.device == device && !answer.finished())
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.drop_draft(number);
            self.drop_kv(number);
            self.hang_up(number);
            self.answers.remove(&number);
            self.killed += 1;
        }
        let (clock, bug) = (self.clock(), self.options.ring_bug);
        let machine = &mut self.machines[device];
        machine.life += 1;
        machine.device = Device::new(&shape, &clock, machine.life, bug);
    }

    /// Checks every answer once all have ended.
    pub(super) fn check_answers(&mut self) {
        let mut checks = Vec::new();
        for answer in self.answers.values() {
            let shape = &self.scenario.devices[answer.question.device];
            checks.push(self.check_answer(answer, shape));
        }
        for check in checks {
            self.check(check);
        }
    }

    fn check_answer(&self, answer: &Answer, shape: &super::scenario::DeviceShape) -> Result<(), String> {
        let number = answer.question.number;
        let name = |words: String| format!("{words} (question {number})");
        let model = Device::model(shape);
        answer.seen.check_takeover(&answer.question, shape, model).map_err(name)?;
        self.check_verified(answer, shape).map_err(name)?;
        let own_words = shape.voice == self.scenario.cloud.voice && !shape.other_tokenizer;
        let one_prompt = self.scenario.cloud.ratio >= 1.0 || answer.question.mode == RelayMode::CloudOnly;
        if own_words && one_prompt && !answer.continued {
            let segments = &answer.request.segments;
            answer.seen.check_whole(&answer.question, shape.voice, model, segments).map_err(name)?;
        }
        let calm = self.scenario.faults.iter().all(|fault| match fault {
            Fault::Line { question, what: LineFault::Spoil, .. } => *question != number,
            _ => true,
        });
        let mask = answer.seen.notes().iter().find(|note| matches!(note, Note::MaskIgnored { .. }));
        if let Some(note) = mask.filter(|_| calm) {
            return Err(name(format!("mask: {note}")));
        }
        let alone = self.scenario.faults.is_empty();
        let failed = answer.seen.outcome.as_ref().filter(|o| matches!(o.ending, Ending::Cancelled));
        if alone && failed.is_some() {
            return Err(name("I3: cancelled by nobody".to_owned()));
        }
        Ok(())
    }
}
