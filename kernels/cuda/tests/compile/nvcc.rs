//! Every kernel compiled by nvcc for real architectures: registers, spills, shared memory.
//!
//! BATON_NVCC names the compiler. No GPU is needed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use baton_kernels_cuda::source::{self, Family};
use baton_kernels_gpu::Kernel;

/// The architectures of GPUs that owners have.
const ARCHITECTURES: [u32; 6] = [75, 80, 86, 89, 90, 120];
/// Those that are compiled for if not all are asked for (`BATON_TEST_ALL`).
const FEW: [u32; 2] = [75, 90];

/// Registers of a multiprocessor, and the most of a thread.
const REGISTERS: u32 = 65_536;
const REGISTERS_MAX: u32 = 255;

/// Bytes of shared memory that a workgroup has without asking for more.
const SHARED_MAX: u32 = 48 << 10;

/// What the assembler says of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    registers: u32,
    spilled_bytes: u32,
    shared_bytes: u32,
}

/// Returns the number before `unit` in a line.
fn number(line: &str, unit: &str) -> u32 {
    let before = line.split(unit).next().filter(|before| before.len() < line.len());
    before.and_then(|text| text.trim_end().rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Reads what `ptxas -v` prints: the names of the functions in quotes, then what each uses.
fn parse(output: &str) -> Vec<(String, Usage)> {
    let mut all: Vec<(String, Usage)> = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            all.push((name.split('\'').next().unwrap().to_owned(), Usage::default()));
        }
        let Some((_, usage)) = all.last_mut() else { continue };
        if line.contains("spill stores") {
            usage.spilled_bytes = number(line, " bytes spill stores") + number(line, " bytes spill loads");
        }
        if line.contains("Used ") {
            usage.registers = number(line, " registers");
            usage.shared_bytes = number(line, " bytes smem");
        }
    }
    all
}

/// Compiles a text under a name, and returns what the compiler says.
///
/// # Errors
/// As `Ok`, if it does not compile.
fn compile(nvcc: &OsStr, base: &Path, text: &str, architecture: u32) -> Result<String, String> {
    let (file, cubin) = (base.with_extension("cu"), base.with_extension("cubin"));
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(nvcc);
    command.args(source::OPTIONS).arg(format!("-arch=sm_{architecture}"));
    command.args(["--cubin", "-w", "-Xptxas", "-v", "-o"]).arg(&cubin).arg(&file);
    let output = command.output().expect("BATON_NVCC names a program");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Compiles a family for an architecture and checks each kernel.
fn check(nvcc: &OsStr, folder: &Path, family: &Family, architecture: u32) {
    let base = folder.join(format!("{}_{architecture}", family.name));
    let said = compile(nvcc, &base, &source::text(&family.kernels), architecture);
    let said = said.unwrap_or_else(|said| panic!("{} for {architecture}: {said}", family.name));
    let usages = parse(&said);
    for kernel in &family.kernels {
        let name = source::entry(*kernel);
        let found = usages.iter().find(|(entry, _)| *entry == name);
        let (_, usage) = found.unwrap_or_else(|| panic!("{name} is not in what nvcc says: {said}"));
        check_usage(*kernel, architecture, *usage);
    }
}

fn check_usage(kernel: Kernel, architecture: u32, usage: Usage) {
    let what = format!("{} for {architecture}: {usage:?}", kernel.name());
    assert!((1..=REGISTERS_MAX).contains(&usage.registers), "{what}");
    // Registers are given to a warp in eights a thread.
    let registers = usage.registers.next_multiple_of(8) * source::threads(kernel);
    assert!(registers <= REGISTERS, "{what}: a workgroup takes {registers} registers");
    assert_eq!(usage.spilled_bytes, 0, "{what}");
    assert!(usage.shared_bytes <= SHARED_MAX, "{what}");
}

#[test]
fn kernels_fit_their_gpus() {
    let Some(nvcc) = crate::variable("BATON_NVCC") else {
        println!("skipped: gpu: no nvcc (BATON_NVCC)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // It needs a C++ compiler beside it, also for a text without anything.
    if let Err(said) = compile(&nvcc, &folder.path().join("nothing"), "", ARCHITECTURES[0]) {
        println!("skipped: gpu: nvcc does not work here: {}", said.trim().replace('\n', "; "));
        return;
    }
    let families = source::families();
    let architectures: &[u32] =
        if crate::variable("BATON_TEST_ALL").is_some() { &ARCHITECTURES } else { &FEW };
    let jobs = architectures.iter().flat_map(|n| families.iter().map(move |family| (family, *n))).collect();
    crate::share(jobs, |(family, architecture)| check(&nvcc, folder.path(), family, architecture));
}

#[test]
fn what_the_assembler_says_is_understood() {
    let output = "ptxas info    : Compiling entry function 'baton_add' for 'sm_86'\n\
        ptxas info    : Function properties for baton_add\n    \
        8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
        ptxas info    : Used 10 registers, used 1 barriers, 4288 bytes smem, 372 bytes cmem[0]\n\
        ptxas info    : Compiling entry function 'baton_copy' for 'sm_86'\n    \
        0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 255 registers\n";
    let usage = |registers, spilled_bytes, shared_bytes| Usage { registers, spilled_bytes, shared_bytes };
    let want = [("baton_add".to_owned(), usage(10, 16, 4_288)), ("baton_copy".to_owned(), usage(255, 0, 0))];
    assert_eq!(parse(output), want);
}
