//! Finds out whether a device rounds `fma` once.

use std::sync::mpsc;

use crate::bindings::{View, entries};
use crate::now::now;
use crate::pipelines::compile;
use crate::record::Target;
use crate::shaders::{Fused, probe};

/// Returns how kernels round `a * b + c` once on a device. A device that cannot is left as it is: its results
/// differ in the last bits.
pub(crate) fn fused(target: Target<'_>) -> Fused {
    if !target.device.features().contains(wgpu::Features::SHADER_F64) || is_fused(target) != Some(false) {
        return Fused::Native;
    }
    Fused::ByF64
}

/// Runs the probe; `None` if it fails. Errors are left to the first kernel that meets them.
fn is_fused(target: Target<'_>) -> Option<bool> {
    let device = target.device;
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let (pipeline, layout) = compile(device, "probe", &probe());
    let buffer = |usage| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4,
            usage,
            mapped_at_creation: false,
        })
    };
    let out = buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let staging = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let view = View { id: 0, buffer: &out, at: 0, bytes: 4, page: None };
    let entries = entries(&[view]);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &layout,
        entries: &entries,
    });
    let a = 1.0 + 1.0 / 4_096.0f32;
    let numbers = [a.to_bits(), (a * a).to_bits(), 0].map(u32::to_le_bytes);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None });
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.set_immediates(0, numbers.as_flattened());
    pass.dispatch_workgroups(1, 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&out, 0, &staging, 0, Some(4));
    let index = target.queue.submit([encoder.finish()]);
    let (sender, receiver) = mpsc::channel();
    // The receiver is gone only if the wait has failed.
    staging.map_async(wgpu::MapMode::Read, .., move |result| drop(sender.send(result)));
    target.wait(index);
    let failed = now(scope.pop()).flatten().is_some();
    let mapped = receiver.try_recv().ok()?.ok().and_then(|()| staging.get_mapped_range(..).ok())?;
    let is_fused = mapped.first() == Some(&1);
    (!failed).then_some(is_fused)
}
