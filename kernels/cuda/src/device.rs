//! A CUDA device: memory, launches in one stream, loads and saves in two others, and the first fault.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use baton_kernels_gpu::{
    Buffer, Device, Facts, FirstFault, GpuError, Interface, Kernel, Launch, Mark, Tiles,
};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream};
use cudarc::nvrtc::Ptx;

use crate::cache::{Cache, Key};
use crate::compile::{Compiler, Target};
use crate::error::{OpenError, is_out_of_memory, lost, reason};
use crate::limits::Limits;
use crate::loads::Loads;
use crate::pool::{Pool, size_of};
use crate::saves::Saves;
use crate::source::{self, Copied};
use crate::staging::Staging;

/// The oldest driver's CUDA that has every function called here.
const OLDEST_DRIVER: (u32, u32) = (11, 8);

/// The oldest driver's CUDA, and the oldest device, on which a kernel may take its place before the one
/// before it has ended (`follow` in the kernels' text).
const OVERLAPS: ((u32, u32), (u32, u32)) = ((12, 0), (9, 0));

/// Locks, also after a panic of another thread: each change of the accounts is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the driver's library is there. Every other call of the driver would panic without it.
fn has_driver() -> bool {
    // SAFETY: opening the library runs only its own initialization.
    unsafe { sys::is_culib_present() }
}

/// Returns an attribute of a device.
fn attribute(device: sys::CUdevice, which: CUdevice_attribute) -> Result<u32, DriverError> {
    // SAFETY: the device comes from the driver.
    let value = unsafe { result::device::get_attribute(device, which) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Returns what is known of a device; starts nothing on it.
fn facts(index: usize) -> Result<Facts, DriverError> {
    let device = result::device::get(i32::try_from(index).unwrap_or(i32::MAX))?;
    // SAFETY: the device comes from the driver.
    let memory_bytes = unsafe { result::device::total_mem(device) }? as u64;
    let integrated = attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)?;
    Ok(Facts {
        name: result::device::get_name(device)?,
        interface: Interface::Cuda,
        index,
        is_software: false,
        shares_memory: integrated != 0,
        memory_bytes: Some(memory_bytes),
        binding_bytes: memory_bytes,
    })
}

/// Returns the number of devices.
fn count() -> Result<usize, DriverError> {
    Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
}

/// Returns what is known of every device that NVIDIA's driver shows, in its order; nothing if there is no
/// driver or it does not start.
pub fn devices() -> Vec<Facts> {
    if !has_driver() {
        return Vec::new();
    }
    (0..count().unwrap_or(0)).filter_map(|index| facts(index).ok()).collect()
}

/// Returns the driver's version of CUDA.
fn driver_version() -> Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: the number outlives the call.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    answer.result()?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// Opens a device. Its buffers take at most `budget` bytes; without a budget, what the device has.
///
/// # Errors
/// [`OpenError`] names the cause and what to do.
pub fn open(index: usize, budget: Option<u64>) -> Result<CudaDevice, OpenError> {
    if !has_driver() {
        return Err(OpenError::NoDriver);
    }
    let refused = |error| OpenError::Driver(reason(error));
    let driver = driver_version().map_err(refused)?;
    if driver < OLDEST_DRIVER {
        return Err(OpenError::DriverTooOld { needs: "this program", have: driver, want: OLDEST_DRIVER });
    }
    let count = count().map_err(refused)?;
    if index >= count {
        return Err(OpenError::NoDevice { index, count });
    }
    let compiler = Compiler::open()?;
    let version = compiler.version();
    if driver.0 < version.0 {
        return Err(OpenError::DriverTooOld { needs: "NVRTC", have: driver, want: (version.0, 0) });
    }
    let facts = facts(index).map_err(refused)?;
    let context = CudaContext::new(index).map_err(refused)?;
    let (major, minor) = context.compute_capability().map_err(refused)?;
    let capability = (major.unsigned_abs(), minor.unsigned_abs());
    let target = compiler.target(&facts.name, capability)?;
    let overlaps = driver >= OVERLAPS.0 && capability >= OVERLAPS.1;
    let stream = context.new_stream().map_err(refused)?;
    let load_stream = context.new_stream().map_err(refused)?;
    let staging = Mutex::new(Staging::new(&stream).map_err(refused)?);
    let loads = Loads::new(load_stream.clone());
    let saves = Saves::new(context.new_stream().map_err(refused)?);
    let pool = Mutex::new(Pool::new(budget));
    let memory = Arc::new(Accounts { stream: stream.clone(), load_stream, pool });
    let limits = Limits::of(&context, capability).map_err(refused)?;
    let kernels = Kernels { compiler, target, limits, cache: Cache::of_user(), loaded: RwLock::default() };
    let fault = FirstFault::default();
    Ok(CudaDevice { facts, staging, loads, saves, memory, stream, kernels, overlaps, fault })
}

/// The memory of a device.
struct Accounts {
    stream: Arc<CudaStream>,
    load_stream: Arc<CudaStream>,
    pool: Mutex<Pool>,
}

impl Accounts {
    /// Gives kept memory to the device.
    fn release(&self, pool: &mut Pool) -> Result<(), DriverError> {
        self.stream.synchronize()?;
        self.load_stream.synchronize()?;
        for address in pool.drain() {
            // SAFETY: the address comes from `malloc_sync`, no buffer has it, and both streams have come to
            // their end.
            unsafe { result::free_sync(address) }?;
        }
        Ok(())
    }

    /// Allocates memory that nobody has kept.
    fn allocate(&self, pool: &mut Pool, size: u64) -> Result<u64, GpuError> {
        let full =
            |pool: &Pool, budget| GpuError::OutOfMemory { wanted: size, used: pool.used_bytes(), budget };
        if !pool.has_room(size) {
            self.release(pool).map_err(|error| lost("release memory", error))?;
            if !pool.has_room(size) {
                return Err(full(pool, pool.budget()));
            }
        }
        let bytes = usize::try_from(size).map_err(|_| full(pool, None))?;
        self.stream.context().bind_to_thread().map_err(|error| lost("use the device", error))?;
        // SAFETY: buffers hold any bytes, and their contents are undefined at first.
        let mut answer = unsafe { result::malloc_sync(bytes) };
        if answer.is_err_and(is_out_of_memory) {
            self.release(pool).map_err(|error| lost("release memory", error))?;
            // SAFETY: as above.
            answer = unsafe { result::malloc_sync(bytes) };
        }
        match answer {
            Ok(address) => {
                pool.add(size);
                Ok(address)
            }
            Err(error) if is_out_of_memory(error) => Err(full(pool, None)),
            Err(error) => Err(lost("allocate memory", error)),
        }
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        let mut pool = lock(&self.pool);
        let mut rest = std::mem::replace(&mut *pool, Pool::new(None));
        // If the device is lost, its memory is gone too.
        let _ = self.release(&mut rest);
    }
}

/// The memory of a buffer.
struct Memory {
    address: u64,
    size: u64,
    accounts: Arc<Accounts>,
    /// That of the device's fault when it was allocated.
    generation: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        lock(&self.accounts.pool).give_back(self.address, self.size);
    }
}

