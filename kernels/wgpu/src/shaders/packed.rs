//! Sources of the kernels that pack keys and values, and open them.

use baton_kernels_gpu::{Kernel, PackedKv};

use super::{Binding, NUMBERS, Param, Ro, Rw, Shader, Source, piece};

const PACKED: &str = include_str!("packed.wgsl");

/// Numbers of the heads.
const SHAPE: [Param; 3] = [("n", "u32"), ("heads", "u32"), ("d", "u32")];

/// Begins a source: numbers, and how a format packs.
fn source(bindings: &[Binding], how: PackedKv) -> Source {
    let raise = 1 << (how.bits() - 1);
    Source::new(bindings, &SHAPE)
        .constant("BITS", format!("{}u", how.bits()))
        .constant("RAISE", format!("{raise}u"))
        .push(piece(NUMBERS, "half"))
        .push(piece(PACKED, "group"))
}

/// Returns what rounds keys and values, and packs them if the kernel does.
pub(super) fn round(kernel: Kernel, how: PackedKv) -> Shader {
    let raise = 1 << (how.bits() - 1);
    // As in kernels/cpu: bytes have as many negative values as positive ones.
    let lowest = if how == PackedKv::Q8 { 1 - raise } else { -raise };
    let packs = matches!(kernel, Kernel::PackKv(_));
    let mut bindings = vec![("places", "u32", Ro), ("keys", "u32", Rw), ("values", "u32", Rw)];
    if packs {
        bindings.push(("packed", "u32", Rw));
    }
    source(&bindings, how)
        .constant("LOWEST", format!("{lowest}.0"))
        .constant("HIGHEST", format!("{}.0", raise - 1))
        .push(piece(PACKED, if packs { "pack" } else { "pack_nothing" }))
        .push(piece(PACKED, "round"))
        .push(piece(NUMBERS, "main"))
        .finish()
}

/// Returns what opens packed blocks.
pub(super) fn unpack(how: PackedKv) -> Shader {
    let bindings = [("packed", "u32", Ro), ("blocks", "u32", Ro), ("keys", "u32", Rw), ("values", "u32", Rw)];
    source(&bindings, how).push(piece(PACKED, "unpack")).push(piece(NUMBERS, "main")).finish()
}
