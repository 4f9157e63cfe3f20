//! Audits whether every device computes correctly: the head computes some rows of one layer itself and
//! compares the bits.
//!
//! Weights may be corrupted in memory, or on a disk after they were read, and a processor may fail. Then a
//! device returns values that are finite but wrong. So from time to time a few random tokens go round the
//! ring as a step of which one device computes one layer; all others pass it on. Every level of the kernels
//! gives the same bits, so any difference is a fault.
//!
//! Before a device is blamed, the head checks its own copy of the layer. A faulty device leaves the ring,
//! is named, and is told to read its weights again. It is not admitted again while this program runs.
//! Audits find devices that compute wrong by accident. They do not find a device that cheats, because it
//! can see that it is audited.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::engine::{Hidden, OpenStep};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, Model, StepError, StepSeq, Wanted};
use baton_random::mix;

use super::super::frame::{Audit, Failure, FailureCode, Frame, Operation, Span, Step};
use super::super::link::Key;
use super::super::weights::{CheckedPieces, Part, WeightsError, check_whole};
use super::configure::Fault;
use super::pump::{ChunkInFlight, Pumping};
use super::{Broken, RingHead, Route, chain};
use crate::local::Sequences as _;

/// Tokens of an audit: the later ones attend to the earlier.
const ROWS: usize = 4;
/// When this time is used up, the remaining layers wait for the next round of audits. Each round audits at
/// least one.
const BUDGET: Duration = Duration::from_millis(50);
/// A ring that is always busy is audited before an answer, this many times less often than an idle ring.
const UNSEEN: u32 = 6;

/// The state of the audits.
#[derive(Debug, Default)]
pub(super) struct Audits {
    /// The whole model, opened a second time, if the head's own weights are streamed.
    model: Option<Arc<Model>>,
    /// Number of the next audit: it selects the layer and the tokens.
    next: u64,
    /// When layers of this ring were last audited.
    last: Option<Instant>,
    /// Devices that computed wrong.
    barred: BTreeSet<Key>,
    /// What is wrong with the head's own file.
    damaged: Option<String>,
    /// Pieces of that file that were read and found correct, and below the next own layer to read.
    checked: CheckedPieces,
    next_own: usize,
}

impl Audits {
    /// Forgets when layers were last audited, because the ring is new.
    pub(super) fn begin(&mut self) {
        self.last = None;
    }

    /// Returns whether a device computed wrong before.
    pub(super) fn bars(&self, key: &Key) -> bool {
        self.barred.contains(key)
    }

    /// Returns what is wrong with the head's own file, if anything is.
    pub(super) fn damaged(&self) -> Option<&str> {
        self.damaged.as_deref()
    }

    /// Returns tokens of this audit; no two audits have the same.
    fn tokens(&self, vocab: usize) -> Vec<TokenId> {
        let first = self.next * ROWS as u64;
        let token = |at: u64| (mix(0, first + at) % vocab as u64) as TokenId;
        (0..ROWS as u64).map(token).collect()
    }
}

impl RingHead {
    /// Audits layers of other devices before an answer, if the ring is new or was not idle for long.
    pub(super) fn check_layers_before_answers(&mut self) {
        if self.audits.last.is_none_or(|last| last.elapsed() >= self.options.health * UNSEEN) {
            self.check_layers();
        }
    }

    /// Audits layers of other devices while no answer runs. Also reads one of the head's own layers in the
    /// model's file again, each once a day.
    pub(super) fn check_layers_while_idle(&mut self) {
        if self.audits.last.is_none_or(|last| last.elapsed() >= self.options.health) {
            self.check_layers();
            self.check_own_layer();
        }
    }

    fn check_own_layer(&mut self) {
        let Route::Ring(epoch) = &self.route else { return };
        let own = epoch.layout.layers_of(0);
        let layer = own.get(self.audits.next_own % own.len().max(1)).copied();
        self.audits.next_own += 1;
        let checked = self.audits.checked.clone();
        if self.own_file_is_rotten(layer.as_slice(), &checked) {
            self.route = Route::Down;
            self.recover_or_warn();
        }
    }

    /// Returns whether the head's own file has changed in these layers, its header or its tables since its
    /// list of pieces was made.
    fn own_file_is_rotten(&mut self, layers: &[usize], checked: &CheckedPieces) -> bool {
        let Some(model_file) = &self.model_file else { return false };
        let parts = [Part::Header, Part::Tables, Part::Layers(layers)];
        let file = (model_file.path.as_path(), &model_file.manifest);
        match check_whole(file, &parts, checked, &mut || Ok(()), &mut |_, _, _| {}) {
            Err(err @ WeightsError::Rotten { .. }) => {
                let words = chain(&err);
                tracing::error!(words, "the head's own model is damaged");
                self.audits.damaged = Some(words);
                true
            }
            _ => false,
        }
    }

