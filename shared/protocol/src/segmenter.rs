//! Segmenter `s1`: splits a text into units, nearly always sentences, in the same way on device and cloud.
//!
//! It has frozen tables, no locale and no model: the same bytes give the same boundaries. It accepts any
//! string, takes time linear in its length, and the units concatenated are the input. After a release, any
//! change of behaviour is a new segmenter with a new name and number, never a change of this one.
//!
//! Rules (`tests/golden` shows all of them):
//!
//! - Blank lines, list items, headings, table rows and fenced code are hard boundaries; each line of code is
//!   a unit.
//! - Soft-wrapped lines are joined.
//! - `. ! ?` end a sentence only before white space or the end of the block; CJK marks end it anywhere.
//! - Closing quotes and brackets stay with the sentence; opening ones start the next.
//! - No sentence ends after an abbreviation, an initial or a list number, nor inside a number, a date of
//!   numbers or an address.
//! - No sentence ends at a semicolon in brackets, nor if a Japanese sentence goes on after a quotation.
//! - A unit of more than 64 words (or CJK characters) is cut, if possible at the end of a clause and outside
//!   brackets.

mod cut;
mod lines;
mod prose;
mod tables;

use std::ops::Range;

pub use tables::is_cjk;

use lines::{BlockKind, blocks};

/// Name of this segmenter on the wire.
pub const SEGMENTER_NAME: &str = "s1";
/// Number of this segmenter in a mask's second byte.
pub const SEGMENTER_ID: u8 = 1;

/// Returns the byte ranges of the units of `text`, in order and without gaps. No range is empty; an empty
/// text has none.
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    units(text).into_iter().map(|unit| unit.bytes).collect()
}

/// A unit, and what the segmenter knows about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextUnit {
    pub bytes: Range<usize>,
    /// Paragraph number, counted from 0 within the text.
    pub paragraph: usize,
    /// Level of a title line (1 is the highest), or `None` for other units.
    pub title_level: Option<u8>,
    /// The unit is the first of its block, so it must start a line.
    pub starts_line: bool,
}

pub(crate) fn units(text: &str) -> Vec<TextUnit> {
    let mut units = Vec::new();
    for block in blocks(text) {
        let content = &text[block.bytes.clone()];
        let sentence_ends = match block.kind {
            BlockKind::Prose => prose::sentence_ends(content),
            BlockKind::Title(_) | BlockKind::Line => vec![content.len()],
        };
        let title_level = match block.kind {
            BlockKind::Title(level) => Some(level),
            BlockKind::Prose | BlockKind::Line => None,
        };
        let mut start = 0;
        for sentence_end in sentence_ends {
            let sentence = start;
            for piece_end in cut::piece_ends(&content[sentence..sentence_end]) {
                let end = sentence + piece_end;
                units.push(TextUnit {
                    bytes: block.bytes.start + start..block.bytes.start + end,
                    paragraph: block.paragraph,
                    title_level,
                    starts_line: start == 0,
                });
                start = end;
            }
        }
    }
    units
}

#[cfg(test)]
mod tests;
