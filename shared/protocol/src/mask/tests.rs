//! Tests the mask codec: sizes, and that no wrong, cut or surplus data is accepted.

use proptest::prelude::*;

use super::*;
use crate::request::{Role, Segment};

/// Makes a map of `count` units.
fn map(count: usize) -> SentenceMap {
    let text: String = (0..count).map(|i| format!("Sentence {i}. ")).collect();
    let map = SentenceMap::new(&[Segment::refinable(Role::User, text)]);
    assert_eq!(map.len(), count);
    map
}

#[track_caller]
fn check(count: usize, kept: &[usize], want_bits: &[u8]) {
    let map = map(count);
    let flags: Vec<bool> = (0..count).map(|i| kept.contains(&i)).collect();
    let bytes = encode_mask(&map, &flags);
    assert_eq!(&bytes[bytes.len() - want_bits.len()..], want_bits);
    assert!(bytes.len() <= count.div_ceil(8) + MASK_OVERHEAD_MAX);
    assert_eq!(decode_mask(&map, &bytes).unwrap(), flags);
}

#[test]
fn bits_run_from_the_lowest() {
    check(1, &[0], &[1]);
    check(8, &[0, 7], &[0x81]);
    check(9, &[8], &[0, 1]);
    check(16, &[1, 9, 15], &[2, 0x82]);
}

#[test]
fn the_header_is_pinned() {
    let map = map(300);
    let bytes = encode_mask(&map, &[true; 300]);
    assert_eq!(bytes[..4], [0x11, 1, 0xac, 0x02]);
    assert_eq!(bytes[4..8], map.crc32().to_le_bytes());
    assert_eq!(bytes.len(), 8 + 38);
    assert_eq!(bytes[45], 0x0f);
}

#[test]
fn what_is_not_exactly_the_mask_is_refused() {
    let map10 = map(10);
    let good = encode_mask(&map10, &[true; 10]);
    let refused = |bytes: &[u8]| decode_mask(&map10, bytes).unwrap_err();
    for len in 0..good.len() {
        assert!(matches!(refused(&good[..len]), MaskError::Truncated { .. }), "{len} bytes");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(refused(&with(0, 0x12)), MaskError::Kind { got: 0x12, want: 0x11 });
    assert_eq!(refused(&with(0, 0x21)), MaskError::Kind { got: 0x21, want: 0x11 });
    assert!(matches!(refused(&with(1, 2)), MaskError::Segmenter { .. }));
    assert_eq!(refused(&with(2, 11)), MaskError::Count { got: 11, want: 10 });
    assert!(matches!(refused(&with(3, !good[3])), MaskError::Boundaries { .. }));
    assert_eq!(refused(&with(8, 0x07)), MaskError::Padding { count: 10 });
    assert_eq!(refused(&[good.as_slice(), &[0]].concat()), MaskError::Trailing { extra: 1 });
    assert_eq!(refused(&encode_mask(&map10, &[false; 10])), MaskError::Empty { count: 10 });
    let long_count = [&good[..2], &[0x8a, 0x00], &good[3..]].concat();
    assert_eq!(refused(&long_count), MaskError::Varint);
    let endless_count = [&good[..2], &[0xff; 6], &good[3..]].concat();
    assert_eq!(refused(&endless_count), MaskError::Varint);
    assert!(matches!(decode_mask(&map(11), &good), Err(MaskError::Count { .. })));
}

#[test]
fn an_empty_map_takes_no_mask() {
    let map = SentenceMap::new(&[]);
    let bytes = encode_mask(&map, &[]);
    assert_eq!(decode_mask(&map, &bytes), Err(MaskError::Empty { count: 0 }));
}

#[test]
fn a_token_mask_reads_back_and_guards_itself() {
    let flags: Vec<bool> = (0..1001).map(|i| i % 7 == 0).collect();
    let good = encode_token_mask(&flags);
    assert_eq!(good, encode_token_mask(&flags), "same bits, same bytes");
    assert_eq!(decode_token_mask(&good, 1001).unwrap(), flags);
    let refused = |bytes: &[u8]| decode_token_mask(bytes, 1001).unwrap_err();
    assert!(matches!(decode_token_mask(&good, 1002), Err(MaskError::Count { .. })));
    for len in 0..good.len() {
        let error = refused(&good[..len]);
        assert!(
            matches!(error, MaskError::Truncated { .. } | MaskError::Inflate { .. }),
            "{len} bytes: {error}"
        );
    }
    assert!(matches!(refused(&[good.as_slice(), &[0]].concat()), MaskError::Trailing { extra: 1 }));
    assert!(matches!(refused(&encode_token_mask(&[false; 1001])), MaskError::Empty { .. }));
    assert!(matches!(refused(&encode_mask(&map(3), &[true; 3])), MaskError::Kind { .. }));
    let mut crc = good.clone();
    let at = crc.len() - 6;
    crc[at] ^= 1;
    assert!(matches!(refused(&crc), MaskError::Inflate { .. }));
}

#[test]
fn a_gzip_bomb_is_not_inflated() {
    let mut bomb = encode_token_mask(&vec![true; 80_000_000]);
    let header = 2 + 4;
    let body = bomb.split_off(header);
    let forged = [vec![KIND_TOKEN, 0, 16], body].concat();
    assert!(forged.len() < 20_000);
    assert!(matches!(decode_token_mask(&forged, 16), Err(MaskError::Trailing { .. })));
}

proptest! {
    #[test]
    fn any_mask_reads_back(flags in prop::collection::vec(any::<bool>(), 1..600)) {
        let map = map(flags.len());
        let bytes = encode_mask(&map, &flags);
        prop_assert!(bytes.len() <= flags.len().div_ceil(8) + MASK_OVERHEAD_MAX);
        let tokens = decode_token_mask(&encode_token_mask(&flags), flags.len());
        if flags.contains(&true) {
            prop_assert_eq!(&decode_mask(&map, &bytes).unwrap(), &flags);
            prop_assert_eq!(&tokens.unwrap(), &flags);
        } else {
            let count = flags.len() as u64;
            prop_assert_eq!(decode_mask(&map, &bytes), Err(MaskError::Empty { count }));
            prop_assert_eq!(tokens, Err(MaskError::Empty { count }));
        }
    }

    #[test]
    fn any_bytes_are_a_mask_of_one_encoding_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let map = map(20);
        if let Ok(flags) = decode_mask(&map, &bytes) {
            prop_assert_eq!(encode_mask(&map, &flags), bytes.clone());
        }
        let _ = decode_token_mask(&bytes, 20).map(|flags| assert!(flags.contains(&true)));
    }

    #[test]
    fn a_changed_byte_never_gives_the_wrong_units(at in 0usize..11, byte: u8, flags in prop::collection::vec(any::<bool>(), 30)) {
        let map = map(30);
        let mut bytes = encode_mask(&map, &flags);
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        if let Ok(read) = decode_mask(&map, &bytes) {
            prop_assert_eq!(encode_mask(&map, &read), bytes);
        }
    }
}
