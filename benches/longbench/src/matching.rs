//! Similarity of two lines of code: the ratio of Python's `difflib.SequenceMatcher`, rounded like
//! `fuzzywuzzy`.
//!
//! Source: Ratcliff and Metzener 1988 (gestalt pattern matching), with a rule of `difflib`. In a second line
//! of 200 characters or more, a character that makes up more than 1 % of it never starts a match.

use std::collections::HashMap;
use std::ops::Range;

/// Minimum length of the second text for which frequent characters are left out.
const POPULAR_FROM: usize = 200;

/// Returns `fuzzywuzzy.fuzz.ratio`: 0..=100, rounded to an integer, halves to the even one.
pub(crate) fn ratio_percent(first: &str, second: &str) -> f64 {
    if first == second {
        return 100.0;
    }
    if first.is_empty() || second.is_empty() {
        return 0.0;
    }
    let matcher = Matcher::new(first, second);
    let len = (matcher.first.len() + matcher.second.len()) as f64;
    (100.0 * (2.0 * matcher.matched() as f64 / len)).round_ties_even()
}

struct Matcher {
    first: Vec<char>,
    second: Vec<char>,
    /// Positions of each character in the second text, in ascending order, without frequent characters.
    positions: HashMap<char, Vec<usize>>,
}

impl Matcher {
    fn new(first: &str, second: &str) -> Matcher {
        let second: Vec<char> = second.chars().collect();
        let mut positions: HashMap<char, Vec<usize>> = HashMap::new();
        for (at, &c) in second.iter().enumerate() {
            positions.entry(c).or_default().push(at);
        }
        if second.len() >= POPULAR_FROM {
            let most = second.len() / 100 + 1;
            positions.retain(|_, places| places.len() <= most);
        }
        Matcher { first: first.chars().collect(), second, positions }
    }

    /// Returns the number of characters in matching blocks.
    fn matched(&self) -> usize {
        let mut open = vec![(0..self.first.len(), 0..self.second.len())];
        let mut total = 0;
        while let Some((first, second)) = open.pop() {
            let (i, j, size) = self.longest_match(first.clone(), second.clone());
            if size > 0 {
                total += size;
                open.push((first.start..i, second.start..j));
                open.push((i + size..first.end, j + size..second.end));
            }
        }
        total
    }

    /// Returns the start positions and the length of the longest block within both ranges; of equally long
    /// ones, the earliest.
    fn longest_match(&self, first: Range<usize>, second: Range<usize>) -> (usize, usize, usize) {
        let (mut i, mut j, mut size) = (first.start, second.start, 0);
        // Lengths of the blocks that end at each position of the second text and at the previous row.
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for row in first.clone() {
            let mut next = HashMap::new();
            for &at in self.positions.get(&self.first[row]).into_iter().flatten() {
                if at < second.start {
                    continue;
                }
                if at >= second.end {
                    break;
                }
                let len = 1 + at.checked_sub(1).and_then(|before| lengths.get(&before)).copied().unwrap_or(0);
                next.insert(at, len);
                if len > size {
                    (i, j, size) = (row + 1 - len, at + 1 - len, len);
                }
            }
            lengths = next;
        }
        // Frequent characters do not start a block, but they extend a block next to them.
        while i > first.start && j > second.start && self.first[i - 1] == self.second[j - 1] {
            (i, j, size) = (i - 1, j - 1, size + 1);
        }
        while i + size < first.end && j + size < second.end && self.first[i + size] == self.second[j + size] {
            size += 1;
        }
        (i, j, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_difflib() {
        // difflib's own example: "abcd" and "bcde" share 3 of 8 characters twice.
        assert_eq!(ratio_percent("abcd", "bcde"), 75.0);
        assert_eq!(ratio_percent("", ""), 100.0);
        assert_eq!(ratio_percent("", "x"), 0.0);
        // 2 * 1 / 16 = 12.5 %, rounded to the even 12.
        assert_eq!(ratio_percent("abcdefgh", "aijklmno"), 12.0);
        // All characters are frequent, so no block can start.
        assert_eq!(ratio_percent(&"ab".repeat(100), &"ba".repeat(100)), 0.0);
    }
}
