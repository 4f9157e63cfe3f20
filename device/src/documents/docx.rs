//! Documents of Word: a zip archive, whose `word/document.xml` holds paragraphs and tables.
//!
//! Source: ECMA-376, part 1, section 17 (WordprocessingML). Text of headers, footers and notes is left out.

use std::io::{Cursor, Read as _};

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use zip::ZipArchive;

/// The part with the text.
const PART: &str = "word/document.xml";
/// What begins a zip archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// Most bytes of the part: an archive may say that it holds more than a disk.
const PART_BYTES_MAX: u64 = 256 << 20;

/// Whether it is an archive with that part.
pub(super) fn is_docx(bytes: &[u8]) -> bool {
    bytes.starts_with(ZIP)
        && ZipArchive::new(Cursor::new(bytes)).is_ok_and(|archive| archive.index_for_name(PART).is_some())
}

/// Returns the text: a line for each paragraph, tabs between the cells of a table.
pub(super) fn text(bytes: &[u8]) -> Result<String, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|err| err.to_string())?;
    let part = archive.by_name(PART).map_err(|err| err.to_string())?;
    let mut xml = Vec::new();
    part.take(PART_BYTES_MAX + 1).read_to_end(&mut xml).map_err(|err| err.to_string())?;
    if xml.len() as u64 > PART_BYTES_MAX {
        return Err(format!("its text part has more than {PART_BYTES_MAX} bytes"));
    }
    paragraphs(&xml)
}

fn paragraphs(xml: &[u8]) -> Result<String, String> {
    let mut reader = Reader::from_reader(xml);
    let (mut out, mut in_text, mut cell) = (String::new(), false, 0_usize);
    loop {
        match reader.read_event().map_err(|err| err.to_string())? {
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
}