/// What stands for the memory of a buffer that could not be allocated.
struct Nothing;

/// The kernels of a device, compiled at their first use.
struct Kernels {
    compiler: Compiler,
    target: Target,
    limits: Limits,
    cache: Cache,
    loaded: RwLock<HashMap<Kernel, CudaFunction>>,
}

impl Kernels {
    fn get(&self, context: &Arc<CudaContext>, kernel: Kernel) -> Result<CudaFunction, GpuError> {
        if let Some(function) = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(&kernel) {
            return Ok(function.clone());
        }
        let failed = |reason| GpuError::Kernel { kernel: kernel.name(), reason };
        let function = self.load(context, kernel).map_err(failed)?;
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).insert(kernel, function.clone());
        Ok(function)
    }

    /// Loads a kernel from the cache, or else compiles it.
    fn load(&self, context: &Arc<CudaContext>, kernel: Kernel) -> Result<CudaFunction, String> {
        let (text, options) = (source::text(&[kernel]), self.target.options());
        let key = Key { text: &text, options: &options, compiler: self.compiler.version() };
        let place = |image: Vec<u8>| {
            let module = context.load_module(Ptx::from_binary(image)).map_err(reason)?;
            let function = module.load_function(&source::entry(kernel)).map_err(reason)?;
            if matches!(kernel, Kernel::MatVec { tokens: 1, .. }) && self.limits.dynamic_bytes() > 0 {
                let most = self.limits.dynamic_bytes().cast_signed();
                let what = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                function.set_attribute(what, most).map_err(reason)?;
            }
            Ok::<_, String>(function)
        };
        if let Some(Ok(function)) = self.cache.get(&key).map(place) {
            return Ok(function);
        }
        let image = self.compiler.compile(&text, &options, self.target)?;
        self.cache.put(&key, &image);
        place(image)
    }
}

