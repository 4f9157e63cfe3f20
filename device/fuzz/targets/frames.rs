//! Any bytes as a frame of the ring: they are refused, or read as a frame that is written and read again the same.
//!
//! `cargo +nightly fuzz run frames` in `device/` (cargo-fuzz 0.12 or later). The same property stands, over fewer and
//! smaller inputs, in `device/src/ring/frame/tests.rs`, which every test run includes.

#![no_main]

use baton_device::ring::frame::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(frame) = Frame::decode(bytes) else { return };
    let written = frame.encode();
    let again = Frame::decode(&written).expect("what was written is read");
    // Half precision is written as it was read; a number that is none is not equal to itself, its bytes are.
    assert_eq!(again.encode(), written);
});