    /// Audits the next layers of other devices, at least one. A device that computes wrong leaves the ring.
    pub(super) fn check_layers(&mut self) {
        let Route::Ring(epoch) = &self.route else { return };
        let windows = epoch.layout.windows.iter().filter(|window| window.place != 0);
        let of = |window: &baton_plan::Window| {
            (window.begin..window.end).map(|layer| (window.place, layer)).collect::<Vec<_>>()
        };
        let layers: Vec<(usize, usize)> = windows.flat_map(of).collect();
        if layers.is_empty() || self.engine.free_tokens() == 0 {
            return;
        }
        let mut own = match self.auditor() {
            Ok(own) => own,
            Err(words) => return tracing::warn!(words, "no device is audited"),
        };
        let begun = Instant::now();
        for _ in 0..layers.len() {
            let (place, layer) = layers[(self.audits.next % layers.len() as u64) as usize];
            self.audits.next += 1;
            match self.audit(&mut own, place, layer) {
                Ok(true) => {}
                Ok(false) => return self.computed_wrong(place, layer),
                Err(Broken::Step(err)) => return tracing::warn!(err = %chain(&err), "no audit"),
                Err(Broken::Ring(fault)) => {
                    tracing::warn!(words = fault.words(), "an audit did not come round the ring");
                    self.end_epoch(&fault);
                    return self.recover_or_warn();
                }
            }
            if begun.elapsed() >= BUDGET {
                break;
            }
        }
        self.audits.last = Some(Instant::now());
    }

    /// Returns an engine that can compute any single layer.
    fn auditor(&mut self) -> Result<Engine, String> {
        let own = self.engine.model();
        let model = match (&self.audits.model, own.streamed()) {
            (Some(model), Some(_)) => Arc::clone(model),
            (_, None) => Arc::clone(own),
            (None, Some(_)) => {
                let path = own.path().ok_or("the model has no file")?;
                let model = Model::open(path).map_err(|err| chain(&err))?;
                self.audits.model = Some(Arc::clone(&model));
                model
            }
        };
        let options = EngineOptions {
            kv_tokens: ROWS,
            prefix_cache_percent: 0,
            layers: Some(Vec::new()),
            ..self.options.engine.clone()
        };
        Engine::new(model, options).map_err(|err| chain(&err))
    }

    /// Returns whether a device computes a layer as this one does.
    fn audit(&mut self, own: &mut Engine, place: usize, layer: usize) -> Result<bool, Broken> {
        let ids = self.audits.tokens(self.engine.model().config().vocab_len);
        let Ok(seq) = self.create_with(None) else { return Ok(true) };
        let entry = StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None };
        let done = match self.engine.open_step(&[entry]) {
            Ok(open) => {
                self.step += 1;
                let (step, seq) = (self.step, self.numbers[&seq]);
                let span = Span { seq, start: 0, wanted: Wanted::All, ids: ids.clone() };
                self.log.push(Operation::Open { step, spans: vec![span] });
                let done = self.computed_there(&open, place, layer);
                self.engine.cancel_step(open);
                self.log.push(Operation::Cancel { step });
                done
            }
            Err(err) => Err(err.into()),
        };
        self.release(seq);
        let (begins, have) = done?;
        let want = self.options.activations.carried(computed_here(own, &ids, begins, layer)?);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        Ok(have.values.len() == want.values.len() && have.values.iter().zip(&want.values).all(same))
    }

    /// Returns the rows that enter the layer, and what the device makes of them.
    fn computed_there(
        &mut self,
        open: &OpenStep,
        place: usize,
        layer: usize,
    ) -> Result<(Hidden, Hidden), Broken> {
        let rows = 0..open.rows();
        let begins = self.options.activations.carried(self.engine.embed(open, rows.clone())?);
        // A layout has fewer than 65536 places and layers.
        let (begin, end) = (layer as u16, layer as u16 + 1);
        let flight = ChunkInFlight { step: self.step, round: 0, rows: rows.clone(), back: layer + 1 };
        let step = Step {
            epoch: self.epoch,
            step: self.step,
            round: 0,
            layers_done: begin,
            audit: Some(Audit { place: place as u16, begin, end }),
            rows,
            operations: std::mem::take(&mut self.log),
            activations: self.options.activations,
            hidden: begins.clone(),
        };
        self.launch(step, flight)?;
        let sent = Instant::now();
        let mut pumping = Pumping { open, control: &mut (), outputs: Vec::new(), done: 0 };
        loop {
            let Some(incoming) = self.wait(&mut pumping, sent, ROWS)? else { continue };
            if let Some((step, _)) = self.returned(open, incoming)? {
                return Ok((begins, step.hidden));
            }
        }
    }

    /// Handles a failed audit: the device leaves the ring, unless it is the head's own file that has
    /// changed.
    fn computed_wrong(&mut self, place: usize, layer: usize) {
        if self.own_file_is_rotten(&[layer], &CheckedPieces::default()) {
            self.route = Route::Down;
            return self.recover_or_warn();
        }
        let Route::Ring(epoch) = &self.route else { return };
        let Some(member) = place.checked_sub(1).and_then(|at| epoch.places.get(at)) else { return };
        let words =
            format!("`{}` computes layer {layer} wrong: its results are not the head's own", member.name());
        let failure = Failure { epoch: self.epoch, code: FailureCode::Engine, words: words.clone() };
        // A device that does not receive it sees its channel end.
        let _unheard = member.send(&Frame::Failed(failure));
        self.audits.barred.insert(member.node.key);
        self.end_epoch(&Fault::Wrong { place, words });
        self.recover_or_warn();
    }
}

/// Returns what this device makes of these rows.
fn computed_here(
    own: &mut Engine,
    ids: &[TokenId],
    begins: Hidden,
    layer: usize,
) -> Result<Hidden, StepError> {
    own.reset(Some(vec![layer])).expect("a window's layers are the model's");
    let seq = own.create();
    let entry = StepSeq { seq, ids, logits: Wanted::All, capture: None };
    let open = own.open_step(&[entry])?;
    let done = own.run_layers(&open, 0..ids.len(), begins, layer..layer + 1, &mut ());
    own.cancel_step(open);
    own.release(seq);
    done
}
