//! Every kernel compiled as the program compiles it: by NVRTC, from the very text that it ships.
//!
//! NVRTC is the library that BATON_NVRTC names, or found as the program finds it, by its name among the
//! libraries. No GPU is needed.

use baton_kernels_cuda::source;
use baton_kernels_gpu::Kernel;

/// Architectures: with tensor cores for bytes of eight rows, and of sixteen rows.
const ARCHITECTURES: [u32; 3] = [75, 86, 90];

/// Opens the library that BATON_NVRTC names. From then on it is found by its name.
#[cfg(unix)]
fn open_named() {
    use std::os::unix::ffi::OsStringExt;

    let Some(path) = crate::variable("BATON_NVRTC") else { return };
    let name = std::ffi::CString::new(path.clone().into_vec()).unwrap();
    // SAFETY: the name ends with a zero; opening the library runs only its own initialization.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "BATON_NVRTC names no library: {}", path.display());
}

#[cfg(not(unix))]
fn open_named() {}

#[test]
fn shipped_texts_compile_without_a_toolkit() {
    open_named();
    if !baton_kernels_cuda::has_compiler() {
        println!("skipped: gpu: no NVRTC (BATON_NVRTC, or libnvrtc among the libraries)");
        return;
    }
    let jobs =
        ARCHITECTURES.iter().flat_map(|n| source::functions().into_iter().map(move |kernel| (kernel, *n)));
    crate::share(jobs.collect(), |(kernel, architecture): (Kernel, u32)| {
        let image = baton_kernels_cuda::compile(&[kernel], architecture);
        let image = image.unwrap_or_else(|error| panic!("{} for {architecture}: {error}", kernel.name()));
        assert!(image.starts_with(b"\x7fELF"), "{} for {architecture}", kernel.name());
        let name = source::entry(kernel).into_bytes();
        assert!(image.windows(name.len()).any(|bytes| bytes == name), "{}", kernel.name());
    });
}