/// A device of NVIDIA's driver.
pub struct CudaDevice {
    facts: Facts,
    // Dropped before the memory: each waits for its stream.
    staging: Mutex<Staging>,
    loads: Loads,
    saves: Saves,
    memory: Arc<Accounts>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    overlaps: bool,
    fault: FirstFault,
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("facts", &self.facts)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

impl CudaDevice {
    fn fail(&self, fault: GpuError) {
        self.fault.keep(fault);
    }

    /// Keeps the fault of a command, if it has one.
    fn note(&self, what: &str, answer: Result<(), DriverError>) {
        if let Err(error) = answer {
            self.fail(lost(what, error));
        }
    }

    /// Returns the mark of an event, or keeps the fault.
    fn mark_of(&self, what: &str, answer: Result<CudaEvent, DriverError>) -> Mark {
        match answer {
            Ok(event) => Mark::new(Arc::new(event)),
            Err(error) => {
                self.fail(lost(what, error));
                Mark::passed()
            }
        }
    }

    /// Returns a buffer's address, unless the device or the buffer is without use.
    ///
    /// # Panics
    /// If the buffer has fewer than `end` bytes.
    fn place(&self, buffer: &Buffer, end: u64) -> Option<u64> {
        assert!(end <= buffer.bytes(), "{end} bytes of a buffer of {}", buffer.bytes());
        let memory = buffer.raw::<Memory>()?;
        self.fault.check(memory.generation).is_ok().then_some(memory.address + buffer.at())
    }

    /// Checks that what was read of a buffer is what it holds.
    fn checked(&self, buffer: &Buffer) -> Result<(), GpuError> {
        self.fault.check(buffer.raw::<Memory>().map_or(u64::MAX, |memory| memory.generation))
    }

    /// Chooses the variant that copies weights to shared memory, if there is room. Returns the workgroups and
    /// the bytes of dynamic shared memory.
    fn copied(&self, launch: &Launch<'_>, arguments: &mut source::Arguments) -> ([u32; 3], u32) {
        let [x, y, z] = source::groups(launch.kernel, launch.groups);
        let needs = Copied::of(launch.kernel, launch.params);
        match needs.map(|needs| (needs, self.kernels.limits.groups(needs.bytes))) {
            Some((needs, groups)) if groups > 0 => {
                needs.choose(arguments);
                ([(x * y).min(groups), 1, z], needs.bytes)
            }
            _ => ([x, y, z], 0),
        }
    }

    fn start(&self, launch: &Launch<'_>) -> Result<(), GpuError> {
        let mut places = Vec::with_capacity(launch.buffers.len());
        for buffer in launch.buffers {
            let Some(place) = self.place(buffer, 0) else { return Ok(()) };
            places.push(place);
        }
        let function = self.kernels.get(self.stream.context(), source::function(launch.kernel))?;
        self.stream.context().bind_to_thread().map_err(|error| lost("use the device", error))?;
        let mut of = source::arguments(launch.kernel, places.len(), launch.params);
        let places: Vec<u64> = of.buffers.iter().map(|at| at.map_or(0, |at| places[at])).collect();
        let places = places.iter().map(|place| std::ptr::from_ref(place).cast_mut().cast::<c_void>());
        let numbers = of.params.iter().map(|number| std::ptr::from_ref(number).cast_mut().cast());
        let mut arguments: Vec<*mut c_void> = places.chain(numbers).collect();
        let ([x, y, z], bytes) = self.copied(launch, &mut of);
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: source::threads(launch.kernel),
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: bytes,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.overlaps),
        };
        // SAFETY: the kernel takes these buffers and numbers in this order, and stays within them: the tests
        // run every kernel on an emulated device that checks both. The buffers' memory is used again only by
        // what comes later in the stream; every kernel waits for those before it. The lists outlive the call.
        let answer = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.cu_function(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        answer.result().map_err(|error| {
            let reason = reason(error);
            GpuError::Kernel { kernel: launch.kernel.name(), reason: format!("{reason} ({x} x {y} x {z})") }
        })
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        source::TILES
    }

