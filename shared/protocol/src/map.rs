//! The sentence map: the units of a prompt's refinable segments. Both sides compute it from the same bytes.

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::request::Segment;
use crate::segmenter::units;

/// One unit of the text; each bit of a mask stands for one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Index of its segment in the prompt.
    pub segment: usize,
    /// Byte range in that segment's text, white space after the sentence included.
    pub bytes: Range<usize>,
    /// Paragraph number, counted from 0 over all refinable segments; a paragraph never spans two segments.
    pub paragraph: usize,
    /// The unit is a title line, that is a heading of the text after it.
    pub title: bool,
    /// The unit is the first of its block (list item, code line, table row, paragraph), so it must start a
    /// line.
    pub starts_line: bool,
    /// Index of the nearest title line above that governs this unit; a higher title may govern that one.
    pub governed_by: Option<usize>,
}

/// The units of all refinable segments of a prompt, in order.
///
/// What always holds: the units of one segment cover its text without gaps, and a segment's end is a unit's
/// end. The digest and the checksum depend only on the indices and bytes of the refinable segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceMap {
    units: Vec<Unit>,
    content_sha256: String,
    crc32: u32,
}

impl SentenceMap {
    /// Splits the refinable segments into units. Cost: linear in the length of their text.
    pub fn new(segments: &[Segment]) -> Self {
        let mut all = Vec::new();
        let mut paragraphs = 0;
        let mut digest = Sha256::new();
        let mut crc = crc32fast::Hasher::new();
        for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.refine) {
            digest.update((index as u64).to_le_bytes());
            digest.update((segment.text.len() as u64).to_le_bytes());
            digest.update(segment.text.as_bytes());
            let first = all.len();
            let mut titles: Vec<(u8, usize)> = Vec::new();
            for unit in units(&segment.text) {
                crc.update(&(index as u64).to_le_bytes());
                crc.update(&(unit.bytes.end as u64).to_le_bytes());
                let own = all.len();
                let continues =
                    all.last().is_some_and(|last: &Unit| own > first && last.title && !unit.starts_line);
                if let (Some(level), false) = (unit.title_level, continues) {
                    titles.retain(|&(above, _)| above < level);
                }
                let governed_by = titles.last().map(|&(_, title)| title);
                if let (Some(level), false) = (unit.title_level, continues) {
                    titles.push((level, own));
                }
                all.push(Unit {
                    segment: index,
                    bytes: unit.bytes,
                    paragraph: paragraphs + unit.paragraph,
                    title: unit.title_level.is_some(),
                    starts_line: unit.starts_line,
                    governed_by,
                });
            }
            if let Some(last) = all.last().filter(|_| all.len() > first) {
                paragraphs = last.paragraph + 1;
            }
        }
        Self { units: all, content_sha256: hex::encode(digest.finalize()), crc32: crc.finalize() }
    }

    /// Returns the number of units, which is the number of bits in a mask.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Returns whether there is nothing to refine.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Returns one unit.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn unit(&self, index: usize) -> &Unit {
        &self.units[index]
    }

    /// Returns all units, in order.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Returns the indices of the title lines that govern a unit, nearest first.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn titles_of(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.units[index].governed_by, |&title| self.units[title].governed_by)
    }

    /// Returns the SHA-256 over index, length and bytes of each refinable segment, as 64 lower-case hex
    /// digits.
    pub fn content_sha256(&self) -> &str {
        &self.content_sha256
    }

    /// Returns the CRC-32 (IEEE) over the boundary list: for each unit the segment index and the end, each as
    /// 8 bytes, little-endian.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Role;

    fn map(texts: &[(&str, bool)]) -> SentenceMap {
        let segments: Vec<Segment> = texts
            .iter()
            .map(|&(text, refine)| Segment { refine, ..Segment::fixed(Role::User, text) })
            .collect();
        SentenceMap::new(&segments)
    }

    #[test]
    fn only_refinable_segments_have_units_and_segment_ends_are_unit_ends() {
        let map =
            map(&[("You answer.", false), ("One two", true), (" three. Four.", true), ("Question?", false)]);
        let spans: Vec<_> = map.units().iter().map(|u| (u.segment, u.bytes.clone(), u.paragraph)).collect();
        assert_eq!(spans, [(1, 0..7, 0), (2, 0..8, 1), (2, 8..13, 1)]);
    }

    #[test]
    fn digest_and_checksum_follow_the_content_only() {
        let base = map(&[("s", false), ("One. Two.", true), ("q", false)]);
        let same = map(&[("other", false), ("One. Two.", true), ("another question", false)]);
        assert_eq!((base.content_sha256(), base.crc32()), (same.content_sha256(), same.crc32()));
        let text = map(&[("s", false), ("One. Twa.", true)]);
        assert_ne!(base.content_sha256(), text.content_sha256());
        assert_eq!(base.crc32(), text.crc32(), "same boundaries, same checksum");
        let boundary = map(&[("s", false), ("One, Two.", true)]);
        assert_ne!(base.crc32(), boundary.crc32());
        let moved = map(&[("One. Two.", true)]);
        assert_ne!(base.content_sha256(), moved.content_sha256());
        assert_ne!(base.crc32(), moved.crc32());
        let split = map(&[("s", false), ("One. ", true), ("Two.", true)]);
        assert_ne!(base.content_sha256(), split.content_sha256());
    }

    #[test]
    fn the_digest_is_pinned() {
        let map = map(&[("One. Two.", true)]);
        let mut digest = Sha256::new();
        digest.update([0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        digest.update(b"One. Two.");
        assert_eq!(map.content_sha256(), hex::encode(digest.finalize()));
        let mut crc = crc32fast::Hasher::new();
        crc.update(&[0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        crc.update(&[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(map.crc32(), crc.finalize());
    }

    #[test]
    fn titles_govern_what_follows_them() {
        let text =
            "The City Report\n\nThe harbour\nThe crane is red. It is old.\n\nThe tower\nThe roof is green.\n";
        let map = map(&[(text, true)]);
        let titles: Vec<usize> = (0..map.len()).filter(|&i| map.unit(i).title).collect();
        assert_eq!(titles, [0, 1, 4]);
        let of = |i: usize| map.titles_of(i).collect::<Vec<_>>();
        assert_eq!(of(0), [] as [usize; 0]);
        assert_eq!(of(1), [0]);
        assert_eq!(of(2), [1, 0]);
        assert_eq!(of(3), [1, 0]);
        assert_eq!(of(4), [0]);
        assert_eq!(of(5), [4, 0]);
    }

    #[test]
    fn heading_levels_nest_and_no_title_reaches_over_a_segment() {
        let one = "# A\n## B\nOne.\n### C\nTwo.\n## D\nThree.\n# E\nFour.\n";
        let map = map(&[(one, true), ("Five.", true)]);
        let of = |i: usize| map.titles_of(i).collect::<Vec<_>>();
        assert_eq!(of(2), [1, 0]);
        assert_eq!(of(4), [3, 1, 0]);
        assert_eq!(of(6), [5, 0]);
        assert_eq!(of(8), [7]);
        assert_eq!(of(9), [] as [usize; 0]);
    }

    #[test]
    fn nothing_to_refine_is_an_empty_map() {
        assert!(map(&[]).is_empty());
        assert!(map(&[("x", false), ("", true)]).is_empty());
    }
}
