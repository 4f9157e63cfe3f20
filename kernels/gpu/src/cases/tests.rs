//! The cases and the launches, without a GPU.

use std::sync::{Arc, Mutex};

use baton_kernels_cpu::{Format, Matrix};

use super::{
    Call, FailingDevice, Failure, HostDevice, LateDevice, Loads, Span, Speeds, TimedDevice, check,
    check_memory,
};
use crate::device::Interface;
use crate::device::{Buffer, Device, Facts, GpuError, Launch, Mark, Tiles};
use crate::kernel::{AttendWidth, Kernel, MapOp};
use crate::matrix::DeviceMatrix;
use crate::ops::{self, AttentionArgs, AttentionItem, AttentionItems, Input, KvBuffers};

/// Returns every kernel.
fn every() -> Vec<Kernel> {
    Kernel::all().into_iter().chain(Kernel::joined()).collect()
}

/// Runs the cases of the kernels that `which` names.
fn host(which: impl Fn(Kernel) -> bool) {
    let kernels: Vec<Kernel> = every().into_iter().filter(|kernel| which(*kernel)).collect();
    assert!(!kernels.is_empty(), "no such kernels");
    let device = HostDevice::new(None);
    for kernel in kernels {
        check(&device, kernel);
    }
    assert_eq!(device.used_bytes(), 0, "every buffer was given back");
}

/// Whether a kernel multiplies a matrix.
fn is_product(kernel: Kernel) -> bool {
    matches!(
        kernel,
        Kernel::MatVec { .. }
            | Kernel::MatVecJoined { .. }
            | Kernel::MatVecChosen { .. }
            | Kernel::MatMul { .. }
            | Kernel::MatVecFloat { .. }
            | Kernel::MatMulFloat { .. }
    )
}

/// Whether a kernel attends.
fn is_attention(kernel: Kernel) -> bool {
    matches!(kernel, Kernel::Attend(_) | Kernel::AttendPart(_) | Kernel::AttendJoin(_) | Kernel::Score)
}

#[test]
fn products_on_the_host_are_those_of_the_definition() {
    host(is_product);
}

#[test]
fn attention_on_the_host_is_that_of_the_definition() {
    host(is_attention);
}

#[test]
fn other_kernels_on_the_host_are_those_of_the_definition() {
    host(|kernel| !is_product(kernel) && !is_attention(kernel));
}

#[test]
fn memory_of_the_host_is_read_as_it_was_written() {
    check_memory(&HostDevice::new(None));
    check_memory(&FailingDevice::new(None));
    for loads in Loads::ALL {
        check_memory(&LateDevice::new(None, loads));
    }
}

#[test]
fn the_cases_notice_a_missing_workgroup() {
    for kernel in every() {
        let host = HostDevice::new(None);
        let device = super::altered::Altered::without_a_workgroup(&host);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&device, kernel)));
        let message = *result.expect_err("a wrong result").downcast::<String>().unwrap();
        assert!(message.starts_with(&kernel.name()), "{message}");
    }
}

/// A launch: kernel, workgroups, numbers, and bytes of the buffers.
type Recorded = (Kernel, [u32; 3], Vec<u32>, Vec<u64>);

/// A device without memory, which records launches and what is copied to it.
#[derive(Debug)]
struct Recorder {
    facts: Facts,
    launches: Mutex<Vec<Recorded>>,
    written: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Recorder {
    fn new(binding_bytes: u64) -> Self {
        let facts = Facts {
            name: "recorder".to_owned(),
            interface: Interface::Vulkan,
            index: 0,
            is_software: true,
            shares_memory: false,
            memory_bytes: None,
            binding_bytes,
        };
        Self { facts, launches: Mutex::default(), written: Mutex::default() }
    }

    fn launches(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.launches.lock().unwrap())
    }

    fn written(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.written.lock().unwrap())
    }
}

