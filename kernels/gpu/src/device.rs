//! A GPU as the engine sees it: memory, launches in order, and the first fault.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::kernel::Kernel;

/// Why a GPU cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The device, or the budget that the user set for it, has no room.
    #[error(
        "out of GPU memory: {wanted} bytes more than the {used} in use ({}); put fewer layers on the GPU",
        match budget { Some(budget) => format!("the limit is {budget}"), None => "the device has no more".to_owned() }
    )]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes in use.
        used: u64,
        /// The user's limit, if that was the cause.
        budget: Option<u64>,
    },
    /// The device is gone: it was unplugged or reset, or its driver failed.
    #[error("the GPU was lost: {0}")]
    Lost(String),
    /// A kernel could not be compiled or started.
    #[error("the GPU cannot run {kernel}: {reason}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// What the driver or the compiler says.
        reason: String,
    },
    /// A buffer is larger than one binding of this device may be.
    #[error("{what} needs {bytes} bytes in one piece; this GPU binds at most {max}")]
    TooLarge {
        /// What it is for.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The device's limit.
        max: u64,
    },
}

impl GpuError {
    /// Whether there was no room for something, and the device itself is whole.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::TooLarge { .. })
    }
}

/// Bytes of a device's memory that a plan leaves to its driver and to the code of kernels.
pub const HEADROOM_BYTES: u64 = 256 << 20;

/// How a device is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Interface {
    /// NVIDIA's driver.
    Cuda,
    /// Vulkan.
    Vulkan,
    /// Apple's Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

impl Interface {
    /// Every interface.
    pub const ALL: [Self; 4] = [Self::Cuda, Self::Vulkan, Self::Metal, Self::Dx12];

    /// Returns its name, as options write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The name that its driver gives it.
    pub name: String,
    /// How it is reached.
    pub interface: Interface,
    /// Its number among the devices of that interface.
    pub index: usize,
    /// Whether it is a program that runs on the CPU.
    pub is_software: bool,
    /// Whether it uses the computer's own memory.
    pub shares_memory: bool,
    /// Bytes of its memory; `None` if the interface does not say.
    pub memory_bytes: Option<u64>,
    /// The most bytes of one buffer that a kernel can use.
    pub binding_bytes: u64,
}

/// How many output elements a workgroup of a kernel computes. A set chooses them; no result depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Weight rows of a workgroup of [`Kernel::MatVec`] and [`Kernel::MatVecFloat`].
    pub matvec_rows: u32,
    /// Weight rows of a workgroup of [`Kernel::MatMul`] and [`Kernel::MatMulFloat`].
    pub matmul_rows: u32,
    /// Tokens of a workgroup of [`Kernel::MatMul`] and [`Kernel::MatMulFloat`].
    pub matmul_tokens: u32,
    /// Numbers of a workgroup of the kernels that take numbers one by one.
    pub numbers: u32,
}

/// Where parts of a buffer may begin: at multiples of this. A kernel of any set can use such a part.
pub const PART_ALIGNMENT: u64 = 256;

/// Memory of a device. Copies of the handle and parts are the same memory, which is given back with the last
/// one.
#[derive(Clone)]
pub struct Buffer {
    raw: Arc<dyn Any + Send + Sync>,
    at: u64,
    bytes: u64,
}

impl Buffer {
    /// Wraps a set's own handle.
    pub fn new(raw: Arc<dyn Any + Send + Sync>, bytes: u64) -> Self {
        Self { raw, at: 0, bytes }
    }

    /// Returns a part of it, as a buffer. A launch that writes one part has no other part in its list.
    ///
    /// # Panics
    /// If it does not begin at a multiple of [`PART_ALIGNMENT`], or has other bytes than these.
    #[must_use]
    pub fn part(&self, at: u64, bytes: u64) -> Self {
        let fits = at.is_multiple_of(PART_ALIGNMENT) && at + bytes <= self.bytes;
        assert!(fits, "{bytes} bytes at {at} of a buffer of {}", self.bytes);
        Self { raw: Arc::clone(&self.raw), at: self.at + at, bytes }
    }

    /// Returns where it begins in the set's own handle; 0 unless it is a part.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the set's own handle; `None` if it is another type, such as that of a buffer which could not
    /// be allocated.
    pub fn raw<T: 'static>(&self) -> Option<&T> {
        self.raw.downcast_ref()
    }

    /// Returns its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("at", &self.at).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// One run of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: Kernel,
    /// Workgroups in x, y and z; at most 65,535 each.
    pub groups: [u32; 3],
    /// The kernel's numbers, in the order that it documents; floats as their bits.
    pub params: &'a [u32],
    /// The kernel's buffers, in the order that it documents. A buffer that a kernel writes is in the list
    /// once.
    pub buffers: &'a [&'a Buffer],
}