    fn joins(&self) -> bool {
        true
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        let nothing = || Buffer::new(Arc::new(Nothing), bytes);
        let generation = self.fault.generation();
        if self.fault.is_set() {
            return nothing();
        }
        let size = size_of(bytes);
        let mut pool = lock(&self.memory.pool);
        let found = match pool.take(size) {
            Some(found) => Ok(found),
            None => self.memory.allocate(&mut pool, size).map(|address| (address, size)),
        };
        drop(pool);
        match found {
            Ok((address, size)) => {
                let accounts = self.memory.clone();
                Buffer::new(Arc::new(Memory { address, size, accounts, generation }), bytes)
            }
            Err(fault) => {
                self.fail(fault);
                nothing()
            }
        }
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        let buffer = self.alloc(bytes.len() as u64);
        self.write(&buffer, 0, bytes);
        buffer
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        if let Some(place) = self.place(to, at + bytes.len() as u64) {
            self.note("copy to the device", lock(&self.staging).send(place + at, bytes));
        }
    }

    fn clear(&self, buffer: &Buffer) {
        let bytes = buffer.bytes();
        if let Some(place) = self.place(buffer, bytes).filter(|_| bytes > 0) {
            let bound = self.stream.context().bind_to_thread();
            // SAFETY: the buffer has this many bytes, and any bytes are valid in it.
            let clear =
                |()| unsafe { result::memset_d8_async(place, 0, bytes as usize, self.stream.cu_stream()) };
            self.note("clear memory", bound.and_then(clear));
        }
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        let (from, to) = (self.place(from, from_at + bytes), self.place(to, to_at + bytes));
        if let (Some(from), Some(to)) = (from, to) {
            let bound = self.stream.context().bind_to_thread();
            let (to, from, stream) = (to + to_at, from + from_at, self.stream.cu_stream());
            // SAFETY: both buffers have these bytes, checked by `place`, and they are different buffers.
            let copy = |()| unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream) };
            self.note("copy on the device", bound.and_then(copy));
        }
    }

    fn launch(&self, launch: &Launch<'_>) {
        if !self.fault.is_set()
            && let Err(fault) = self.start(launch)
        {
            self.fail(fault);
        }
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        if let Some(place) = self.place(from, at + out.len() as u64) {
            self.note("copy from the device", lock(&self.staging).fetch(place + at, out));
        }
        self.checked(from)
    }

    fn mark(&self) -> Mark {
        if self.fault.is_set() {
            return Mark::passed();
        }
        self.mark_of("mark a command", self.stream.record_event(None))
    }

    fn load(&self, to: &Buffer, at: u64, bytes: &[u8], after: &Mark) -> Mark {
        match self.place(to, at + bytes.len() as u64) {
            Some(place) => {
                self.mark_of("load to the device", self.loads.send(place + at, bytes, after.raw()))
            }
            None => Mark::passed(),
        }
    }

    fn save(&self, from: &Buffer, at: u64, out: &mut [u8], after: &Mark) -> Result<(), GpuError> {
        if let Some(place) = self.place(from, at + out.len() as u64) {
            self.note("save from the device", self.saves.fetch(place + at, out, after.raw()));
        }
        self.checked(from)
    }

    /// They have streams of their own.
    fn loads_beside_commands(&self) -> bool {
        true
    }

    fn wait(&self, mark: &Mark) {
        if !self.fault.is_set()
            && let Some(event) = mark.raw::<CudaEvent>()
        {
            self.note("wait for a load", self.stream.wait(event));
        }
    }

    fn fault(&self) -> Option<GpuError> {
        self.fault.get()
    }

    /// What is under way when there is no room is carried out, and it is in order: nothing is to be undone.
    fn recover(&self) -> bool {
        self.fault.forget()
    }

    fn generation(&self) -> u64 {
        self.fault.generation()
    }

    fn used_bytes(&self) -> u64 {
        lock(&self.memory.pool).used_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        let left = self.stream.context().mem_get_info().ok().map(|(free, _)| free as u64);
        lock(&self.memory.pool).free_bytes(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_no_device_and_a_clear_error() {
        if has_driver() {
            println!("skipped: kernels_cuda: this machine has NVIDIA's driver");
            return;
        }
        assert_eq!(devices(), []);
        assert_eq!(open(0, None).unwrap_err(), OpenError::NoDriver);
    }
}
