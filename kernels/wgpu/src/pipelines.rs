//! Compiled kernels, each made when it is used for the first time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use baton_kernels_gpu::{GpuError, Kernel};

use crate::fault::{Fault, lock};
use crate::memory::{Block, Memory};
use crate::now::now;
use crate::shaders::{Fused, Shader, shader};

/// A kernel that is ready to run.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// For each buffer, whether the kernel writes it.
    pub(crate) writes: Vec<bool>,
    /// The table of a weight format, bound after the buffers.
    pub(crate) table: Option<Block>,
    /// The numbers of a launch.
    pub(crate) params: usize,
}

/// The kernels that were used so far.
#[derive(Debug)]
pub(crate) struct Pipelines {
    fused: Fused,
    made: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
}

impl Pipelines {
    pub(crate) fn new(fused: Fused) -> Self {
        Self { fused, made: Mutex::default() }
    }

    /// Returns a kernel; `None` after a fault, which may be that it does not compile.
    pub(crate) fn get(
        &self,
        (device, queue): (&wgpu::Device, &wgpu::Queue),
        memory: &Memory,
        fault: &Fault,
        kernel: Kernel,
    ) -> Option<Arc<Pipeline>> {
        let mut made = lock(&self.made);
        if let Some(pipeline) = made.get(&kernel) {
            return Some(Arc::clone(pipeline));
        }
        let shader = shader(kernel, self.fused);
        let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal]
            .map(|filter| device.push_error_scope(filter));
        let (pipeline, layout) = compile(device, &kernel.name(), &shader);
        // Scopes end in the opposite order.
        for scope in scopes.into_iter().rev() {
            if let Some(err) = now(scope.pop()).flatten() {
                fault.keep(GpuError::Kernel { kernel: kernel.name(), reason: err.to_string() });
            }
        }
        if fault.is_set() {
            return None;
        }
        let table = if shader.table.is_empty() {
            None
        } else {
            let bytes: Vec<u8> = shader.table.iter().flat_map(|word| word.to_le_bytes()).collect();
            // New memory: nothing that is recorded uses it, so it can be written at once.
            let block = memory.new_block(bytes.len() as u64)?;
            queue.write_buffer(&block.buffer, 0, &bytes);
            Some(block)
        };
        let pipeline =
            Arc::new(Pipeline { pipeline, layout, writes: shader.writes, table, params: shader.params });
        made.insert(kernel, Arc::clone(&pipeline));
        Some(pipeline)
    }
}

/// Compiles a shader. Errors go to the device's error scopes.
pub(crate) fn compile(
    device: &wgpu::Device,
    name: &str,
    shader: &Shader,
) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
    let source = wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(shader.wgsl.as_str().into()),
    };
    // SAFETY: the source is this crate's own. Its loops end, and it divides by no zero. It checks or clamps
    // all indices by the numbers of the launch, so it stays within the buffers that the table describes.
    let module =
        unsafe { device.create_shader_module_trusted(source, wgpu::ShaderRuntimeChecks::unchecked()) };
    let table = if shader.table.is_empty() { None } else { Some(false) };
    let entries: Vec<_> = shader
        .writes
        .iter()
        .copied()
        .chain(table)
        .enumerate()
        .map(|(i, writes)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: !writes },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    let layout = device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(name),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 4 * (shader.params as u32 + 1),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    (pipeline, layout)
}
