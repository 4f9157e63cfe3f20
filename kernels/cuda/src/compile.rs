//! NVRTC: which architecture to compile for, and the compilation.

use std::ffi::{CString, c_char};

use baton_kernels_gpu::Kernel;
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use crate::error::{LEAST, OpenError};
use crate::source;

/// The oldest NVRTC that has every function called here.
const OLDEST: (u32, u32) = (11, 4);

/// The most characters of a compiler's message that are shown.
const MESSAGE_MAX: usize = 2_000;

/// What to compile for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code of an architecture, which is the device's or an older one of its generation.
    Machine(u32),
    /// Code for the driver to translate, as the device is newer than the compiler.
    Portable(u32),
}

impl Target {
    /// Returns the target for a device, given the architectures that the compiler knows (75 for 7.5).
    pub(crate) fn choose(capability: (u32, u32), known: &[u32]) -> Option<Self> {
        let device = capability.0 * 10 + capability.1;
        let newest = *known.iter().filter(|known| **known <= device).max()?;
        let is_like = newest / 10 == capability.0;
        Some(if is_like { Self::Machine(newest) } else { Self::Portable(newest) })
    }

    /// Returns the compiler's options.
    pub(crate) fn options(self) -> Vec<String> {
        let target = match self {
            Self::Machine(n) => format!("--gpu-architecture=sm_{n}"),
            Self::Portable(n) => format!("--gpu-architecture=compute_{n}"),
        };
        source::OPTIONS.iter().map(|option| (*option).to_owned()).chain([target]).collect()
    }
}

/// The compiler, opened.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    version: (u32, u32),
    known: Vec<u32>,
}

fn failure(error: NvrtcError) -> OpenError {
    OpenError::Compiler(format!("{error:?}"))
}

impl Compiler {
    /// Opens the library.
    ///
    /// # Errors
    /// [`OpenError::NoCompiler`], [`OpenError::Compiler`].
    pub(crate) fn open() -> Result<Self, OpenError> {
        // SAFETY: opening the library runs only its own initialization.
        if !unsafe { sys::is_culib_present() } {
            return Err(OpenError::NoCompiler);
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is present, asked above; the numbers outlive the call.
        let answer = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        answer.result().map_err(failure)?;
        let version = (major.unsigned_abs(), minor.unsigned_abs());
        if version < OLDEST {
            return Err(OpenError::Compiler(format!("it is version {}.{}", version.0, version.1)));
        }
        let mut n = 0;
        // SAFETY: this version has the function; the number outlives the call.
        let answer = unsafe { sys::nvrtcGetNumSupportedArchs(&mut n) };
        answer.result().map_err(failure)?;
        let mut known = vec![0; n.unsigned_abs() as usize];
        // SAFETY: the list has as many places as the library has just said.
        let answer = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
        answer.result().map_err(failure)?;
        let known = known.into_iter().filter_map(|n| u32::try_from(n).ok()).collect();
        Ok(Self { version, known })
    }

    /// Returns its version, major and minor.
    pub(crate) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns what to compile for.
    ///
    /// # Errors
    /// [`OpenError::DeviceTooOld`].
    pub(crate) fn target(&self, name: &str, capability: (u32, u32)) -> Result<Target, OpenError> {
        let least = self.known.iter().copied().min().map_or(LEAST, |n| (n / 10, n % 10));
        let target = Target::choose(capability, &self.known).filter(|_| capability >= LEAST);
        target.ok_or_else(|| OpenError::DeviceTooOld {
            name: name.to_owned(),
            capability,
            compiler: self.version,
            least: least.max(LEAST),
        })
    }

    /// Compiles a text to what the driver loads.
    ///
    /// # Errors
    /// What the compiler says.
    pub(crate) fn compile(&self, text: &str, options: &[String], target: Target) -> Result<Vec<u8>, String> {
        let text = CString::new(text).map_err(|_| "the text has a zero byte".to_owned())?;
        let program = Program::new(text)?;
        program.compile(options)?;
        program.image(target).map_err(|error| format!("{error:?}"))
    }
}

/// Returns whether NVRTC is among this machine's libraries.
pub fn has_compiler() -> bool {
    Compiler::open().is_ok()
}

/// Compiles kernels for an architecture (86 for compute capability 8.6), as a device of that architecture
/// does, and returns the machine code. Needs NVRTC, but no GPU.
///
/// # Errors
/// What is missing, or what the compiler says.
pub fn compile(kernels: &[Kernel], architecture: u32) -> Result<Vec<u8>, String> {
    let compiler = Compiler::open().map_err(|error| error.to_string())?;
    let target = Target::Machine(architecture);
    compiler.compile(&source::text(kernels), &target.options(), target)
}

/// A program of the compiler.
struct Program {
    handle: sys::nvrtcProgram,
    /// The compiler may read it until the program is destroyed.
    _text: CString,
}

impl Program {
    fn new(text: CString) -> Result<Self, String> {
        let handle = result::create_program(&text, None).map_err(|error| format!("{error:?}"))?;
        Ok(Self { handle, _text: text })
    }

