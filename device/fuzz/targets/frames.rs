//! Decodes any bytes as a frame of the ring: they are refused, or encoding the decoded frame gives the same
//! bytes.
//!
//! The format's own sources are compiled here, and only they are instrumented. `./x test fuzz` runs a fixed
//! number of inputs from a fixed seed. The program takes libFuzzer's options; a longer search is
//! `target/fuzz/release/frames -max_total_time=3600 FOLDER`. Before a search, it writes a frame of every
//! kind into the folder, as libFuzzer's first inputs. `shared/ring/src/wire/frame/tests.rs` checks the same
//! property with fewer and smaller inputs in every test run.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ring::Frame;

#[path = "../../../shared/ring/src/core"]
mod core {
    //! The few types of the ring's core that are in frames.

    #[allow(dead_code, reason = "frames use a part of them")]
    pub(crate) mod ids;
    #[allow(dead_code, reason = "frames use a part of it")]
    pub(crate) mod states;
}

#[path = "../../../shared/ring/src/wire"]
mod ring {
    //! The format as the ring has it, and its samples.

    #[allow(dead_code, reason = "the ring uses more of the format than this target")]
    mod frame;
    #[path = "frame/samples.rs"]
    mod samples;

    pub(crate) use frame::*;
    pub(crate) use samples::{may_differ, of_every_kind};
}

/// Writes the first inputs into the first folder among the program's arguments.
fn write_first_inputs() {
    let Some(folder) = std::env::args().skip(1).find(|argument| Path::new(argument).is_dir()) else { return };
    for (number, frame) in ring::of_every_kind().iter().enumerate() {
        let file = Path::new(&folder).join(format!("sample-{number:02}"));
        std::fs::write(&file, frame.encode()).expect("the folder of inputs can be written to");
    }
}

fuzz_target!(init: write_first_inputs(), |bytes: &[u8]| {
    let Ok(frame) = Frame::decode(bytes) else { return };
    let written = frame.encode();
    assert!(written == bytes || ring::may_differ(&frame), "{frame:?} is written otherwise");
    Frame::decode(&written).expect("what was written is read");
});
