//! Sizes as people read them.

/// Formats a number of bytes, in MB below a GB, in GB above.
pub fn size(bytes: u64) -> String {
    if bytes < 1_000_000_000 {
        format!("{:.1} MB", bytes as f64 / 1e6)
    } else {
        format!("{:.2} GB", bytes as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_round_numbers() {
        assert_eq!([0, 512 << 20, 12_884_901_888].map(size), ["0.0 MB", "536.9 MB", "12.88 GB"]);
    }
}
