//! Any bytes as a frame of the ring: they are refused, or read as the frame that is written as just these bytes.
//!
//! The format's own sources are compiled here, and they alone are instrumented. `./x test fuzz` runs a fixed number of
//! inputs from a fixed seed; the program takes libFuzzer's options, so that a longer search is
//! `target/fuzz/release/frames -max_total_time=3600 FOLDER`. Before it searches, it writes a frame of every kind into
//! the folder, for libFuzzer to begin with. The same property stands, over fewer and smaller inputs, in
//! `device/src/ring/frame/tests.rs`, which every test run includes.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ring::Frame;

#[path = "../../src/ring"]
mod ring {
    //! The format as the device has it, and its samples.

    mod frame;
    #[path = "frame/samples.rs"]
    mod samples;

    pub(crate) use frame::*;
    pub(crate) use samples::{may_differ, of_every_kind};
}

/// Writes the frames to begin with into the first folder that the program was given.
fn sow() {
    let Some(folder) = std::env::args().skip(1).find(|argument| Path::new(argument).is_dir()) else { return };
    for (number, frame) in ring::of_every_kind().iter().enumerate() {
        let file = Path::new(&folder).join(format!("sample-{number:02}"));
        std::fs::write(&file, frame.encode()).expect("the folder of inputs can be written to");
    }
}

fuzz_target!(init: sow(), |bytes: &[u8]| {
    let Ok(frame) = Frame::decode(bytes) else { return };
    let written = frame.encode();
    assert!(written == bytes || ring::may_differ(&frame), "{frame:?} is written otherwise");
    Frame::decode(&written).expect("what was written is read");
});
