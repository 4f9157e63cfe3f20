//! Effects as numbers: two runs of one seed must give the same ones in the same order.

use baton_random::mix;

use crate::core::head::{self, HeadWork};
use crate::core::worker::{self, WorkerWork};
use crate::core::{LinkEffect, LinkId};
use crate::wire::frame::Frame;

fn fold(values: &[u64]) -> u64 {
    values.iter().fold(0, |hash, value| mix(hash, *value))
}

fn words(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |hash, byte| mix(hash, u64::from(byte)))
}

fn frame(link: LinkId, frame: &Frame) -> u64 {
    let what = match frame {
        Frame::Step(step) => {
            let rows = (step.rows.start as u64) << 32 | step.rows.end as u64;
            let of = step.states.hidden();
            let states = of.values.iter().fold(of.rows as u64, |hash, value| {
                hash.wrapping_mul(0x0100_0000_01b3).wrapping_add(u64::from(value.to_bits()))
            });
            let round = u64::from(step.round) << 16 | u64::from(step.layers_done);
            let operations = step.operations.len() as u64;
            fold(&[1, step.epoch.0, step.step.0, rows, round, operations, states])
        }
        Frame::Heartbeat(beat) => {
            fold(&[2, beat.epoch.0, beat.received, beat.sent, beat.refused, beat.compute_us])
        }
        Frame::Configure(part) => {
            let windows = part
                .windows
                .iter()
                .map(|window| (window.place << 20 | window.begin << 10 | window.end) as u64);
            fold(&[3, part.epoch.0, u64::from(part.place), windows.fold(0, mix)])
        }
        Frame::Failed(failure) => fold(&[4, failure.epoch.0, failure.code as u64, words(&failure.words)]),
        Frame::Enter { epoch, place } => fold(&[5, epoch.0, u64::from(*place)]),
        Frame::Ready { epoch } => fold(&[6, epoch.0]),
        Frame::FetchPieces { first, count } => fold(&[7, u64::from(*first), u64::from(*count)]),
        Frame::Piece(piece) => fold(&[8, u64::from(piece.index)]),
        Frame::Echo(echo) => fold(&[9, u64::from(echo.number), u64::from(echo.reply)]),
        Frame::Echoed(echo) => fold(&[10, u64::from(echo.number), echo.bytes.len() as u64]),
        Frame::Hello(_) => 11,
        Frame::Provide(_) => 12,
        Frame::Provided => 13,
        Frame::FetchManifest => 14,
        Frame::Manifest(_) => 15,
        Frame::AskPieces { .. } => 16,
        Frame::HasPieces(_) => 17,
        Frame::FetchProgress => 18,
        Frame::AwaitEdge { .. } => 19,
        Frame::MeasureEdge(_) => 20,
        Frame::Edge(_) => 21,
    };
    fold(&[20, link.0, what])
}

fn link(effect: &LinkEffect) -> u64 {
    match effect {
        LinkEffect::Connect { link, to, purpose, .. } => {
            fold(&[1, link.0, u64::from(to.device.0[0]), *purpose as u64])
        }
        LinkEffect::Allow(devices) => fold(&[2, devices.len() as u64]),
        LinkEffect::Send(link, sent) => frame(*link, sent),
        LinkEffect::Close(link) => fold(&[3, link.0]),
        LinkEffect::Hold(link) => fold(&[4, link.0]),
        LinkEffect::Release(link) => fold(&[5, link.0]),
    }
}

/// An effect of the head's core.
pub(super) fn head(effect: &head::Effect) -> u64 {
    match effect {
        head::Effect::Link(effect) => link(effect),
        head::Effect::Give(link, _) => fold(&[30, link.0]),
        head::Effect::Compute(id, work) => {
            let kind = match work {
                HeadWork::ReadModel => 0,
                HeadWork::Sequence(_) => 1,
                HeadWork::Whole { .. } => 2,
                HeadWork::Open { .. } => 3,
                HeadWork::Embed { .. } => 4,
                HeadWork::Rows { rows, .. } => 100 + rows.len() as u64,
                HeadWork::Layer { .. } => 5,
                HeadWork::Close { commit } => 6 + u64::from(*commit),
                HeadWork::Reset { .. } => 8,
                HeadWork::CheckFile { .. } => 9,
                HeadWork::AddAdapter => 10,
            };
            fold(&[31, id.0, kind])
        }
        head::Effect::Plan(of) => fold(&[32, of.workers.len() as u64]),
        head::Effect::Draft(of) => fold(&[33, of.workers.len() as u64]),
        head::Effect::Judge(shown) => fold(&[34, shown.len() as u64]),
        head::Effect::KeepWays => 35,
        head::Effect::Discard(_) => 36,
        head::Effect::Note(note) => words(&note.to_string()),
        head::Effect::Done(done) => match done {
            Ok(_) => 37,
            Err(fault) => words(&fault.to_string()),
        },
        head::Effect::WakeAt(at) => at.map_or(38, |at| at.as_nanos() as u64),
    }
}

/// An effect of a worker's core.
pub(super) fn worker(device: usize, effect: &worker::Effect) -> u64 {
    let what = match effect {
        worker::Effect::Link(effect) => link(effect),
        worker::Effect::Give(link, _) => fold(&[40, link.0]),
        worker::Effect::Compute(id, work) => {
            let kind = match work {
                WorkerWork::Begin { .. } => 0,
                WorkerWork::Pass { .. } => 1,
                WorkerWork::Forget => 2,
            };
            fold(&[41, id.0, kind])
        }
        worker::Effect::Interrupt => 42,
        worker::Effect::Disk(id, _) => fold(&[43, id.0]),
        worker::Effect::Abort(id) => fold(&[44, id.0]),
        worker::Effect::Tell(_) => 45,
        worker::Effect::Note(note) => words(&note.to_string()),
        worker::Effect::Discard(_) => 46,
        worker::Effect::WakeAt(at) => at.map_or(47, |at| at.as_nanos() as u64),
    };
    mix(device as u64, what)
}
