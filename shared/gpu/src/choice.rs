//! The user's choice of a GPU, as options and configuration files write it.

use std::fmt;
use std::str::FromStr;

use baton_kernels_gpu::Interface;

/// The GPU that a user wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// The best one that is there, or none.
    #[default]
    Auto,
    /// None.
    Off,
    /// A device of this interface, which may also be a program on the CPU.
    Named {
        /// How it is reached.
        interface: Interface,
        /// Its number; without one, the best device of the interface.
        index: Option<usize>,
    },
}

/// The text names no GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no choice of a GPU: want auto, off, or a device such as cuda:0, vulkan:1, metal:0 or dx12:0"
)]
pub struct ChoiceError(String);

impl FromStr for GpuChoice {
    type Err = ChoiceError;

    /// Reads `auto`, `off`, an interface, or an interface with a number after a colon.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let wrong = || ChoiceError(text.to_owned());
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let interface = Interface::ALL.into_iter().find(|interface| interface.name() == name);
        let index = match number {
            // `parse` alone would also take a sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().map_err(|_| wrong())?)
            }
            Some(_) => return Err(wrong()),
            None => None,
        };
        Ok(Self::Named { interface: interface.ok_or_else(wrong)?, index })
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Named { interface, index: None } => write!(f, "{interface}"),
            Self::Named { interface, index: Some(index) } => write!(f, "{interface}:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_written_alike() {
        let named = |interface, index| GpuChoice::Named { interface, index };
        for (text, want) in [
            ("auto", GpuChoice::Auto),
            ("off", GpuChoice::Off),
            ("cuda", named(Interface::Cuda, None)),
            ("cuda:0", named(Interface::Cuda, Some(0))),
            ("vulkan:12", named(Interface::Vulkan, Some(12))),
            ("metal:0", named(Interface::Metal, Some(0))),
            ("dx12:1", named(Interface::Dx12, Some(1))),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
            assert_eq!(want.to_string(), text);
        }
        assert_eq!(GpuChoice::default(), GpuChoice::Auto);
    }

    #[test]
    fn a_wrong_choice_is_refused_with_the_right_forms() {
        for bad in
            ["", "on", "0", "CUDA:0", "cuda:", "cuda:+1", "cuda:-1", "cuda:0:1", "rocm:0", ":0", "cuda: 0"]
        {
            let said = bad.parse::<GpuChoice>().unwrap_err().to_string();
            assert!(said.starts_with(&format!("`{bad}` is no choice")), "{said}");
            assert!(said.contains("auto, off") && said.contains("cuda:0, vulkan:1"), "{said}");
        }
        assert!(format!("cuda:{}0", u64::MAX).parse::<GpuChoice>().is_err());
    }
}
