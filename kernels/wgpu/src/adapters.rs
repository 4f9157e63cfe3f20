//! Which devices there are, and how one is opened.

use std::sync::Arc;

use baton_kernels_gpu::{Facts, Interface};

use crate::device::WgpuDevice;
use crate::now::now;

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface is not one of this crate.
    #[error("`{0}` is not an interface of this kernel set; choose vulkan, metal or dx12")]
    Interface(Interface),
    /// There is no such device.
    #[error(
        "there is no {interface} device {index} (found {found}); install the GPU's driver, or choose another device"
    )]
    NotFound {
        /// The interface.
        interface: Interface,
        /// The number that was asked for.
        index: usize,
        /// How many devices the interface has.
        found: usize,
    },
    /// The device cannot run the kernels.
    #[error("{name} has {have} {what}, the kernels need {need}; update its driver, or choose another device")]
    Limit {
        /// The device.
        name: String,
        /// What there is too little of.
        what: &'static str,
        /// How much there is.
        have: u64,
        /// How much is needed.
        need: u64,
    },
    /// The driver refused.
    #[error(
        "the driver of {name} does not open it ({reason}); update it, or close programs that use the GPU"
    )]
    Driver {
        /// The device.
        name: String,
        /// What the driver says.
        reason: String,
    },
}

/// The most bytes in use of a device that does not say how much memory it has, if the user sets no limit:
/// what any GPU of today has.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// Bytes of the numbers of a launch, for any kernel.
const IMMEDIATE_BYTES: u32 = 64;

/// The largest buffer that kernels reach with 32-bit byte offsets.
const BINDING_MAX: u64 = u32::MAX as u64 - 0xffff;

fn backends(interface: Interface) -> Option<wgpu::Backends> {
    match interface {
        Interface::Vulkan => Some(wgpu::Backends::VULKAN),
        Interface::Metal => Some(wgpu::Backends::METAL),
        Interface::Dx12 => Some(wgpu::Backends::DX12),
        _ => None,
    }
}

/// Returns the adapters of an interface that this program was built with; none if its loader or driver is
/// missing.
fn adapters(interface: Interface) -> Vec<wgpu::Adapter> {
    let Some(backends) = backends(interface) else { return Vec::new() };
    let backends = backends & wgpu::Instance::enabled_backend_features();
    if backends.is_empty() {
        return Vec::new();
    }
    let mut settings = wgpu::InstanceDescriptor::new_without_display_handle();
    settings.backends = backends;
    settings.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(settings);
    now(instance.enumerate_adapters(backends)).unwrap_or_default()
}

fn facts(interface: Interface, index: usize, adapter: &wgpu::Adapter) -> Facts {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let is_software = info.device_type == wgpu::DeviceType::Cpu;
    Facts {
        name: info.name,
        interface,
        index,
        is_software,
        shares_memory: is_software || info.device_type == wgpu::DeviceType::IntegratedGpu,
        memory_bytes: memory_bytes(interface, adapter),
        binding_bytes: (limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(BINDING_MAX))
            .saturating_sub(crate::memory::ALIGN)
            / crate::memory::ALIGN
            * crate::memory::ALIGN,
    }
}

