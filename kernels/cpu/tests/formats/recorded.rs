//! The formats against vectors that `record_formats.py` recorded from another implementation.

use baton_kernels_cpu::{Format, dequantize_row, quantize_row};

const RECORD: &str = include_str!("../data/formats.txt");

/// Returns the other words of the lines that begin with `kind`.
fn lines(kind: &str) -> impl Iterator<Item = Vec<&'static str>> {
    RECORD
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(move |words| words[0] == kind)
        .map(|words| words[1..].to_vec())
}

/// Returns the codebook of a format: four hexadecimal digits per code, two bytes little-endian.
pub(crate) fn grid(format: Format) -> &'static str {
    let of_format =
        |line: &'static str| line.strip_prefix("grid ")?.strip_prefix(format.name())?.strip_prefix(' ');
    RECORD.lines().find_map(of_format).expect("the record has the codebook")
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).expect("the record is hexadecimal") as u8;
    hex.as_bytes().as_chunks().0.iter().map(|&[high, low]| 16 * digit(high) + digit(low)).collect()
}

fn format(name: &str) -> Format {
    Format::ALL.into_iter().find(|format| format.name() == name).expect("a format of ours")
}

fn fnv1a(data: impl Iterator<Item = u8>) -> u64 {
    data.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn dequantization_gives_the_recorded_bits() {
    let mut seen = Vec::new();
    for words in lines("dequantize") {
        let [name, block, hash] = words[..] else { panic!("a line of {} words", words.len()) };
        let (format, block) = (format(name), bytes(block));
        let mut floats = vec![0.0; block.len() / format.block_bytes() * format.block_len()];
        dequantize_row(format, &block, &mut floats).unwrap();
        let have = fnv1a(floats.iter().flat_map(|v| v.to_le_bytes()));
        assert_eq!(format!("{have:016x}"), hash, "{name} block {block:02x?}");
        seen.push(format);
    }
    let missing: Vec<Format> = Format::ALL.into_iter().filter(|format| !seen.contains(format)).collect();
    assert_eq!(missing, [Format::F32, Format::F16], "formats without a record");
}

#[test]
fn quantizers_give_the_recorded_bytes() {
    let mut seen = 0;
    for words in lines("quantize") {
        let [name, floats, blocks] = words[..] else { panic!("a line of {} words", words.len()) };
        let floats: Vec<f32> = bytes(floats).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut have = Vec::new();
        quantize_row(format(name), &floats, &mut have).unwrap();
        assert_eq!(have, bytes(blocks), "{name} of {floats:?}");
        seen += 1;
    }
    assert_eq!(seen, 36);
}