/// A point in the order of a device's commands, or of its loads.
#[derive(Clone)]
pub struct Mark(Option<Arc<dyn Any + Send + Sync>>);

impl Mark {
    /// Returns a point that everything called later is behind, as on a device that does one thing after the
    /// other.
    pub fn passed() -> Self {
        Self(None)
    }

    /// Wraps a set's own handle.
    pub fn new(raw: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Some(raw))
    }

    /// Returns the set's own handle; `None` for [`Self::passed`] or another type.
    pub fn raw<T: 'static>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").finish_non_exhaustive()
    }
}

/// A GPU, or a program that stands for one.
///
/// Loads are copies to the device beside the commands. A load begins after the mark that it is given, and
/// commands see it only after they were told to [wait](Self::wait) for the mark that it returned. Saves are
/// copies to the host beside the commands. A device without a copy engine of its own loads as it writes, and
/// saves as it reads: in the order of the calls.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns what is known of it.
    fn facts(&self) -> &Facts;

    /// Returns the tile sizes of its kernels.
    fn tiles(&self) -> Tiles;

    /// Whether it has the kernels that join others ([`Kernel::joined`]).
    fn joins(&self) -> bool {
        false
    }

    /// Returns memory whose contents are undefined. If there is none, the fault is kept, and the result can
    /// be given to every other call, which then does nothing.
    fn alloc(&self, bytes: u64) -> Buffer;

    /// Returns memory with these bytes. Meant for the small tables of a launch: cheaper than
    /// [`Self::alloc`] and [`Self::write`].
    fn upload(&self, bytes: &[u8]) -> Buffer;

    /// Copies from the host; `at` and the number of bytes are multiples of four.
    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]);

    /// Sets every byte to zero.
    fn clear(&self, buffer: &Buffer);

    /// Copies between two different buffers; all numbers are multiples of four.
    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64);

    /// Runs a kernel after everything that was called before.
    fn launch(&self, launch: &Launch<'_>);

    /// Waits for everything that was called before, and copies to the host; `at` and the length of `out` are
    /// multiples of four.
    ///
    /// # Errors
    /// The device's fault.
    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError>;

    /// Returns the point after every command that was called before.
    fn mark(&self) -> Mark {
        Mark::passed()
    }

    /// Copies from the host beside the commands, after `after`. Any thread may call it. When it returns,
    /// `bytes` may be used again. The copy may still be under way until the mark that it returns. `at` and
    /// the number of bytes are multiples of four.
    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        let _ = after;
        self.write(to, at, bytes);
        Mark::passed()
    }

    /// Copies to the host beside the commands, after `after`, and returns when the bytes are there. Any
    /// thread may call it. `at` and the length of `out` are multiples of four.
    ///
    /// # Errors
    /// The device's fault.
    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        let _ = after;
        self.read(from, at, out)
    }

    /// Whether loads and saves run while commands do. If not, they take turns with them.
    fn loads_beside_commands(&self) -> bool {
        false
    }

    /// Lets all commands that are called from now on wait for a mark.
    fn wait(&self, mark: &Mark) {
        let _ = mark;
    }

    /// Returns the first fault, if there was one.
    fn fault(&self) -> Option<GpuError>;

    /// Forgets a fault that leaves the device whole ([`GpuError::is_full`]). Memory from before holds
    /// anything from then on, and reads of it fail. Returns whether the device has no fault now.
    fn recover(&self) -> bool {
        self.fault().is_none()
    }

    /// Returns how often [`Self::recover`] has forgotten a fault. Whoever shares the device sees by it that
    /// memory of his was given up.
    fn generation(&self) -> u64 {
        0
    }

    /// Returns the bytes in use by this program.
    fn used_bytes(&self) -> u64;

    /// Returns the bytes that this program could still allocate, within its budget; `None` if neither the
    /// interface nor the user says.
    fn free_bytes(&self) -> Option<u64>;

    /// Returns the bytes that a buffer may take beyond its own, because sizes are rounded up.
    fn rounding_bytes(&self, bytes: u64) -> u64 {
        (bytes / 8).min(1 << 20)
    }

    /// Returns the bytes of its memory that a plan leaves to its driver and to the code of kernels.
    fn headroom_bytes(&self) -> u64 {
        HEADROOM_BYTES
    }
}