impl Device for Recorder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        Tiles { matvec_rows: 4, matmul_rows: 32, matmul_tokens: 16, numbers: 256 }
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        Buffer::new(Arc::new(()), bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.written.lock().unwrap().push((0, bytes.to_vec()));
        self.alloc(bytes.len() as u64)
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        assert!(
            at + bytes.len() as u64 <= to.bytes() && at.is_multiple_of(4) && bytes.len().is_multiple_of(4)
        );
        self.written.lock().unwrap().push((at, bytes.to_vec()));
    }

    fn clear(&self, _: &Buffer) {}

    fn copy(&self, _: &Buffer, _: u64, _: &Buffer, _: u64, _: u64) {}

    fn launch(&self, launch: &Launch<'_>) {
        let bytes = launch.buffers.iter().map(|buffer| buffer.bytes()).collect();
        self.launches.lock().unwrap().push((launch.kernel, launch.groups, launch.params.to_vec(), bytes));
    }

    fn read(&self, _: &Buffer, _: u64, _: &mut [u8]) -> Result<(), GpuError> {
        Err(GpuError::Lost("it has no memory".to_owned()))
    }

    fn fault(&self) -> Option<GpuError> {
        None
    }

    fn used_bytes(&self) -> u64 {
        0
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

#[test]
fn flat_grids_have_as_few_rows_as_fit() {
    let device = Recorder::new(1 << 20);
    let x = device.alloc(4);
    for (n, groups) in [
        (1, [1, 1, 1]),
        (256, [1, 1, 1]),
        (257, [2, 1, 1]),
        (65_535 * 256, [65_535, 1, 1]),
        (65_535 * 256 + 1, [32_768, 2, 1]),
        (200_000 * 256, [50_000, 4, 1]),
    ] {
        ops::map(&device, MapOp::Scale, &x, n, 2.0);
        let want = (Kernel::Map(MapOp::Scale), groups, vec![n as u32, 2.0f32.to_bits()], vec![4]);
        assert_eq!(device.launches(), [want], "{n} numbers");
    }
    ops::map(&device, MapOp::Scale, &x, 0, 2.0);
    assert_eq!(device.launches(), []);
    ops::rms_norm_in_place(&device, &x, (&x, 8), 0.5, 65_536);
    assert_eq!(device.launches()[0].1, [32_768, 2, 1]);
}

#[test]
fn a_matrix_is_split_where_a_binding_ends() {
    // Rows of 34 bytes: three fit in 105 bytes, of which up to three are padding.
    let device = Recorder::new(105);
    let data: Vec<u8> = (0..7 * 34).collect();
    let w = DeviceMatrix::new(&device, &Matrix::new(Format::Q8_0, 7, 32, &data).unwrap());
    assert_eq!((w.rows(), w.cols(), w.format()), (7, 32, Format::Q8_0));
    let mut all = Vec::new();
    let mut written = device.written().into_iter();
    for (chunk, (first, rows)) in w.chunks.iter().zip([(0, 3), (3, 3), (6, 1)]) {
        assert_eq!((chunk.first, chunk.rows), (first, rows));
        assert_eq!(chunk.buffer.bytes(), (34 * rows as u64).next_multiple_of(4));
        assert!(chunk.buffer.bytes() <= 105);
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < chunk.buffer.bytes() {
            let (at, part) = written.next().unwrap();
            assert_eq!(at, bytes.len() as u64);
            bytes.extend(part);
        }
        assert!(bytes[34 * rows..].iter().all(|byte| *byte == 0), "padding");
        all.extend_from_slice(&bytes[..34 * rows]);
    }
    assert_eq!((w.chunks.len(), all), (3, data));

    let out = device.alloc(4 * 7);
    let x = ops::quantize(&device, &out, 1, 32, 32);
    device.launches();
    ops::matmul(&device, &w, Input::Quantized(&x), 1, &out);
    let kernel = Kernel::MatVec { format: Format::Q8_0, tokens: 1 };
    let want = |first: u32, rows: u32, bytes: u64| {
        (kernel, [1, 1, 1], vec![rows, 32, 1, first, 7], vec![bytes, 32, 4, 8, 28])
    };
    assert_eq!(device.launches(), [want(0, 3, 104), want(3, 3, 104), want(6, 1, 36)]);
}

#[test]
fn a_product_has_the_kernel_of_its_number_of_tokens() {
    let device = Recorder::new(1 << 20);
    let data = vec![0; 2 * 100 * 70];
    let w = DeviceMatrix::new(&device, &Matrix::new(Format::F16, 100, 70, &data).unwrap());
    let x = device.alloc(4);
    let vector = |tokens| Kernel::MatVecFloat { format: Format::F16, tokens };
    let tiled = Kernel::MatMulFloat { format: Format::F16 };
    for (t, kernel, groups) in [
        (1, vector(1), [25, 1, 1]),
        (2, vector(4), [25, 1, 1]),
        (5, vector(4), [25, 1, 2]),
        (15, vector(4), [25, 1, 4]),
        (16, tiled, [1, 4, 1]),
        (33, tiled, [3, 4, 1]),
    ] {
        ops::matmul(&device, &w, Input::Floats(&x), t, &x);
        let launches = device.launches();
        assert_eq!((launches.len(), launches[0].0, launches[0].1), (1, kernel, groups), "{t} tokens");
        assert_eq!(launches[0].2, [100, 70, t as u32, 0, 100]);
    }
}

/// Attention of two items over keys of 2 heads of 80 dimensions, 3 query heads each.
fn attend(device: &Recorder, items: &[AttentionItem], parts: bool) {
    let buffer = device.alloc(4);
    let kv = KvBuffers { keys: buffer.clone(), values: buffer.clone(), heads: 2, d: 80 };
    let args = AttentionArgs {
        q: &buffer,
        kv: &kv,
        blocks: &buffer,
        items: &AttentionItems::new(device, items),
        group: 3,
        scale: 0.5,
        cap: None,
        sinks: None,
        window: u32::MAX,
        first_keys: 7,
        out: &buffer,
        lse: &buffer,
        lse_width: 6,
    };
    if parts {
        ops::attend_parts(device, &args);
    } else {
        ops::attend(device, &args);
    }
}

#[test]
fn items_of_attention_are_eight_words() {
    let device = Recorder::new(1 << 20);
    let item = |row, position| AttentionItem { row, rows: 5, position, table_at: 9, head: 1, heads: 2 };
    let items = [item(0, 100), item(5, 508)];
    let words: Vec<u32> = vec![0, 5, 100, 9, 1, 2, 0, 0, 5, 5, 508, 9, 1, 2, 0, 0];
    let packed: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut params = vec![2, 2, 3, 80, 0.5f32.to_bits(), 0, u32::MAX, 7, 0, 6];

    attend(&device, &items, false);
    let [(kernel, groups, numbers, _)] = &device.launches()[..] else { panic!("one launch") };
    assert_eq!((*kernel, *groups), (Kernel::Attend(AttendWidth::D128), [2, 2, 1]));
    assert_eq!(*numbers, params);
    assert!(device.written().contains(&(0, packed)), "the items");

    // The last key is number 512, so there are three parts.
    attend(&device, &items, true);
    let launches = device.launches();
    params.push(3);
    assert_eq!(launches[0].0, Kernel::AttendPart(AttendWidth::D128));
    assert_eq!((launches[0].1, &launches[0].2), ([2, 2, 3], &params));
    assert_eq!(launches[0].3[5], 4 * 2 * 2 * 3 * 16 * 82, "states");
    assert_eq!(launches[1].0, Kernel::AttendJoin(AttendWidth::D128));
    assert_eq!((launches[1].1, &launches[1].2), ([2, 2, 1], &params));

    attend(&device, &[], false);
    attend(&device, &[], true);
    assert_eq!(device.launches(), []);
}

#[test]
fn a_full_device_keeps_its_fault() {
    let device = HostDevice::new(Some(100));
    let first = device.alloc(60);
    assert_eq!((device.used_bytes(), device.free_bytes()), (60, Some(40)));
    let second = device.alloc(41);
    let fault = GpuError::OutOfMemory { wanted: 41, used: 60, budget: Some(100) };
    assert_eq!(device.fault(), Some(fault.clone()));
    ops::map(&device, MapOp::Scale, &second, 10, 2.0);
    device.copy(&second, 0, &first, 0, 8);
    assert_eq!(device.read(&first, 0, &mut [0; 4]), Err(fault));
    assert!(device.recover() && device.fault().is_none());
    for buffer in [&first, &second] {
        ops::map(&device, MapOp::Scale, buffer, 10, 2.0);
        device.write(buffer, 0, &[0; 4]);
        assert!(matches!(device.read(buffer, 0, &mut [0; 4]), Err(GpuError::Lost(_))));
    }
    drop(first);
    assert_eq!((device.used_bytes(), device.upload(&[0; 100]).bytes(), device.fault()), (0, 100, None));
}

#[test]
fn many_items_of_attention_in_parts_take_several_launches() {
    let device = Recorder::new(1 << 20);
    let item = |row| AttentionItem { row, rows: 1, position: 131_071, table_at: 0, head: 0, heads: 3 };
    let items: Vec<AttentionItem> = (0..7).map(item).collect();
    // 512 parts of 16 vectors, for two heads: 5.4 MB for each item.
    attend(&device, &items, true);
    assert_eq!(device.launches().len(), 2);
    let items: Vec<AttentionItem> = (0..30).map(item).collect();
    attend(&device, &items, true);
    let launches = device.launches();
    let items_of = |launch: &Recorded| launch.2[0];
    assert_eq!(launches.iter().map(items_of).collect::<Vec<_>>(), [12, 12, 12, 12, 6, 6]);
    let states: Vec<u64> = launches.iter().step_by(2).map(|launch| launch.3[5]).collect();
    let most = ops::attend_states_bytes(30, (2, 80), 131_072);
    assert_eq!(
        (most, states.iter().max(), ops::attend_states_bytes(30, (2, 80), 256)),
        (states[0], Some(&most), 0)
    );
    assert!(most <= 64 << 20);
}

#[test]
fn a_clock_notes_what_both_engines_do() {
    let speeds = Speeds { copy_bytes_per_s: 1000.0, copy_s: 1.0, read_bytes_per_s: 1000.0, launch_s: 0.5 };
    let device = TimedDevice::new(None, speeds);
    let buffer = device.alloc(4000);
    let first = device.load(&buffer, 0, &[0; 1000], &device.mark());
    device.write(&buffer, 2000, &[0; 2000]);
    device.wait(&first);
    let second = device.load(&buffer, 0, &[0; 500], &device.mark());
    device.wait(&second);
    let [commands, loads] = device.take_spans();
    let span = |what: &str, start_s, end_s, bytes| Span { what: what.to_owned(), start_s, end_s, bytes };
    // A load begins after its mark, and a wait lets the commands' clock go on to its end.
    assert_eq!(commands, [span("write", 0.0, 3.0, 2000)]);
    assert_eq!(loads, [span("load", 0.0, 2.0, 1000), span("load", 3.0, 4.5, 500)]);
    assert_eq!(device.now_s(), 4.5);
    assert_eq!(device.take_spans(), [Vec::new(), Vec::new()], "spans are taken once");
}

#[test]
fn a_call_fails_as_it_was_planned_and_no_other() {
    let fault = GpuError::Lost("unplugged".to_owned());
    let run = |device: &FailingDevice| -> Result<(), GpuError> {
        let buffer = device.upload(&[1; 8]);
        device.write(&buffer, 0, &[2; 4]);
        ops::map(device, MapOp::Scale, &buffer, 2, 1.0);
        device.load(&buffer, 0, &[3; 4], &device.mark());
        device.save(&buffer, 0, &mut [0; 4], &device.mark())?;
        device.read(&buffer, 0, &mut [0; 4])
    };
    for call in Call::ALL {
        let device = FailingDevice::new(None);
        device.fail_at(call, 1, Failure::Fault(fault.clone()));
        assert_eq!(run(&device), Ok(()), "{call:?}: the first one");
        assert_eq!(run(&device), Err(fault.clone()), "{call:?}: the second one");
        assert!(!device.forget() && device.used_bytes() == 0, "{call:?}");
        let device = FailingDevice::new(None);
        device.fail_at(call, 0, Failure::Panic);
        let run_one = std::panic::AssertUnwindSafe(|| run(&device));
        let message = *std::panic::catch_unwind(run_one).unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("planned for a call of {call:?}"));
        assert_eq!(run(&device), Ok(()), "{call:?}: after the panic");
        device.fail_at(call, 9, Failure::Panic);
        assert!(device.forget() && run(&device) == Ok(()), "{call:?}: nothing is planned");
    }
}

