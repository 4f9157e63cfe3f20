//! Runs one step round the ring: chunks are embedded here, pass the windows of all places round by round,
//! and come back.
//!
//! Chunks of one step follow each other, so that every device has one to work on. The number of chunks in
//! flight is bounded by the number of places. The queue that they come back to holds as many, so the ring
//! never blocks itself. Chunks pass the places in order; a chunk that comes back in another order or with
//! another shape is refused.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use baton_engine::engine::{Hidden, OpenStep};
use baton_engine::{SeqOutput, StepControl, StepError, StepSeq};

use super::super::frame::{Frame, Operation, Span, Step};
use super::super::stats::DeviceStats;
use super::configure::Fault;
use super::listener::Incoming;
use super::{Broken, Epoch, PredictedTimes, RingHead, RingOptions, Route, locked};

/// Wait between two checks of what else has happened.
const SLICE: Duration = Duration::from_millis(20);
/// Each further row of a chunk takes at most this fraction (one part in so many) of a token's predicted
/// time.
const ROW_SHARE: u32 = 4;

/// A chunk in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkInFlight {
    pub(super) step: u64,
    pub(super) round: u16,
    pub(super) rows: Range<usize>,
    /// Layers that it has passed when it comes back.
    pub(super) back: usize,
}

/// Returns how many chunks may be in flight at once.
pub(super) fn in_flight_max(places: usize) -> usize {
    2 * places + 1
}

/// Returns the rows of a chunk: enough chunks to keep every device busy, but none too small to be
/// efficient.
fn chunk_rows(rows: usize, places: usize, (least, most): (usize, usize)) -> usize {
    rows.div_ceil(4 * places).clamp(least.max(1), most.max(least.max(1)))
}

/// Returns how long no chunk may come back after so many rows were sent. The first step of an epoch has
/// additional time for reading weights.
fn stall_limit(options: &RingOptions, times: PredictedTimes, rows: usize, first: bool) -> Duration {
    let more_rows = u32::try_from(rows).unwrap_or(u32::MAX) / ROW_SHARE;
    let step = options.token.max(times.token) * 4 * (1 + more_rows);
    options.floor + step + if first { times.first } else { Duration::ZERO }
}

/// A step in progress.
pub(super) struct Pumping<'a> {
    pub(super) open: &'a OpenStep,
    pub(super) control: &'a mut dyn StepControl,
    pub(super) outputs: Vec<SeqOutput>,
    /// Chunks that have passed all layers.
    pub(super) done: usize,
}

