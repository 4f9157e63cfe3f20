//! Cases of copies between host and device, and of the order of commands.

use super::probe::Probe;
use super::words::{bytes_of, floats};
use crate::device::{Buffer, Device};
use crate::kernel::{Kernel, MapOp};
use crate::ops::{self, KvBuffers};

/// Reads numbers from a place on.
fn read(device: &dyn Device, buffer: &Buffer, at: usize, n: usize) -> Vec<f32> {
    let mut bytes = vec![0xa5; 4 * n];
    let result = device.read(buffer, 4 * at as u64, &mut bytes);
    assert_eq!(result, Ok(()), "read {n} numbers from number {at} on");
    floats(&bytes, 0..n)
}

/// All cases. They are run as those of one kernel, which shows the order of launches and copies.
pub(super) fn check(device: &dyn Device) {
    let mut probe = Probe::new(device, Kernel::Map(MapOp::Scale));
    probe.shape("copies");
    check_copies(&mut probe);
    check_order(&mut probe);
    check_blocks(&mut probe);
    let held = device.alloc(1 << 20);
    assert!(device.used_bytes() >= 1 << 20, "{} bytes in use", device.used_bytes());
    drop(held);
    assert_eq!(device.fault(), None);
}

fn check_copies(probe: &mut Probe<'_>) {
    let device = probe.device;
    // Small and large tables, such as a launch's items and a layer's weights.
    for n in [1, 7, 4096, 1_000_003] {
        let x = probe.numbers(n, 1.0);
        let uploaded = device.upload(&bytes_of(&x));
        assert_eq!(uploaded.bytes(), 4 * n as u64);
        probe.equal("uploaded", &read(device, &uploaded, 0, n), &x);
        probe.equal("a part", &read(device, &uploaded, n / 2, n - n / 2), &x[n / 2..]);
        let other = device.alloc(4 * n as u64 + 8);
        device.clear(&other);
        device.copy(&uploaded, 4 * (n / 2) as u64, &other, 4, 4 * (n - n / 2) as u64);
        let mut want = vec![0.0; n + 2];
        want[1..1 + n - n / 2].copy_from_slice(&x[n / 2..]);
        probe.equal("copied", &read(device, &other, 0, n + 2), &want);
        device.write(&other, 4 * n as u64, &bytes_of(&[5.0, 6.0]));
        want[n..].copy_from_slice(&[5.0, 6.0]);
        probe.equal("written", &read(device, &other, 0, n + 2), &want);
    }
}

/// Writes, uploads and launches take effect in the order of the calls.
fn check_order(probe: &mut Probe<'_>) {
    let (device, n) = (probe.device, 1000);
    let buffer = device.alloc(4 * n as u64);
    let copies = device.alloc(12 * n as u64);
    for (i, x) in [1.0f32, 3.0, 5.0].into_iter().enumerate() {
        device.write(&buffer, 0, &bytes_of(&vec![x; n]));
        ops::map(device, MapOp::Scale, &buffer, n, 2.0);
        let bias = ops::floats(device, &[x]);
        ops::add_bias(device, &buffer, &bias, (n, 1));
        device.copy(&buffer, 0, &copies, 4 * (i * n) as u64, 4 * n as u64);
    }
    device.clear(&buffer);
    let want: Vec<f32> = [3.0f32, 9.0, 15.0].into_iter().flat_map(|x| vec![x; n]).collect();
    probe.equal("in order", &read(device, &copies, 0, 3 * n), &want);
    probe.equal("cleared", &read(device, &buffer, 0, n), &vec![0.0; n]);
}

/// Copies of blocks of keys and values.
fn check_blocks(probe: &mut Probe<'_>) {
    let (heads, d) = (2, 10);
    let words = KvBuffers::block_bytes(heads, d) as usize / 4;
    let (mut keys, mut values) = (probe.numbers(3 * words, 1.0), probe.numbers(3 * words, 1.0));
    let kv = KvBuffers { keys: probe.place(&keys), values: probe.place(&values), heads, d };
    ops::copy_block(probe.device, &kv, 2, 0);
    for x in [&mut keys, &mut values] {
        x.copy_within(2 * words.., 0);
    }
    probe.holds("keys", &kv.keys, &keys);
    probe.holds("values", &kv.values, &values);
}