/// Writes 1, loads 2 behind the mark and copies. Returns the copies before and after the load.
fn load_between(loads: Loads, is_marked: bool, is_waited_for: bool) -> [u8; 2] {
    let device = LateDevice::new(None, loads);
    let [buffer, before, after] = [4, 4, 4].map(|bytes| device.alloc(bytes));
    device.write(&buffer, 0, &[1; 4]);
    device.copy(&buffer, 0, &before, 0, 4);
    let mark = if is_marked { device.mark() } else { Mark::passed() };
    let loaded = device.load(&buffer, 0, &[2; 4], &mark);
    if is_waited_for {
        device.wait(&loaded);
    }
    device.copy(&buffer, 0, &after, 0, 4);
    [before, after].map(|copy| {
        let mut bytes = [0; 4];
        device.read(&copy, 0, &mut bytes).unwrap();
        bytes[0]
    })
}

#[test]
fn a_mark_or_a_wait_that_is_missing_shows_as_wrong_bytes() {
    for loads in Loads::ALL {
        assert_eq!(load_between(loads, true, true), [1, 2], "{loads:?}");
    }
    assert_eq!(load_between(Loads::Late, true, false), [1, 1], "nobody waits for the load");
    // The write that should be before the load comes behind it.
    assert_eq!(load_between(Loads::Early, false, true), [1, 1], "the load is behind nothing");
    let device = LateDevice::new(None, Loads::Late);
    let buffer = device.upload(&[1; 4]);
    let mark = device.mark();
    device.write(&buffer, 0, &[2; 4]);
    let mut saved = [0; 4];
    device.save(&buffer, 0, &mut saved, &mark).unwrap();
    assert_eq!(saved, [1; 4], "a save sees what is before its mark");
}