impl RingHead {
    /// Runs a step of an epoch in which the head computes everything.
    pub(super) fn run_alone(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, Broken> {
        let begun = Instant::now();
        let outputs = self.engine.step(batch, control)?;
        let took = begun.elapsed().as_micros() as u64;
        self.step_us = self.step_us.map(|us| us + took);
        Ok(outputs)
    }

    /// Runs a step in the present epoch's ring.
    pub(super) fn run_ring(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, Broken> {
        let begun = Instant::now();
        let mut spans = Vec::with_capacity(batch.len());
        for entry in batch {
            let start = self.engine.len(entry.seq).map_err(StepError::from)? as u64;
            let seq = self.numbers.get(&entry.seq).copied().unwrap_or_default();
            spans.push(Span { seq, start, wanted: entry.logits, ids: entry.ids.to_vec() });
        }
        let open = self.engine.open_step(batch)?;
        let (rows, own_us) = (open.rows(), self.step_us[1]);
        self.step += 1;
        let step = self.step;
        self.log.push(Operation::Open { step, spans });
        let empty = SeqOutput { logits: Vec::new(), scores: None };
        let outputs = vec![empty; batch.len()];
        let mut pumping = Pumping { open: &open, control, outputs, done: 0 };
        let done = self.pump(&mut pumping);
        let outputs = pumping.outputs;
        match done {
            Ok(()) => {
                self.engine.commit_step(open);
                self.log.push(Operation::Commit { step });
                self.step_us[0] += begun.elapsed().as_micros() as u64;
                if rows == 1 {
                    self.singles.add(self.step_us[1] - own_us);
                }
                Ok(outputs)
            }
            Err(broken) => {
                self.engine.cancel_step(open);
                self.log.push(Operation::Cancel { step });
                Err(broken)
            }
        }
    }

    pub(super) fn formed(&mut self) -> &mut Epoch {
        match &mut self.route {
            Route::Ring(epoch) => epoch,
            Route::Alone | Route::Down => unreachable!("only a formed ring is pumped"),
        }
    }

    fn pump(&mut self, pumping: &mut Pumping<'_>) -> Result<(), Broken> {
        let total = pumping.open.rows();
        let places = self.formed().places.len() + 1;
        let rows = chunk_rows(total, places, self.options.chunk_rows);
        let chunks: Vec<Range<usize>> =
            (0..total).step_by(rows).map(|start| start..total.min(start + rows)).collect();
        let (mut next, mut moved) = (0, Instant::now());
        while pumping.done < chunks.len() {
            let incoming = match self.formed().inbox.frames.try_recv() {
                Ok(incoming) => Some(incoming),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    return Err(Broken::Ring(self.closed("the ring's last link has ended")));
                }
            };
            let incoming = match incoming {
                None if next < chunks.len() && self.formed().in_flight.len() < in_flight_max(places) => {
                    let rows = chunks[next].clone();
                    next += 1;
                    let hidden = self.engine.embed(pumping.open, rows.clone())?;
                    self.advance(pumping, rows, hidden, 0)?;
                    moved = Instant::now();
                    continue;
                }
                None => self.wait(pumping, moved, rows)?,
                some => some,
            };
            if let Some(incoming) = incoming {
                moved = Instant::now();
                self.take(pumping, incoming)?;
            }
        }
        Ok(())
    }

    /// Waits a moment for the next chunk that comes back. Returns `None` if there is none and nothing else
    /// has happened.
    pub(super) fn wait(
        &mut self,
        pumping: &mut Pumping<'_>,
        moved: Instant,
        rows: usize,
    ) -> Result<Option<Incoming>, Broken> {
        let times =
            self.time_predictor.as_ref().and_then(|time_predictor| time_predictor()).unwrap_or_default();
        let first = locked(&self.shared.stats).epoch_steps == 0;
        let limit = stall_limit(&self.options, times, rows, first);
        let number = self.epoch;
        let total = self.formed().layout.n_layers;
        match self.formed().inbox.frames.recv_timeout(SLICE) {
            Ok(incoming) => return Ok(Some(incoming)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Broken::Ring(self.closed("the ring's last link has ended")));
            }
        }
        if let Some(fault) = self.formed().trouble(number) {
            return Err(Broken::Ring(fault));
        }
        if moved.elapsed() > limit {
            return Err(Broken::Ring(self.formed().stalled(number, limit)));
        }
        if pumping.control.after_layer(0, total).is_break() {
            return Err(StepError::Cancelled { done: 0, total }.into());
        }
        Ok(None)
    }

    /// Returns the fault after the last link ended: one that a device reports, otherwise the link itself.
    fn closed(&mut self, words: &str) -> Fault {
        let number = self.epoch;
        let epoch = self.formed();
        let last = epoch.places.len();
        epoch.trouble(number).unwrap_or_else(|| Fault::Link { place: last, words: words.to_owned() })
    }

    /// Handles a chunk that came back.
    fn take(&mut self, pumping: &mut Pumping<'_>, incoming: Incoming) -> Result<(), Broken> {
        let Some((step, back)) = self.returned(pumping.open, incoming)? else { return Ok(()) };
        let total = self.engine.model().config().n_layers;
        if pumping.control.after_layer(back, total).is_break() {
            return Err(StepError::Cancelled { done: back, total }.into());
        }
        self.advance(pumping, step.rows, step.hidden, back)
    }

    /// Checks a frame that came back, and returns it with the layers that it has passed. Returns `None` if
    /// it belongs to a cancelled step.
    pub(super) fn returned(
        &mut self,
        open: &OpenStep,
        incoming: Incoming,
    ) -> Result<Option<(Step, usize)>, Broken> {
        let last = self.formed().places.len();
        let wrong = |words: String| Broken::Ring(Fault::Wrong { place: last, words });
        let step = match incoming {
            Incoming::Step(step) => step,
            Incoming::Closed(words) => return Err(Broken::Ring(self.closed(&words))),
            Incoming::Wrong(words) => return Err(wrong(words)),
        };
        let flight = ChunkInFlight {
            step: step.step,
            round: step.round,
            rows: step.rows.clone(),
            back: usize::from(step.layers_done),
        };
        let expected = self.formed().in_flight.pop_front();
        if expected.as_ref() != Some(&flight) {
            return Err(wrong(format!("{flight:?} came back, must be {expected:?}")));
        }
        if step.step != self.step {
            // It belongs to a cancelled step.
            return Ok(None);
        }
        let config = self.engine.model().config();
        let (n_layers, width) = (config.n_layers, config.d_model);
        let rows = if flight.back == n_layers { open.wanted(&step.rows) } else { step.rows.len() };
        if (step.hidden.rows, step.hidden.width) != (rows, width) {
            let found = (step.hidden.rows, step.hidden.width);
            return Err(wrong(format!("hidden states of {found:?}, must be {:?}", (rows, width))));
        }
        if !step.hidden.values.iter().all(|value| value.is_finite()) {
            return Err(wrong("a hidden state is no number".to_owned()));
        }
        Ok(Some((step, flight.back)))
    }

