//! What the formats with codebooks share: tables of vectors that codes number, and magnitudes with signs.

/// Returns the vectors whose bits are set in `coded` (bit `n % 32` of word `n / 32` for vector `n`), in
/// ascending order of their numbers. Member `i` of vector `n` is `values[n / VALUES^i % VALUES]`.
///
/// # Panics
/// If fewer than `CODES` bits are set; while compiling, because codebooks are constants.
pub(super) const fn codebook<const CODES: usize, const MEMBERS: usize, const VALUES: usize>(
    coded: &[u32],
    values: [u8; VALUES],
) -> [[u8; MEMBERS]; CODES] {
    let mut book = [[0; MEMBERS]; CODES];
    let (mut code, mut number) = (0, 0);
    while code < CODES {
        if coded[number / 32] >> (number % 32) & 1 == 1 {
            let (mut rest, mut i) = (number, 0);
            while i < MEMBERS {
                book[code][i] = values[rest % VALUES];
                rest /= VALUES;
                i += 1;
            }
            code += 1;
        }
        number += 1;
    }
    book
}

/// The signs of eight weights from the seven that are stored. The eighth is the one that makes the number of
/// negative weights even.
static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut seven = 0;
    while seven < 128 {
        signs[seven] = seven as u8 | (seven.count_ones() as u8 & 1) << 7;
        seven += 1;
    }
    signs
};

/// Returns the signs of eight weights, one bit each, from the lowest seven bits of `seven`.
#[inline(always)]
pub(super) fn even_signs(seven: u32) -> u8 {
    EVEN_SIGNS[(seven & 127) as usize]
}

/// Returns `raise + v` for eight magnitudes `v`, and `raise - v` where the bit of `signs` is set. No
/// magnitude is above `raise`, and `raise` is at most 64, so no byte borrows from the next.
#[inline(always)]
pub(super) fn signed(magnitudes: [u8; 8], signs: u8, raise: u8) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Byte `i` keeps bit `i` of the signs; adding 0x7f moves it to the highest bit.
    let bits = (u64::from(signs) * ONES) & 0x8040_2010_0804_0201;
    let negative = ((bits + 0x7f * ONES) >> 7 & ONES) * 0xff;
    let magnitudes = u64::from_le_bytes(magnitudes);
    (u64::from(raise) * ONES + magnitudes - 2 * (magnitudes & negative)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_change_the_weights_whose_bits_are_set() {
        let magnitudes = [0, 1, 8, 25, 31, 43, 62, 64];
        for signs in 0..=u8::MAX {
            let want = std::array::from_fn(|i| {
                if signs >> i & 1 == 1 { 64 - magnitudes[i] } else { 64 + magnitudes[i] }
            });
            assert_eq!(signed(magnitudes, signs, 64), want, "signs {signs:08b}");
        }
    }

    #[test]
    fn stored_signs_make_an_even_number_of_negative_weights() {
        for seven in 0..128 {
            let signs = even_signs(seven);
            assert_eq!((u32::from(signs) & 127, signs.count_ones() % 2), (seven, 0));
            assert_eq!(even_signs(seven | 0xffff_ff80), signs, "higher bits are not read");
        }
    }
}
