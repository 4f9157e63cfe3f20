//! Documents of Word: a zip archive, whose `word/document.xml` holds paragraphs and tables.
//!
//! Source: ECMA-376, part 1, section 17 (WordprocessingML). Text of headers, footers and notes is left out.

use std::io::{BufRead, BufReader, Cursor, Read as _};

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use zip::ZipArchive;

use super::TEXT_BYTES_MAX;

/// The part with the text.
const PART: &str = "word/document.xml";
/// Most bytes of the part: an archive may say that it holds more than a disk.
const PART_BYTES_MAX: u64 = 256 << 20;
/// Most bytes of the text before empty lines and blanks are taken out.
const UNTIDY_BYTES_MAX: usize = 4 * TEXT_BYTES_MAX;

/// Returns the text: a line for each paragraph, tabs between the cells of a table.
pub(super) fn text(bytes: &[u8]) -> Result<String, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|err| err.to_string())?;
    if archive.index_for_name(PART).is_none() {
        return Err(format!("the archive is no document of Word: it has no `{PART}`"));
    }
    let part = archive.by_name(PART).map_err(|err| err.to_string())?;
    // Parsed while it is unpacked, so that the part is never in memory as a whole.
    let mut part = BufReader::new(part.take(PART_BYTES_MAX));
    let text = paragraphs(&mut part)?;
    match part.into_inner().limit() {
        0 => Err(format!("its text part has {PART_BYTES_MAX} bytes or more")),
        _ => Ok(text),
    }
}

/// Returns the text of the part with the text.
pub(super) fn paragraphs(xml: impl BufRead) -> Result<String, String> {
    let mut reader = Reader::from_reader(xml);
    let mut event = Vec::new();
    let (mut out, mut in_text, mut cell) = (String::new(), false, 0_usize);
    while out.len() <= UNTIDY_BYTES_MAX {
        event.clear();
        match reader.read_event_into(&mut event).map_err(|err| err.to_string())? {
            Event::Start(tag) => match tag.local_name().as_ref() {
                "t" => in_text = true,
                "tc" => cell += 1,
                _ => {}
            },
            Event::Empty(tag) => match tag.local_name().as_ref() {
                "tab" => out.push('\t'),
                "br" | "cr" => out.push('\n'),
                "p" if cell == 0 => out.push('\n'),
                _ => {}
            },
            Event::Text(text) if in_text => out.push_str(&text),
            Event::GeneralRef(name) if in_text => {
                let number = name.resolve_char_ref().map_err(|err| err.to_string())?;
                let named = || resolve_predefined_entity(&name);
                match number {
                    Some(letter) => out.push(letter),
                    None => out.push_str(named().unwrap_or_default()),
                }
            }
            Event::End(tag) => match tag.local_name().as_ref() {
                "t" => in_text = false,
                // Paragraphs of a cell are one line.
                "p" => out.push(if cell == 0 { '\n' } else { ' ' }),
                "tc" => {
                    cell = cell.saturating_sub(1);
                    out.push('\t');
                }
                "tr" => out.push('\n'),
                _ => {}
            },
            Event::Eof => return Ok(super::lines::tidied(&out)),
            _ => {}
        }
    }
    // Too long for a document, also once it is tidied.
    Ok(out)
}