    /// Computes the head's windows that begin here; then sends the chunk on, or computes its logits after
    /// the last layer.
    fn advance(
        &mut self,
        pumping: &mut Pumping<'_>,
        rows: Range<usize>,
        mut hidden: Hidden,
        mut done: usize,
    ) -> Result<(), Broken> {
        let begun = Instant::now();
        let next = loop {
            match self.formed().layout.from(done) {
                Some(window) if window.place == 0 => {
                    let layers = window.begin..window.end;
                    let (open, control) = (pumping.open, &mut *pumping.control);
                    hidden = self.engine.run_layers(open, rows.clone(), hidden, layers, control)?;
                    done = window.end;
                }
                next => break next,
            }
        };
        let Some(window) = next else {
            let outputs = self.engine.logits(pumping.open, rows, hidden)?;
            for (all, part) in pumping.outputs.iter_mut().zip(outputs) {
                all.logits.extend(part.logits);
            }
            pumping.done += 1;
            self.step_us[1] += begun.elapsed().as_micros() as u64;
            return Ok(());
        };
        self.step_us[1] += begun.elapsed().as_micros() as u64;
        let flight = ChunkInFlight {
            step: self.step,
            round: window.round as u16,
            rows: rows.clone(),
            back: self.formed().layout.back(window.round, done),
        };
        let step = Step {
            epoch: self.epoch,
            step: self.step,
            round: window.round as u16,
            layers_done: done as u16,
            audit: None,
            rows,
            operations: std::mem::take(&mut self.log),
            activations: self.options.activations,
            hidden,
        };
        self.launch(step, flight)
    }

    /// Sends a frame round the ring.
    pub(super) fn launch(&mut self, step: Step, flight: ChunkInFlight) -> Result<(), Broken> {
        let number = self.epoch;
        let epoch = self.formed();
        epoch.in_flight.push_back(flight);
        epoch.out.send(Frame::Step(step).encode()).map_err(|err| {
            let words = super::chain(&err);
            Broken::Ring(epoch.trouble(number).unwrap_or(Fault::Link { place: 1, words }))
        })
    }

    /// Updates the statistics after a step of so many tokens.
    pub(super) fn show(&mut self, tokens: usize) {
        let mut stats = locked(&self.shared.stats);
        stats.steps += 1;
        stats.epoch_steps += 1;
        stats.tokens += tokens as u64;
        stats.refused = self.refused.load(std::sync::atomic::Ordering::Acquire);
        let steps = stats.epoch_steps;
        stats.step_ms = self.step_us[0] as f64 / 1e3 / steps as f64;
        if let Some(head) = stats.devices.first_mut() {
            head.compute_ms = self.step_us[1] as f64 / 1e3 / steps as f64;
            head.wait_ms = (self.step_us[0].saturating_sub(self.step_us[1])) as f64 / 1e3 / steps as f64;
        }
        let Route::Ring(epoch) = &self.route else { return };
        for (place, member) in (1..).zip(&epoch.places) {
            let (beat, layers) = (member.state().beat, epoch.layout.layers_of(place));
            if let (true, Some(shown)) = (beat.epoch == self.epoch, stats.devices.get_mut(place)) {
                *shown = DeviceStats::of(member.name(), place, layers, &beat, steps);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: usize, places: usize, want: usize) {
        assert_eq!(chunk_rows(rows, places, (16, 128)), want, "{rows} rows on {places} devices");
    }

    #[test]
    fn chunks_keep_devices_busy_and_stay_worth_their_while() {
        check(1, 2, 16);
        check(512, 2, 64);
        check(512, 4, 32);
        check(4096, 2, 128);
        assert_eq!(chunk_rows(5, 1, (0, 0)), 1);
    }

    #[test]
    fn a_ring_is_waited_for_as_long_as_its_plan_predicts() {
        let options = RingOptions::new("head", baton_engine::EngineOptions::default());
        let seconds = Duration::from_secs;
        let unknown = PredictedTimes::default();
        assert_eq!(stall_limit(&options, unknown, 1, true), seconds(5 + 2), "the usual times");
        let slow = PredictedTimes { token: seconds(8), first: seconds(90) };
        assert_eq!(stall_limit(&options, slow, 1, false), seconds(5 + 32));
        assert_eq!(stall_limit(&options, slow, 1, true), seconds(5 + 32 + 90));
        assert_eq!(stall_limit(&options, slow, 4, false), seconds(5 + 64));
        let fast = PredictedTimes { token: Duration::from_millis(3), first: Duration::ZERO };
        assert_eq!(stall_limit(&options, fast, 1, false), seconds(5 + 2));
    }
}
