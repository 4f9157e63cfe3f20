//! Reads numbers of the command line. Pure. Always: an error says what a valid number looks like.

use std::num::NonZeroUsize;
use std::str::FromStr;

/// Reads a whole number.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| not_whole(text, 0))
}

/// Reads a whole number, 1 or more.
pub(crate) fn positive(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| not_whole(text, 1))
}

/// Reads a number that may have a fraction.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be a number".to_owned())
}

fn not_whole(text: &str, least: u8) -> String {
    let is_whole = text.bytes().all(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte != b'0');
    if is_whole {
        "it is too large".to_owned()
    } else {
        format!("it must be a whole number, {least} or more")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_told_what_one_is() {
        assert_eq!((whole("7"), positive("7")), (Ok(7_u32), Ok(NonZeroUsize::new(7).unwrap())));
        assert_eq!(number("-0.5"), Ok(-0.5_f64));
        for text in ["", "-1", "x", "1.5"] {
            assert_eq!(whole::<u8>(text), Err("it must be a whole number, 0 or more".to_owned()), "{text}");
        }
        assert_eq!(whole::<u8>("256"), Err("it is too large".to_owned()));
        assert_eq!(positive("0"), Err("it must be a whole number, 1 or more".to_owned()));
        assert_eq!(number::<f32>("x"), Err("it must be a number".to_owned()));
    }
}
