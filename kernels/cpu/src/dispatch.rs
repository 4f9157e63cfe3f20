//! The instruction set that the loops use: chosen once at run time, or forced.
//!
//! A level never changes a result, only its speed. Forcing one helps tests and fault finding.

pub(crate) mod versions;

use std::sync::OnceLock;

/// A level of instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dispatch {
    /// Plain Rust, any CPU: the definition of every result.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI).
    Avx512Vnni,
    /// As [`Self::Avx512Vnni`], with 8-bit integer matrix products in tiles (AMX), on Linux.
    Avx512Amx,
    /// 64-bit ARM with NEON, which every such CPU that runs an operating system has.
    Neon,
    /// 64-bit ARM with NEON and byte dot products (Armv8.2 dotprod).
    NeonDotprod,
    /// As [`Self::NeonDotprod`], with 8-bit integer matrix products (Armv8.6 i8mm).
    NeonI8mm,
}

impl Dispatch {
    /// Every level of every architecture; those of one architecture slowest first.
    pub const ALL: [Self; 7] = [
        Self::Scalar,
        Self::Avx2,
        Self::Avx512Vnni,
        Self::Avx512Amx,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// Returns whether this CPU has the level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512Vnni => has_avx512_vnni(),
            Self::Avx512Amx => has_amx(),
            Self::Neon => has_neon(),
            Self::NeonDotprod => has_neon_dotprod(),
            Self::NeonI8mm => has_neon_dotprod() && has_neon_i8mm(),
        }
    }

    /// Returns the best level of this CPU.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|level| level.is_available()).unwrap_or(Self::Scalar)
    }

    /// Returns the level in use. If the environment variable `BATON_CPU` names one (`scalar`, `avx2`,
    /// `avx512`, `amx`, `neon`, `neon-dotprod`, `neon-i8mm`) and the CPU has it, that one; else
    /// [`Self::best`]. The variable is read once.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Dispatch> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::choose(std::env::var("BATON_CPU").ok().as_deref()))
    }

    /// Returns the name as `BATON_CPU` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512",
            Self::Avx512Amx => "amx",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    fn choose(wish: Option<&str>) -> Self {
        let named = Self::ALL.into_iter().find(|level| Some(level.name()) == wish);
        named.filter(|level| level.is_available()).unwrap_or_else(Self::best)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512_vnni() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_amx() -> bool {
    crate::simd::amx::is_usable()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_amx() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_avx512_vnni() -> bool {
    false
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn has_neon() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn has_neon_dotprod() -> bool {
    has_neon() && std::arch::is_aarch64_feature_detected!("dotprod")
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn has_neon_i8mm() -> bool {
    std::arch::is_aarch64_feature_detected!("i8mm")
}

#[cfg(not(target_arch = "aarch64"))]
pub(crate) fn has_neon() -> bool {
    false
}

#[cfg(not(target_arch = "aarch64"))]
pub(crate) fn has_neon_dotprod() -> bool {
    false
}

#[cfg(not(target_arch = "aarch64"))]
pub(crate) fn has_neon_i8mm() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_bounded_by_the_cpu() {
        assert_eq!(Dispatch::choose(Some("scalar")), Dispatch::Scalar);
        assert_eq!(Dispatch::choose(Some("no such level")), Dispatch::best());
        assert_eq!(Dispatch::choose(None), Dispatch::best());
        for level in Dispatch::ALL {
            let chosen = Dispatch::choose(Some(level.name()));
            assert_eq!(chosen, if level.is_available() { level } else { Dispatch::best() });
            assert!(chosen.is_available());
        }
    }
}
