//! One body compiled once per level.
//!
//! The bodies are safe Rust without intrinsics. Compiled with more instructions, the compiler can vectorize
//! them. It may not reorder or fuse float operations on its own, so every version gives the same bits.

/// Defines `$name(args)`, which runs at [`Dispatch::current`](crate::Dispatch::current), and
/// `$at(level, args)`.
macro_rules! versions {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident / $at:ident ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            $at($crate::dispatch::Dispatch::current(), $($arg),*)
        }

        pub(crate) fn $at(level: $crate::dispatch::Dispatch, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match level {
                #[cfg(target_arch = "x86_64")]
                $crate::dispatch::Dispatch::Avx512Vnni | $crate::dispatch::Dispatch::Avx512Amx
                    if $crate::dispatch::has_avx512_vnni() =>
                {
                    // SAFETY: the guard of this arm checked that the CPU has these features.
                    unsafe { avx512($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::dispatch::Dispatch::Avx2 if $crate::dispatch::has_avx2() => {
                    // SAFETY: the guard of this arm checked that the CPU has these features.
                    unsafe { avx2($($arg),*) }
                }
                _ => body($($arg),*),
            }
        }
    };
}

pub(crate) use versions;
