//! Every kernel of a set against the scalar definition, over shapes and tail lengths.
//!
//! What each result must be:
//! - Products, sums, factors, rotations and copies are equal to the scalar definition bit for bit, given the
//!   same rounded activations. NaNs are equal, whatever their bits.
//! - Rounded activations are equal too. On a device whose division is not exact, scales may differ by 3e-7 of
//!   them, and one byte in a thousand by 1.
//! - Packed keys and values are equal too. Without an exact division one group in twenty may differ.
//!   Opened ones have the bits that packing left, on any device.
//! - Functions with a division, a root or an exponential (norms, gates, the cap): the largest error is 2e-6
//!   of the largest magnitude of the vector.
//! - Attention: 6e-6 of the largest magnitude of values, as outputs are averages of them. Parts, chunks of
//!   rows and single queries are equal to all at once, bit for bit.
//! - A NaN or an infinity among the activations of a product makes its row's outputs NaN.
//! - Experts are those of the scalar definition. Their factors are functions with a division.
//! - Kernels that join others have their results, bit for bit.
//! - No kernel writes behind its numbers, or depends on memory that nobody has written.

mod altered;
mod attention;
mod blocks;
mod cache;
mod experts;
pub mod failing;
mod groups;
pub mod host;
mod joined;
pub mod late;
mod memory;
mod numbers;
mod packed;
mod probe;
mod products;
#[cfg(test)]
mod tests;
pub mod timed;
mod words;

use crate::device::Device;
use crate::kernel::Kernel;

pub use failing::{Call, FailingDevice, Failure};
pub use host::HostDevice;
pub use late::{LateDevice, Loads};
pub use timed::{Span, Speeds, TimedDevice};

/// Runs all cases of one kernel.
///
/// # Panics
/// If a result is not the expected one, or the device has a fault. The message names the kernel, the device,
/// the shape, and the number that differs.
pub fn check(device: &dyn Device, kernel: Kernel) {
    let mut probe = probe::Probe::new(device, kernel);
    match kernel {
        Kernel::Quantize { block } => products::check_rounding(&mut probe, block as usize),
        Kernel::MatVec { .. }
        | Kernel::MatMul { .. }
        | Kernel::MatVecFloat { .. }
        | Kernel::MatMulFloat { .. } => products::check(&mut probe),
        Kernel::MatVecJoined { .. } | Kernel::NormRounded { .. } | Kernel::RopeAppend(_) => {
            joined::check(&mut probe);
        }
        Kernel::Route | Kernel::MatVecChosen { .. } | Kernel::AddChosenBias | Kernel::AddChosen => {
            experts::check(&mut probe);
        }
        Kernel::Append | Kernel::Keep => cache::check(&mut probe),
        Kernel::RoundKv(how) | Kernel::PackKv(how) => packed::check(&mut probe, how),
        Kernel::UnpackKv(how) => packed::check_opening(&mut probe, how),
        Kernel::Attend(width) | Kernel::AttendPart(width) | Kernel::AttendJoin(width) => {
            attention::check(&mut probe, width);
        }
        Kernel::Score => attention::check_score(&mut probe),
        _ => numbers::check(&mut probe),
    }
    assert_eq!(device.fault(), None, "{}", kernel.name());
}

/// Checks the commands of a device that run no kernel, and their order with those that do.
///
/// # Panics
/// As [`check`].
pub fn check_memory(device: &dyn Device) {
    memory::check(device);
}
