//! The kernels and the commands on a Vulkan device, or on a program that stands for one.

use std::sync::Arc;

use baton_kernels_gpu::{Buffer, Device, GpuError, Interface, Kernel, MapOp, ZipOp, cases, ops};
use baton_kernels_wgpu::{WgpuDevice, devices, open};

/// Opens the first Vulkan device; `None` if there is none.
fn device(budget: Option<u64>) -> Option<Arc<WgpuDevice>> {
    if devices().iter().all(|facts| facts.interface != Interface::Vulkan) {
        println!("skipped: gpu: no Vulkan device");
        return None;
    }
    Some(open(Interface::Vulkan, 0, budget).expect("the device was listed"))
}

fn floats(device: &WgpuDevice, buffer: &Buffer, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * n];
    device.read(buffer, 0, &mut bytes).expect("the device has no fault");
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

#[test]
fn every_kernel_agrees_with_the_definition() {
    let Some(device) = device(None) else { return };
    for kernel in Kernel::all() {
        cases::check(&*device, kernel);
    }
}

#[test]
fn commands_keep_their_order() {
    let Some(device) = device(None) else { return };
    cases::check_memory(&*device);
    // Far more launches than one submission has, with tables, writes, copies and zeros between them. Each
    // round doubles the numbers and adds its own; the sum is exact in f32 for as long as it is small.
    let n = 1_000;
    let x = device.alloc(4 * n as u64);
    device.clear(&x);
    let mut want = 0.0f32;
    for round in 0..3_000 {
        let own = (round % 7) as f32;
        let added = if round % 500 == 13 {
            let added = device.alloc(4 * n as u64);
            let bytes: Vec<u8> = std::iter::repeat_n(own.to_le_bytes(), n).flatten().collect();
            device.write(&added, 0, &bytes);
            added
        } else {
            ops::floats(&*device, &vec![own; n])
        };
        ops::map(&*device, MapOp::Scale, &x, n, if round % 16 == 15 { 0.0 } else { 2.0 });
        ops::zip(&*device, ZipOp::Add, &x, &added, n);
        want = want * if round % 16 == 15 { 0.0 } else { 2.0 } + own;
        if round % 700 == 1 {
            let copy = device.alloc(4 * n as u64);
            device.copy(&x, 0, &copy, 0, 4 * n as u64);
            device.clear(&x);
            ops::zip(&*device, ZipOp::Add, &x, &copy, n);
            assert_eq!(floats(&device, &x, n), vec![want; n], "round {round}");
        }
    }
    assert_eq!(floats(&device, &x, n), vec![want; n]);
    assert_eq!(device.fault(), None);
}

#[test]
fn a_table_can_be_written() {
    let Some(device) = device(None) else { return };
    let (x, y) = (ops::floats(&*device, &[1.0, 2.0, 3.0]), ops::floats(&*device, &[10.0, 20.0, 30.0]));
    ops::zip(&*device, ZipOp::Add, &x, &y, 3);
    ops::zip(&*device, ZipOp::Add, &y, &x, 3);
    assert_eq!(floats(&device, &x, 3), [11.0, 22.0, 33.0]);
    assert_eq!(floats(&device, &y, 3), [21.0, 42.0, 63.0]);
    // Larger than a page of tables.
    let many: Vec<f32> = (0..300_000).map(|i| i as f32).collect();
    let table = ops::floats(&*device, &many);
    ops::map(&*device, MapOp::Scale, &table, many.len(), 2.0);
    let doubled: Vec<f32> = many.iter().map(|x| 2.0 * x).collect();
    assert_eq!(floats(&device, &table, many.len()), doubled);
}

#[test]
fn memory_is_counted_and_reused() {
    let Some(device) = device(Some(1 << 30)) else { return };
    let before = device.used_bytes();
    let x = device.alloc(100 << 20);
    let used = device.used_bytes();
    assert!((100 << 20..101 << 20).contains(&(used - before)), "{used} bytes after {before}");
    assert_eq!(device.free_bytes(), Some((1 << 30) - used));
    drop(x);
    assert_eq!(device.used_bytes(), before);
    for _ in 0..100 {
        let x = device.alloc(50 << 20);
        device.clear(&x);
    }
    assert_eq!((device.used_bytes(), device.fault()), (before, None));
}

