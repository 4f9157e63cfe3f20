//! Sizes of memory as users write them.

use std::str::FromStr;

/// The units and their bytes.
const UNITS: [(&str, f64); 6] =
    [("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];

/// The most bytes that a size may have.
const BYTES_MAX: f64 = 1e18;

/// Reads a number with one of the units KB, MB, GB, KiB, MiB and GiB, such as `2GB` or `1.5 MiB`. Returns
/// `None` if the text is anything else.
pub fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0 && number * unit < BYTES_MAX).then_some((number * unit) as u64)
}

/// The text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no amount of GPU memory: want a size like 6GB or 512MiB")]
pub struct SizeError(String);

/// The most bytes of a GPU's memory that a program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VramLimit(pub u64);

impl FromStr for VramLimit {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        bytes_of(text).map(Self).ok_or_else(|| SizeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, want) in [
            ("6GB", 6_000_000_000),
            ("512MiB", 512 << 20),
            ("1.5 MiB", 3 << 19),
            ("0KB", 0),
            ("2e1KiB", 20 << 10),
            ("7 GiB", 7 << 30),
        ] {
            assert_eq!(bytes_of(text), Some(want), "{text}");
        }
        for bad in ["", "6", "GB", "-1GB", "NaNGB", "infGB", "1e30GB", "2TB", "2gb", "6e9", "GB6"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_wrong_limit_is_refused_with_an_example() {
        assert_eq!("6GB".parse(), Ok(VramLimit(6_000_000_000)));
        let said = "all".parse::<VramLimit>().unwrap_err().to_string();
        assert_eq!(said, "`all` is no amount of GPU memory: want a size like 6GB or 512MiB");
    }
}
