//! A device's profile in a frame: what the planner must know of it, field by field.

use baton_plan::cluster::ByFormat;
use baton_plan::{Device, Disk, Gpu, GpuKind, Os, Processor};

use super::FrameError;
use super::bytes::{Reader, Writer};

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 256;
/// Least bytes of a rate: the length of its format's name, and a number.
const RATE_BYTES: usize = 4 + 8;

pub(super) fn write_device(out: &mut Writer<'_>, device: &Device) {
    out.bytes(device.name.as_bytes());
    out.u8(match device.os {
        Os::Linux => 0,
        Os::Android => 1,
        Os::Macos => 2,
        Os::Windows => 3,
    });
    write_processor(out, &device.cpu);
    out.u8(u8::from(device.gpu.is_some()));
    if let Some(gpu) = &device.gpu {
        out.u8(match gpu.kind {
            GpuKind::Cuda => 0,
            GpuKind::Metal => 1,
            GpuKind::Shared => 2,
        });
        write_processor(out, &gpu.processor);
        [gpu.memory_bytes, gpu.buffer_bytes, gpu.copy_s].into_iter().for_each(|value| out.f64(value));
        write_some(out, gpu.load_bytes_per_s);
        out.u8(u8::from(gpu.loads_beside));
    }
    write_some(out, device.weight_bytes_max);
    let rest = [device.memory_bytes, device.swap_bytes, device.buffer_bytes, device.stream_bytes];
    let disk = [device.disk.sequential_bytes_per_s, device.disk.random_bytes_per_s];
    rest.into_iter().chain(disk).for_each(|value| out.f64(value));
}

pub(super) fn read_device(from: &mut Reader<'_>) -> Result<Device, FrameError> {
    let name = from.text("name of a device", NAME_BYTES_MAX)?;
    let os = match from.u8("operating system")? {
        0 => Os::Linux,
        1 => Os::Android,
        2 => Os::Macos,
        3 => Os::Windows,
        value => return Err(FrameError::Value { what: "operating system", value: u64::from(value), max: 3 }),
    };
    let cpu = read_processor(from)?;
    let gpu = if from.flag("gpu")? { Some(read_gpu(from)?) } else { None };
    let weight_bytes_max = read_some(from, "limit of weights")?;
    Ok(Device {
        name,
        os,
        cpu,
        gpu,
        memory_bytes: from.f64("memory")?,
        swap_bytes: from.f64("swap")?,
        buffer_bytes: from.f64("buffers")?,
        stream_bytes: from.f64("reading buffers")?,
        weight_bytes_max,
        disk: Disk {
            sequential_bytes_per_s: from.f64("disk in order")?,
            random_bytes_per_s: from.f64("disk at random")?,
        },
    })
}

fn read_gpu(from: &mut Reader<'_>) -> Result<Gpu, FrameError> {
    let kind = match from.u8("kind of gpu")? {
        0 => GpuKind::Cuda,
        1 => GpuKind::Metal,
        2 => GpuKind::Shared,
        value => return Err(FrameError::Value { what: "kind of gpu", value: u64::from(value), max: 2 }),
    };
    Ok(Gpu {
        kind,
        processor: read_processor(from)?,
        memory_bytes: from.f64("gpu memory")?,
        buffer_bytes: from.f64("gpu buffers")?,
        copy_s: from.f64("gpu copy")?,
        load_bytes_per_s: read_some(from, "rate of loads")?,
        loads_beside: from.flag("loads beside computing")?,
    })
}

fn write_some(out: &mut Writer<'_>, value: Option<f64>) {
    out.u8(u8::from(value.is_some()));
    value.into_iter().for_each(|value| out.f64(value));
}

fn read_some(from: &mut Reader<'_>, what: &'static str) -> Result<Option<f64>, FrameError> {
    from.flag(what)?.then(|| from.f64(what)).transpose()
}

fn write_processor(out: &mut Writer<'_>, processor: &Processor) {
    out.count(processor.flops.len());
    for (format, rate) in &processor.flops {
        out.bytes(format.as_bytes());
        out.f64(*rate);
    }
    out.f64(processor.read_bytes_per_s);
    out.f64(processor.kv_copy_s);
}

fn read_processor(from: &mut Reader<'_>) -> Result<Processor, FrameError> {
    let count = from.count("rates", RATE_BYTES)?;
    let mut flops = ByFormat::new();
    for _ in 0..count {
        let format = from.text("format", NAME_BYTES_MAX)?;
        // In the order in which they are written, each only once.
        if flops.last_key_value().is_some_and(|(last, _)| *last >= format) {
            return Err(FrameError::Mismatch { what: "rates and formats" });
        }
        flops.insert(format, from.f64("rate")?);
    }
    Ok(Processor { flops, read_bytes_per_s: from.f64("memory rate")?, kv_copy_s: from.f64("kv copy")? })
}
