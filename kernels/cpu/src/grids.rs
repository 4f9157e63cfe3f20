//! The tables of values that the codebook formats are defined by, for kernel sets that run elsewhere.

use crate::blocks::{
    IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, IQ4_VALUES, MXFP4_VALUES, TERNARY_GRID,
};
use crate::format::Format;

/// Returns the codebook of a format as words of four members each, the first member in the lowest byte.
///
/// A code of the IQ1 and IQ2 formats has eight members, so code `n` begins at word `2 n`. A code of the IQ3
/// formats has four members: word `n`. IQ1_S and IQ1_M have 2,048 codes of -1, 0 and 1, raised to 0, 1 and 2.
/// The others have magnitudes: IQ2_XXS 256 codes, IQ2_XS 512, IQ2_S 1,024 and IQ3_S 512. IQ3_XXS has 256
/// codes of halved magnitudes. The result is empty for formats without a codebook.
pub fn codebook(format: Format) -> Vec<u32> {
    fn words<const MEMBERS: usize>(grid: &[[u8; MEMBERS]]) -> Vec<u32> {
        grid.as_flattened().as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }
    match format {
        Format::Iq1S | Format::Iq1M => words(&TERNARY_GRID),
        Format::Iq2Xxs => words(&IQ2_XXS_GRID),
        Format::Iq2Xs => words(&IQ2_XS_GRID),
        Format::Iq2S => words(&IQ2_S_GRID),
        Format::Iq3Xxs => words(&IQ3_XXS_GRID),
        Format::Iq3S => words(&IQ3_S_GRID),
        _ => Vec::new(),
    }
}

/// Returns the sixteen values that the nibbles of a format number, or `None` if nibbles are values themselves
/// or the format has none. Those of IQ4_NL and IQ4_XS are ggml's; those of MXFP4 are doubled, so the scale is
/// `2^(e - 128)`.
pub const fn nibble_values(format: Format) -> Option<[i8; 16]> {
    match format {
        Format::Iq4Nl | Format::Iq4Xs => Some(IQ4_VALUES),
        Format::Mxfp4 => Some(MXFP4_VALUES),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codebooks_have_their_sizes() {
        let sizes = [
            (Format::Iq1S, 4_096),
            (Format::Iq2Xxs, 512),
            (Format::Iq2Xs, 1_024),
            (Format::Iq2S, 2_048),
            (Format::Iq3Xxs, 256),
            (Format::Iq3S, 512),
            (Format::Q4_0, 0),
        ];
        for (format, words) in sizes {
            assert_eq!(codebook(format).len(), words, "{}", format.name());
        }
        assert_eq!(codebook(Format::Iq2Xs)[..2], [0x0808_0808; 2]);
    }
}
