//! Checks a frame of the ring before anything of it is computed. Whatever does not fit is the sender's fault.

use std::ops::Range;

use crate::core::ledger::Ledger;
use crate::wire::frame::{Configure, Step};

/// Checks a frame against the part and its sequences, and applies its operations to the ledger. Returns the
/// layers that are to be computed here, none if it is only passed on.
///
/// # Errors
/// What does not fit, for people. The part is over then, and its ledger too.
pub(super) fn check(configure: &Configure, ledger: &mut Ledger, step: &Step) -> Result<Range<usize>, String> {
    let (width, n_layers) = (configure.width as usize, usize::from(configure.n_layers));
    let done = usize::from(step.layers_done);
    if step.states.width() != width || done > n_layers {
        let found = step.states.width();
        return Err(format!(
            "{found} values behind layer {done}, the model has {width} and {n_layers} layers"
        ));
    }
    let expected = passed_before(configure, step);
    if done != expected {
        return Err(format!("{done} layers are done, it comes to this device behind {expected}"));
    }
    let rounds = configure.windows.iter().map(|window| window.round + 1).max().unwrap_or(0);
    let round = usize::from(step.round);
    // An audit goes round once, whatever its layer's round.
    if round >= rounds || step.audit.is_some() && round > 0 {
        return Err(format!("a frame of round {round}, the plan has {rounds}"));
    }
    if !step.states.finite() {
        return Err("a hidden state is no number".to_owned());
    }
    for operation in &step.operations {
        ledger.apply(operation).map_err(|err| err.to_string())?;
    }
    let rows = match ledger.open() {
        Some((open, rows)) if open == step.step => rows,
        _ => return Err(format!("step {} is not open", step.step)),
    };
    let want = if done == n_layers { rows.wanted(&step.rows) } else { step.rows.len() };
    if step.rows.end > rows.len() || step.states.rows() != want {
        let (found, total) = (step.states.rows(), rows.len());
        return Err(format!("{found} rows for rows {:?} of {total}, must be {want}", step.rows));
    }
    own_layers(configure, step)
}

/// Returns the layers that a frame must have passed when it arrives here. If the number differs, the sender
/// is at fault, and no later device.
fn passed_before(configure: &Configure, step: &Step) -> usize {
    let here = (usize::from(step.round), usize::from(configure.place));
    match step.audit {
        Some(audit) if audit.place < configure.place => usize::from(audit.end),
        Some(audit) => usize::from(audit.begin),
        None => {
            let before = configure.windows.iter().filter(|window| (window.round, window.place) < here);
            before.map(|window| window.end).max().unwrap_or(0)
        }
    }
}

/// Returns the layers that a frame shall pass here.
fn own_layers(configure: &Configure, step: &Step) -> Result<Range<usize>, String> {
    let place = usize::from(configure.place);
    let mut own = configure.windows.iter().filter(|window| window.place == place);
    let Some(audit) = step.audit else {
        let window = own.find(|window| window.round == usize::from(step.round));
        return Ok(window.map_or(0..0, |window| window.begin..window.end));
    };
    if audit.place != configure.place {
        return Ok(0..0);
    }
    let (begin, end) = (usize::from(audit.begin), usize::from(audit.end));
    match own.any(|window| window.begin <= begin && begin < end && end <= window.end) {
        true => Ok(begin..end),
        false => Err(format!("an audit of layers {begin} to {end}, which are not all this device's")),
    }
}