    fn compile(&self, options: &[String]) -> Result<(), String> {
        // SAFETY: the program lives until `self` is dropped. No option has a zero byte, at which this panics.
        let answer = unsafe { result::compile_program(self.handle, options) };
        answer.map_err(|error| format!("{error:?}: {}", self.message()))
    }

    /// Returns what the compiler says about the program.
    fn message(&self) -> String {
        // SAFETY: the program lives until `self` is dropped.
        let message = unsafe { result::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> =
            message.into_iter().flat_map(c_char::to_ne_bytes).filter(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).trim().chars().take(MESSAGE_MAX).collect()
    }

    fn image(&self, target: Target) -> Result<Vec<u8>, NvrtcError> {
        if let Target::Portable(_) = target {
            // SAFETY: the program lives until `self` is dropped. The text ends with a zero, as drivers need.
            let text = unsafe { result::get_ptx(self.handle) }?;
            return Ok(text.into_iter().flat_map(c_char::to_ne_bytes).collect());
        }
        let mut n = 0;
        // SAFETY: the program lives until `self` is dropped; the number outlives the call.
        let answer = unsafe { sys::nvrtcGetCUBINSize(self.handle, &mut n) };
        answer.result()?;
        let mut image = vec![0u8; n];
        // SAFETY: the image has as many bytes as the library has just said.
        let answer = unsafe { sys::nvrtcGetCUBIN(self.handle, image.as_mut_ptr().cast()) };
        answer.result()?;
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created and not destroyed. A failure leaves memory of the library behind.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_nearest_that_run_on_the_device() {
        let known = [75, 80, 86, 87, 89, 90, 100, 120];
        let cases = [
            ((7, 5), Some(Target::Machine(75))),
            ((8, 6), Some(Target::Machine(86))),
            ((8, 8), Some(Target::Machine(87))),
            ((9, 0), Some(Target::Machine(90))),
            ((12, 1), Some(Target::Machine(120))),
            ((13, 0), Some(Target::Portable(120))),
            ((7, 0), None),
        ];
        for (capability, want) in cases {
            assert_eq!(Target::choose(capability, &known), want, "{capability:?}");
        }
        assert_eq!(Target::Machine(86).options().last().unwrap(), "--gpu-architecture=sm_86");
        assert_eq!(Target::Portable(120).options().last().unwrap(), "--gpu-architecture=compute_120");
    }

    #[test]
    fn a_device_that_nobody_compiles_for_is_refused() {
        let compiler = Compiler { version: (13, 0), known: vec![75, 80] };
        let error = compiler.target("GTX 1080", (6, 1)).unwrap_err();
        assert!(matches!(error, OpenError::DeviceTooOld { least: (7, 5), .. }), "{error}");
        let compiler = Compiler { version: (12, 0), known: vec![50, 60, 61, 75] };
        let error = compiler.target("GTX 960", (5, 2)).unwrap_err();
        assert!(matches!(error, OpenError::DeviceTooOld { least: (6, 1), .. }), "{error}");
        assert_eq!(compiler.target("GTX 1080", (6, 1)), Ok(Target::Machine(61)));
    }
}