#[test]
fn threads_share_a_device() {
    let Some(device) = device(None) else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..100 {
                    let n = 1 + 97 * (thread + round);
                    let (own, added) = ((thread + 1) as f32, round as f32);
                    let x = device.alloc(4 * n as u64);
                    let first = ops::floats(&**device, &vec![own; n]);
                    device.copy(&first, 0, &x, 0, 4 * n as u64);
                    ops::zip(&**device, ZipOp::Add, &x, &ops::floats(&**device, &vec![added; n]), n);
                    assert_eq!(floats(device, &x, n), vec![own + added; n], "thread {thread} round {round}");
                }
            });
        }
    });
    assert_eq!(device.fault(), None);
}

#[test]
fn a_small_budget_is_a_kept_fault() {
    let Some(device) = device(Some(1 << 20)) else { return };
    let first = device.alloc(600 << 10);
    assert_eq!(device.fault(), None);
    let second = device.alloc(600 << 10);
    let Some(GpuError::OutOfMemory { wanted, used, budget }) = device.fault() else {
        panic!("{:?}", device.fault());
    };
    assert_eq!((wanted, budget), (600 << 10, Some(1 << 20)));
    assert!(used >= 600 << 10, "{used}");
    // Nothing panics with a buffer that is not there, and every read says why.
    device.write(&second, 0, &[0; 64]);
    device.clear(&second);
    device.copy(&first, 0, &second, 0, 64);
    ops::zip(&*device, ZipOp::Add, &first, &second, 16);
    ops::zip(&*device, ZipOp::Add, &second, &ops::floats(&*device, &[1.0]), 1);
    for buffer in [&first, &second] {
        assert_eq!(device.read(buffer, 0, &mut [0; 4]), Err(device.fault().unwrap()));
    }
    // The device is whole: what is allocated from now on is as good as ever.
    assert!(device.recover());
    for buffer in [&first, &second] {
        ops::zip(&*device, ZipOp::Add, buffer, buffer, 1);
        assert!(matches!(device.read(buffer, 0, &mut [0; 4]), Err(GpuError::Lost(_))));
    }
    drop(first);
    let (x, y) = (ops::floats(&*device, &[1.0, 2.0, 3.0]), device.alloc(600 << 10));
    device.clear(&y);
    ops::zip(&*device, ZipOp::Add, &y, &x, 3);
    assert_eq!((floats(&device, &y, 4), device.fault()), (vec![1.0, 2.0, 3.0, 0.0], None));
}

#[test]
fn a_buffer_beyond_the_limit_is_a_kept_fault() {
    let Some(device) = device(None) else { return };
    let max = device.facts().binding_bytes;
    let bytes = max + (1 << 20);
    device.alloc(bytes);
    assert_eq!(device.fault(), Some(GpuError::TooLarge { what: "a buffer", bytes, max }));
}

#[test]
fn a_lost_device_is_a_kept_fault() {
    let Some(device) = device(None) else { return };
    let (x, y) = (device.alloc(4_000), ops::floats(&*device, &[1.0; 1_000]));
    device.clear(&x);
    ops::zip(&*device, ZipOp::Add, &x, &y, 1_000);
    assert_eq!(floats(&device, &x, 1_000), [1.0; 1_000]);
    ops::zip(&*device, ZipOp::Add, &x, &y, 1_000);
    device.destroy();
    let fault = device.fault();
    assert!(matches!(fault, Some(GpuError::Lost(_))), "{fault:?}");
    ops::zip(&*device, ZipOp::Add, &x, &y, 1_000);
    device.write(&x, 0, &[0; 4]);
    let z = device.alloc(4);
    device.clear(&z);
    for buffer in [&x, &y, &z] {
        assert_eq!(device.read(buffer, 0, &mut [0; 4]).err(), fault);
    }
    assert_eq!(device.fault(), fault);
}
