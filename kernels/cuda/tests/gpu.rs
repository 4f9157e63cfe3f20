//! The kernels on this machine's NVIDIA GPU; and without one: run on an emulated one, compiled for real ones.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "emulation/device.rs"]
mod device;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "emulation/library.rs"]
mod library;

#[path = "compile/nvcc.rs"]
mod nvcc;

#[path = "compile/nvrtc.rs"]
mod nvrtc;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::collections::HashMap;
use std::sync::Mutex;

use baton_kernels_gpu::Kernel;

/// Returns the number of threads that compile and run at the same time.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Takes the next of the items, for threads that share them.
fn next<T>(items: &Mutex<Vec<T>>) -> Option<T> {
    items.lock().unwrap().pop()
}

/// Does the jobs, some at the same time.
fn share<T: Send>(jobs: Vec<T>, work: impl Fn(T) + Sync) {
    let (jobs, work) = (Mutex::new(jobs), &work);
    std::thread::scope(|scope| {
        for _ in 0..workers() {
            scope.spawn(|| {
                while let Some(job) = next(&jobs) {
                    work(job);
                }
            });
        }
    });
}

/// Returns every kernel of the set.
fn every() -> Vec<Kernel> {
    Kernel::all().into_iter().chain(Kernel::joined()).collect()
}

/// Returns the value of a variable that is set and not empty.
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn every_kernel_computes_the_scalar_definition() {
    use baton_kernels_gpu::cases;
    use device::EmulatedDevice;
    use library::{ARCHITECTURES, Compiler, Library, MIDDLE, NEWEST, build_all, differs};

    let Some(compiler) = Compiler::find() else {
        println!("skipped: gpu: no C++ compiler for the emulated CUDA device");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    build_all(&compiler, folder.path());
    let all = ARCHITECTURES.iter().flat_map(|n| every().into_iter().map(move |kernel| (*n, kernel)));
    // The older architectures take as long again.
    let older = variable("BATON_TEST_ALL").is_some();
    let is_wanted = |(n, kernel): &(u32, Kernel)| match *n {
        NEWEST => true,
        // Newer ones have another variant of these.
        MIDDLE if matches!(kernel, Kernel::MatVec { tokens: 1, .. }) => true,
        _ => older && differs(*kernel),
    };
    let jobs = Mutex::new(all.filter(is_wanted).collect());
    std::thread::scope(|scope| {
        for number in 0..workers() {
            let load = |n| (n, EmulatedDevice::new(Library::load(folder.path(), n, number), n == NEWEST));
            let (devices, jobs) = (HashMap::from(ARCHITECTURES.map(load)), &jobs);
            scope.spawn(move || {
                if number == 0 {
                    cases::check_memory(&devices[&NEWEST]);
                }
                while let Some((architecture, kernel)) = next(jobs) {
                    cases::check(&devices[&architecture], kernel);
                }
            });
        }
    });
}

#[test]
fn every_kernel_computes_the_scalar_definition_on_this_machines_gpu() {
    use baton_kernels_gpu::cases;

    let facts = baton_kernels_cuda::devices();
    let Some(first) = facts.first() else { return println!("skipped: gpu: no GPU of NVIDIA") };
    let device = baton_kernels_cuda::open(first.index, None).expect("a GPU that is listed opens");
    cases::check_memory(&device);
    for kernel in every() {
        cases::check(&device, kernel);
    }
}