/// Returns the bytes of the largest heap that is the device's own, if the interface says.
#[cfg(not(target_vendor = "apple"))]
fn memory_bytes(interface: Interface, adapter: &wgpu::Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    if interface != Interface::Vulkan {
        return None;
    }
    // SAFETY: the handle is only asked for a property, and lives no longer than the adapter.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    let device = vulkan.raw_physical_device();
    // SAFETY: the device is one of the instance, which the adapter keeps alive.
    let memory = unsafe { instance.get_physical_device_memory_properties(device) };
    let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
    heaps.iter().filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

/// As above; Metal is not asked.
#[cfg(target_vendor = "apple")]
fn memory_bytes(_interface: Interface, _adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Returns the devices of every interface, programs that stand for one included; none if there is no driver.
pub fn devices() -> Vec<Facts> {
    let of_interface = |interface| {
        let adapters = adapters(interface).into_iter().enumerate();
        adapters.map(move |(index, adapter)| facts(interface, index, &adapter))
    };
    Interface::ALL.into_iter().flat_map(of_interface).collect()
}

/// Returns the limits to ask for: what the kernels need, and as much memory as the device has.
fn limits(name: &str, have: &wgpu::Limits) -> Result<wgpu::Limits, OpenError> {
    let needs: [(&'static str, u64, u64); 5] = [
        ("storage buffers of a kernel", have.max_storage_buffers_per_shader_stage.into(), 8),
        ("threads of a workgroup", have.max_compute_invocations_per_workgroup.into(), 256),
        ("bytes of workgroup memory", have.max_compute_workgroup_storage_size.into(), 16_384),
        ("workgroups of a dimension", have.max_compute_workgroups_per_dimension.into(), 65_535),
        ("bytes of immediate numbers", have.max_immediate_size.into(), IMMEDIATE_BYTES.into()),
    ];
    for (what, have, need) in needs {
        if have < need {
            return Err(OpenError::Limit { name: name.to_owned(), what, have, need });
        }
    }
    Ok(wgpu::Limits {
        max_storage_buffer_binding_size: have.max_storage_buffer_binding_size,
        max_buffer_size: have.max_buffer_size,
        max_compute_workgroup_storage_size: have.max_compute_workgroup_storage_size,
        max_storage_buffers_per_shader_stage: 8,
        max_immediate_size: IMMEDIATE_BYTES,
        ..wgpu::Limits::downlevel_defaults()
    })
}

/// Returns the most bytes that may be in use: the user's limit. Without one the driver decides, but a device
/// that does not say how much memory it has gets a limit.
fn budget_of(limit: Option<u64>, memory_bytes: Option<u64>) -> Option<u64> {
    limit.or(if memory_bytes.is_none() { Some(UNKNOWN_BYTES) } else { None })
}

/// Returns the bytes that are free, with `used` in use.
pub(crate) fn free_of(budget: Option<u64>, memory_bytes: Option<u64>, used: u64) -> Option<u64> {
    let most = [budget, memory_bytes].into_iter().flatten().min()?;
    Some(most.saturating_sub(used))
}

/// Opens device `index` of an interface, numbered as [`devices`] does. `limit` is the most bytes of its
/// memory that may be in use. `None` sets no limit, or 2 GiB if the interface does not say how much there is.
///
/// # Errors
/// [`OpenError`], if there is no such device, or it or its driver cannot run the kernels.
pub fn open(interface: Interface, index: usize, limit: Option<u64>) -> Result<Arc<WgpuDevice>, OpenError> {
    if backends(interface).is_none() {
        return Err(OpenError::Interface(interface));
    }
    let mut all = adapters(interface);
    if index >= all.len() {
        return Err(OpenError::NotFound { interface, index, found: all.len() });
    }
    let adapter = all.swap_remove(index);
    let facts = facts(interface, index, &adapter);
    let limits = limits(&facts.name, &adapter.limits())?;
    // Only to do what `fma` does, if a program that stands for a GPU does not.
    let exact = if facts.is_software { wgpu::Features::SHADER_F64 } else { wgpu::Features::empty() };
    let features = wgpu::Features::IMMEDIATES | (adapter.features() & exact);
    let request = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("baton"),
        required_features: features,
        required_limits: limits,
        ..Default::default()
    });
    let refused = |reason: String| OpenError::Driver { name: facts.name.clone(), reason };
    let (device, queue) = now(request)
        .ok_or_else(|| refused("it did not answer".to_owned()))?
        .map_err(|err| refused(err.to_string()))?;
    let budget = budget_of(limit, facts.memory_bytes);
    Ok(Arc::new(WgpuDevice::new(device, queue, facts, budget)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_cause_and_fix() {
        let text = open(Interface::Cuda, 0, None).unwrap_err().to_string();
        assert!(text.contains("cuda") && text.contains("vulkan"), "{text}");
        let text = open(Interface::Vulkan, 1_000, None).unwrap_err().to_string();
        assert!(text.contains("no vulkan device 1000") && text.contains("driver"), "{text}");
        let have = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..Default::default() };
        let text = limits("Toy", &have).unwrap_err().to_string();
        assert_eq!(
            text,
            "Toy has 4 storage buffers of a kernel, the kernels need 8; update its driver, or choose another device"
        );
    }

    #[test]
    fn no_more_is_used_than_the_limit_and_the_device_s_memory() {
        let gib = 1u64 << 30;
        for (limit, memory, want) in [
            (Some(gib), Some(8 * gib), gib),
            (Some(80 * gib), Some(8 * gib), 8 * gib),
            (None, Some(8 * gib), 8 * gib),
            (Some(6 * gib), None, 6 * gib),
            (None, None, 2 * gib),
        ] {
            let free = |used| free_of(budget_of(limit, memory), memory, used);
            assert_eq!([0, 5, want + 1].map(free), [want, want - 5, 0].map(Some), "{limit:?} of {memory:?}");
        }
        assert_eq!(budget_of(None, Some(gib)), None, "the driver decides");
    }

    #[test]
    fn devices_are_numbered_by_interface() {
        let all = devices();
        for interface in Interface::ALL {
            let of_interface = all.iter().filter(|facts| facts.interface == interface);
            assert!(of_interface.enumerate().all(|(i, facts)| facts.index == i));
        }
    }
}
