//! Why a CUDA device cannot be opened, and what the user can do about it.

use baton_kernels_gpu::GpuError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Why a device cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The driver's library is not there.
    #[error(
        "NVIDIA's driver was not found (libcuda.so.1, or nvcuda.dll on Windows); install this GPU's driver"
    )]
    NoDriver,
    /// The driver does not start, or refuses the device.
    #[error("NVIDIA's driver cannot use the GPU: {0}; restart the computer or install the driver again")]
    Driver(String),
    /// There are fewer devices.
    #[error("there is no CUDA device {index}; the driver shows {count}")]
    NoDevice {
        /// The number asked for.
        index: usize,
        /// Devices of this computer.
        count: usize,
    },
    /// The driver is older than what this program calls, or than the code that the compiler makes.
    #[error(
        "NVIDIA's driver is too old: it supports CUDA {}.{}, and {needs} needs CUDA {}.{}; update the driver",
        have.0, have.1, want.0, want.1
    )]
    DriverTooOld {
        /// What needs a newer one.
        needs: &'static str,
        /// The driver's version of CUDA, major and minor.
        have: (u32, u32),
        /// The version that it should have.
        want: (u32, u32),
    },
    /// The compiler's library is not there.
    #[error(
        "NVIDIA's kernel compiler NVRTC was not found (libnvrtc.so.13 or .12; nvrtc64_130_0.dll on Windows); \
         install the package cuda-nvrtc of the CUDA toolkit, or run `pip install nvidia-cuda-nvrtc` and add \
         the folder of the library to LD_LIBRARY_PATH (PATH on Windows)"
    )]
    NoCompiler,
    /// The compiler does not answer, or is older than what this program calls.
    #[error("NVIDIA's kernel compiler NVRTC cannot be used: {0}; install NVRTC of CUDA 12 or 13")]
    Compiler(String),
    /// The compiler, or this program, does not know the device's architecture.
    #[error(
        "{name} has compute capability {}.{}, but NVRTC {}.{} compiles for {}.{} or newer; {}",
        capability.0, capability.1, compiler.0, compiler.1, least.0, least.1,
        if *capability < LEAST { "this GPU is too old" } else { "install NVRTC of CUDA 12" }
    )]
    DeviceTooOld {
        /// The device's name.
        name: String,
        /// Its compute capability, major and minor.
        capability: (u32, u32),
        /// The compiler's version.
        compiler: (u32, u32),
        /// The oldest capability that can be compiled for.
        least: (u32, u32),
    },
}

/// The oldest compute capability that has the kernels' integer instructions.
pub(crate) const LEAST: (u32, u32) = (6, 1);

/// Returns what a driver's error says.
pub(crate) fn reason(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("error {}", error.0 as u32))
}

/// Returns whether a driver's error says that there is no memory.
pub(crate) fn is_out_of_memory(error: DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Returns the fault that follows from a driver's error while `what` was done.
pub(crate) fn lost(what: &str, error: DriverError) -> GpuError {
    GpuError::Lost(format!("{what}: {}", reason(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_way_out() {
        let too_old = OpenError::DeviceTooOld {
            name: "GTX 1080".to_owned(),
            capability: (6, 1),
            compiler: (13, 0),
            least: (7, 5),
        };
        assert_eq!(
            too_old.to_string(),
            "GTX 1080 has compute capability 6.1, but NVRTC 13.0 compiles for 7.5 or newer; install NVRTC of \
             CUDA 12"
        );
        assert!(OpenError::NoCompiler.to_string().contains("pip install nvidia-cuda-nvrtc"));
        let driver = OpenError::DriverTooOld { needs: "NVRTC", have: (12, 4), want: (13, 0) };
        assert!(driver.to_string().contains("supports CUDA 12.4, and NVRTC needs CUDA 13.0"));
    }
}
