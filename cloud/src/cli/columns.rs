//! Writes lists with aligned columns. Pure, except that it writes to `out`. Always: a row is one line, and a
//! column is as wide as its widest cell.

use std::io::{self, Write};
use std::iter;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Writes the titles, then the rows.
pub(super) fn write<const N: usize>(
    columns: [(&str, Side); N],
    rows: impl IntoIterator<Item = [String; N]>,
    out: &mut impl Write,
) -> io::Result<()> {
    let titles = columns.map(|(title, _)| title.to_owned());
    let lines: Vec<[String; N]> = iter::once(titles).chain(rows).map(|row| row.map(one_line)).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    if let Some((_, Side::Left)) = columns.last() {
        // The last column needs no padding.
        widths[N - 1] = 0;
    }
    for line in &lines {
        let mut text = String::new();
        for ((cell, width), (_, side)) in line.iter().zip(widths).zip(columns) {
            let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
            match side {
                Side::Left => text.extend([cell.as_str(), &blanks, " "]),
                Side::Right => text.extend([&blanks, cell.as_str(), " "]),
            }
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Replaces control characters by spaces, so that a cell stays on one line.
pub(super) fn one_line(text: String) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_what_stands_in_them() {
        let mut out = Vec::new();
        let row = |id: &str, n: &str, label: &str| [id, n, label].map(str::to_owned);
        let rows = [row("a-long-name", "7", "two\nlines"), row("ü", "1000", "")];
        write([("id", Side::Left), ("n", Side::Right), ("label", Side::Left)], rows, &mut out).unwrap();
        let want = "id             n label\na-long-name    7 two lines\nü           1000\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
