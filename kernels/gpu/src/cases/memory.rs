//! Cases of copies between host and device, of loads, and of the order of commands.

use super::probe::Probe;
use super::words::{bytes_of, floats};
use crate::device::{Buffer, Device, Mark, PART_ALIGNMENT};
use crate::kernel::{Kernel, MapOp, ZipOp};
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
    check_parts(&mut probe);
    check_order(&mut probe);
    check_tables(&mut probe);
    check_blocks(&mut probe);
    check_loads(&mut probe);
    check_load_order(&mut probe);
    check_saves(&mut probe);
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

/// A part of a buffer is its memory, for every command.
fn check_parts(probe: &mut Probe<'_>) {
    let (device, each) = (probe.device, PART_ALIGNMENT as usize / 4);
    let n = 5 * each;
    let mut want = probe.numbers(n, 1.0);
    let whole = device.upload(&bytes_of(&vec![0.0; n]));
    let buffer = device.alloc(4 * n as u64);
    device.copy(&whole, 0, &buffer, 0, 4 * n as u64);
    device.write(&buffer, 0, &bytes_of(&want));
    let part = |first: usize, n: usize| buffer.part((4 * first * each) as u64, 4 * n as u64);
    let (second, inner) = (part(1, 3 * each), part(1, 3 * each).part(PART_ALIGNMENT, 4 * each as u64));
    assert_eq!((second.bytes(), inner.bytes()), (12 * each as u64, 4 * each as u64));
    probe.equal("a part", &read(device, &second, 3, 9), &want[each + 3..each + 12]);
    probe.equal("a part of a part", &read(device, &inner, 0, each), &want[2 * each..3 * each]);
    ops::map(device, MapOp::Scale, &inner, each - 1, 2.0);
    want[2 * each..3 * each - 1].iter_mut().for_each(|x| *x *= 2.0);
    device.clear(&part(0, 7));
    want[..7].fill(0.0);
    device.write(&second, 4, &bytes_of(&[5.0]));
    want[each + 1] = 5.0;
    device.copy(&whole, 0, &part(3, each), 8, 12);
    want[3 * each + 2..3 * each + 5].fill(0.0);
    let mark = device.load(&part(4, each), 0, &bytes_of(&[7.0]), &device.mark());
    device.wait(&mark);
    want[4 * each] = 7.0;
    let mut saved = [0; 4];
    assert_eq!(device.save(&part(4, each), 0, &mut saved, &device.mark()), Ok(()), "save a part");
    assert_eq!(saved, 7.0f32.to_le_bytes());
    probe.equal("the whole", &read(device, &buffer, 0, n), &want);
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

/// A table is read as it was uploaded, also if its handle is gone and others were uploaded since.
fn check_tables(probe: &mut Probe<'_>) {
    let (device, n) = (probe.device, 1000);
    // More bytes than a set may keep together.
    let tables: Vec<_> =
        (0..300).map(|_| probe.numbers(n, 1.0)).map(|x| (ops::floats(device, &x), x)).collect();
    let sum = device.alloc(4 * n as u64);
    device.clear(&sum);
    let mut want = vec![0.0; n];
    probe.equal("zeros", &read(device, &sum, 0, n), &want);
    for (table, x) in tables {
        ops::zip(device, ZipOp::Add, &sum, &table, n);
        baton_kernels_cpu::add_assign(&mut want, &x);
        drop(table);
        ops::floats(device, &vec![1e9; n]);
    }
    probe.equal("the sum of dropped tables", &read(device, &sum, 0, n), &want);
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

/// Loads numbers to consecutive places from number `at` on, after a mark.
fn load_all(device: &dyn Device, buffer: &Buffer, at: usize, blocks: &[Vec<f32>], after: &Mark) -> Vec<Mark> {
    let mut at = 4 * at as u64;
    let load = |block: &Vec<f32>| {
        let bytes = bytes_of(block);
        let mark = device.load(buffer, at, &bytes, after);
        at += bytes.len() as u64;
        mark
    };
    blocks.iter().map(load).collect()
}

/// Several threads load to one buffer at the same time.
fn check_loads(probe: &mut Probe<'_>) {
    probe.shape("loads of threads");
    let device = probe.device;
    let sizes: [&[usize]; 3] = [&[1_100_003], &[50_001; 3], &[70_007, 1, 30_000]];
    let parts = sizes.map(|sizes| sizes.iter().map(|n| probe.numbers(*n, 1.0)).collect::<Vec<_>>());
    let all: Vec<f32> = parts.iter().flatten().flatten().copied().collect();
    // The buffer's first contents are written by a command that the loads must be behind.
    let buffer = probe.blank(all.len());
    let after = device.mark();
    std::thread::scope(|scope| {
        let mut at = 0;
        let mut threads = Vec::new();
        for part in &parts {
            let (buffer, after, first) = (&buffer, &after, at);
            threads.push(scope.spawn(move || load_all(device, buffer, first, part, after)));
            at += part.iter().map(Vec::len).sum::<usize>();
        }
        for thread in threads {
            let marks = thread.join().expect("a load fails by a fault of the device");
            marks.iter().for_each(|mark| device.wait(mark));
        }
    });
    ops::map(device, MapOp::Scale, &buffer, all.len(), 3.0);
    let want: Vec<f32> = all.iter().map(|x| x * 3.0).collect();
    probe.holds("loaded", &buffer, &want);
    // Nothing is under way any more, so a load need not be behind a command.
    device.wait(&device.load(&buffer, 4, &bytes_of(&[7.0, 8.0]), &Mark::passed()));
    probe.equal("loaded at once", &read(device, &buffer, 0, 4), &[want[0], 7.0, 8.0, want[3]]);
}

/// Commands before the mark see the old contents, and those after the wait the new ones.
fn check_load_order(probe: &mut Probe<'_>) {
    probe.shape("loads and commands");
    let (device, n) = (probe.device, 1_000_003);
    // A short load would overtake the commands, and the commands would overtake a long one.
    for first in [0, n - 7, 0, n - 7] {
        let (old, new) = (probe.numbers(n, 1.0), probe.numbers(n - first, 1.0));
        let (buffer, kept) = (probe.place(&old), probe.blank(n));
        let bytes = bytes_of(&new);
        device.write(&buffer, 0, &bytes_of(&old));
        ops::map(device, MapOp::Scale, &buffer, n, 3.0);
        device.copy(&buffer, 0, &kept, 0, 4 * n as u64);
        let after = device.mark();
        let loaded = device.load(&buffer, 4 * first as u64, &bytes, &after);
        device.wait(&loaded);
        ops::map(device, MapOp::Scale, &buffer, n, 5.0);
        let old: Vec<f32> = old.iter().map(|x| x * 3.0).collect();
        let want: Vec<f32> = old[..first].iter().chain(&new).map(|x| x * 5.0).collect();
        probe.holds("kept", &kept, &old);
        probe.holds("loaded", &buffer, &want);
    }
}

/// Threads save what a command has written, while later commands work on something else.
fn check_saves(probe: &mut Probe<'_>) {
    probe.shape("saves");
    let (device, n) = (probe.device, 1_100_003);
    let x = probe.numbers(n, 1.0);
    let (buffer, other) = (probe.place(&x), probe.place(&x));
    ops::map(device, MapOp::Scale, &buffer, n, 3.0);
    let after = device.mark();
    let cut = n / 3;
    let saved = std::thread::scope(|scope| {
        let save = |at: usize, len: usize| {
            let (buffer, after) = (&buffer, &after);
            move || {
                let mut bytes = vec![0xa5; 4 * len];
                assert_eq!(device.save(buffer, 4 * at as u64, &mut bytes, after), Ok(()));
                floats(&bytes, 0..len)
            }
        };
        let threads = [scope.spawn(save(0, cut)), scope.spawn(save(cut, n - cut))];
        ops::map(device, MapOp::Scale, &other, n, 5.0);
        threads.map(|thread| thread.join().expect("a save fails by a fault of the device")).concat()
    });
    let want: Vec<f32> = x.iter().map(|x| x * 3.0).collect();
    probe.equal("saved", &saved, &want);
    probe.holds("other", &other, &x.iter().map(|x| x * 5.0).collect::<Vec<_>>());
}
