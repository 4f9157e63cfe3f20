//! The kernels of a family as a library of the host: their text behind a header that stands for the GPU.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use baton_kernels_cuda::source::{self, Family};
use baton_kernels_gpu::Kernel;

use crate::share;

/// The header.
const HEADER: &str = include_str!("gpu.hpp");

/// Options beside those of the target: products and sums are not joined, `fmaf` is one instruction if the CPU
/// has one.
const OPTIONS: [&str; 7] = ["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-o"];

/// Architectures, as `__CUDA_ARCH__` gives them, on which products of tiles and attention are emulated:
/// without tensor cores, with those of eight rows of bytes, and of sixteen rows.
pub(crate) const ARCHITECTURES: [u32; 3] = [610, MIDDLE, 800];

/// The one between.
pub(crate) const MIDDLE: u32 = 750;

/// The architecture on which every kernel is emulated.
pub(crate) const NEWEST: u32 = 800;

/// Returns whether a kernel's text depends on the architecture.
pub(crate) fn differs(kernel: Kernel) -> bool {
    matches!(kernel, Kernel::MatMul { .. } | Kernel::Attend(_) | Kernel::AttendPart(_))
}

/// Returns the architecture for which a family is compiled, to run on another.
fn compiled_for(family: &Family, architecture: u32) -> u32 {
    if family.kernels.iter().copied().any(differs) { architecture } else { NEWEST }
}

/// A C++ compiler.
pub(crate) struct Compiler {
    program: &'static str,
    target: Option<&'static str>,
}

impl Compiler {
    /// Returns the first compiler that this machine has.
    pub(crate) fn find() -> Option<Self> {
        let runs = |program: &&str| {
            let output = Command::new(program).arg("--version").output();
            output.is_ok_and(|output| output.status.success())
        };
        let program = ["c++", "g++", "clang++"].into_iter().find(runs)?;
        let takes = |target: &&str| {
            let mut command = Command::new(program);
            command.args([*target, "-E", "-x", "c++", "/dev/null"]);
            command.output().is_ok_and(|output| output.status.success())
        };
        Some(Self { program, target: Some("-march=native").filter(takes) })
    }
}

/// A function of the header's `EMULATED`.
pub(crate) type Run = unsafe extern "C" fn(
    groups: *const u32,
    threads: u32,
    buffers: *const *mut c_void,
    n_buffers: u32,
    numbers: *const u32,
    n_numbers: u32,
) -> i32;

/// Compiles a family to a library in a folder.
fn build(compiler: &Compiler, folder: &Path, family: &Family, architecture: u32) {
    let mut text =
        format!("#define ARCHITECTURE {architecture}\n{HEADER}\n{}", source::text(&family.kernels));
    for kernel in &family.kernels {
        text.push_str(&format!("EMULATED({})\n", source::entry(*kernel)));
    }
    let library = file(folder, family, architecture);
    let source = library.with_extension("cpp");
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler.program);
    command.args(compiler.target).args(OPTIONS).arg(library).arg(&source);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", family.name, String::from_utf8_lossy(&output.stderr));
}

/// Returns the library of a family.
fn file(folder: &Path, family: &Family, architecture: u32) -> PathBuf {
    folder.join(format!("{}_{architecture}.so", family.name))
}

/// Compiles all families to libraries in a folder, some at the same time.
pub(crate) fn build_all(compiler: &Compiler, folder: &Path) {
    let families = source::families().into_iter();
    let all = families.flat_map(|family| ARCHITECTURES.map(|n| (family.clone(), n)));
    let jobs = all.filter(|(family, n)| compiled_for(family, *n) == *n).collect();
    share(jobs, |(family, architecture)| build(compiler, folder, &family, architecture));
}

/// All kernels of an architecture, loaded. They share static variables, so one runs at a time.
pub(crate) struct Library {
    functions: HashMap<Kernel, Run>,
}

impl Library {
    /// Loads what [`build_all`] has made. Libraries with other numbers share no variables.
    pub(crate) fn load(folder: &Path, architecture: u32, number: usize) -> Self {
        let mut functions = HashMap::new();
        for family in source::families() {
            let library = file(folder, &family, compiled_for(&family, architecture));
            let copy = library.with_extension(format!("{number}.so"));
            if !copy.exists() {
                std::fs::copy(library, &copy).unwrap();
            }
            functions.extend(load(&copy, &family.kernels));
        }
        Self { functions }
    }

    /// Returns the function that runs a kernel.
    pub(crate) fn function(&self, kernel: Kernel) -> Run {
        self.functions[&kernel]
    }
}

/// Loads a library, which stays loaded, and finds its functions.
fn load(path: &Path, kernels: &[Kernel]) -> HashMap<Kernel, Run> {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a zero; the library was just made from our own text.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{} cannot be loaded", path.display());
    let find = |kernel: &Kernel| {
        let name = CString::new(format!("run_{}", source::entry(*kernel))).unwrap();
        // SAFETY: the library is loaded, and the name ends with a zero.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!address.is_null(), "{} is not in its library", kernel.name());
        // SAFETY: the header defines every function of this name with this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, Run>(address) };
        (*kernel, function)
    };
    kernels.iter().map(find).collect()
}
