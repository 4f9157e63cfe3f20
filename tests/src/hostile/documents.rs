//! Documents that break the libraries which read them.
//!
//! All are made here, byte by byte. What always holds: the same name or seed gives the same bytes.

use std::io::{Cursor, Write as _};

use baton_random::SplitMix64;
use flate2::write::ZlibEncoder;
use flate2::{Compress, Compression, FlushCompress};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A document with its name.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its file name.
    pub name: String,
    /// The file.
    pub bytes: Vec<u8>,
}

impl Document {
    /// Makes a document.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Document {
        Document { name: name.into(), bytes }
    }
}

/// Makes a PDF of these objects, numbered from 1; the first is the catalog.
#[must_use]
pub fn pdf(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"%PDF-1.5\n".to_vec();
    let mut starts = Vec::new();
    for (number, object) in (1..).zip(objects) {
        starts.push(out.len());
        out.extend_from_slice(format!("{number} 0 obj\n").as_bytes());
        out.extend_from_slice(object);
        out.extend_from_slice(b"\nendobj\n");
    }
    let table = out.len();
    let size = objects.len() + 1;
    out.extend_from_slice(format!("xref\n0 {size}\n0000000000 65535 f \n").as_bytes());
    for start in starts {
        out.extend_from_slice(format!("{start:010} 00000 n \n").as_bytes());
    }
    let end = format!("trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n");
    out.extend_from_slice(end.as_bytes());
    out
}

/// Makes a stream object; `more` stands in its dictionary.
fn stream(more: &str, data: &[u8]) -> Vec<u8> {
    let head = format!("<< /Length {} {more} >>\nstream\n", data.len());
    [head.as_bytes(), data, b"\nendstream"].concat()
}

const CATALOG: &str = "<< /Type /Catalog /Pages 2 0 R >>";
const PAGES: &str = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>";
const FONT: &str = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>";

/// Makes a PDF of one page with this content and these entries of its resources. Further objects have the
/// numbers from 6 on.
fn page(content: Vec<u8>, resources: &str, more: Vec<Vec<u8>>) -> Vec<u8> {
    let page = format!(
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> {resources} >> >>"
    );
    let mut objects = vec![CATALOG.into(), PAGES.into(), page.into_bytes(), content, FONT.into()];
    objects.extend(more);
    pdf(&objects)
}

/// Makes a PDF of one page that shows these lines, with a packed content.
///
/// # Panics
/// Never: packing to memory does not fail.
#[must_use]
pub fn text_pdf(lines: &[&str]) -> Vec<u8> {
    let shown: String = lines.iter().map(|line| format!("({line}) Tj 0 -14 Td ")).collect();
    let content = format!("BT /F1 12 Tf 72 720 Td {shown}ET");
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(content.as_bytes()).expect("memory takes all bytes");
    let packed = packed.finish().expect("memory takes all bytes");
    page(stream("/Filter /FlateDecode", &packed), "", Vec::new())
}

/// Makes a form that draws the content, with these forms in its resources.
fn form(content: &str, forms: &str) -> Vec<u8> {
    let more = format!(
        "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /Font << /F1 5 0 R >> /XObject << {forms} >> >>"
    );
    stream(&more, content.as_bytes())
}

/// A page of which each form draws the next one twice, 2^`depth` in all.
fn doubling(depth: usize) -> Vec<u8> {
    let forms = (0..depth).map(|nth| form("/X Do /X Do", &format!("/X {} 0 R", 7 + nth)));
    let last = form("BT /F1 1 Tf (a) Tj ET", "");
    page(stream("", b"/X Do"), "/XObject << /X 6 0 R >>", forms.chain([last]).collect())
}

/// A packed stream of so many MiB of one byte, made of one packed MiB. Its check sum is wrong, which a reader
/// finds at its end.
fn bomb(byte: u8, mib: usize) -> Vec<u8> {
    let mut packed = Vec::with_capacity(4096);
    let mut packer = Compress::new(Compression::best(), false);
    packer.compress_vec(&vec![byte; 1 << 20], &mut packed, FlushCompress::Full).expect("bytes can be packed");
    [&[0x78, 0xda][..], packed.repeat(mib).as_slice(), &[3, 0, 0, 0, 0, 0]].concat()
}

/// Makes a DOCX whose text part is `xml`.
///
/// # Panics
/// Never: packing to memory does not fail.
#[must_use]
pub fn docx(xml: &[u8]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, content) in [("[Content_Types].xml", &b"<Types/>"[..]), ("word/document.xml", xml)] {
        archive.start_file(name, options).expect("memory takes all bytes");
        archive.write_all(content).expect("memory takes all bytes");
    }
    archive.finish().expect("memory takes all bytes").into_inner()
}

/// Makes the text part of a DOCX with these paragraphs.
#[must_use]
pub fn paragraphs(texts: &[&str]) -> String {
    let body: String = texts.iter().map(|text| format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")).collect();
    format!(
        "<?xml version=\"1.0\"?><w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:body>{body}</w:body></w:document>"
    )
}

/// A PDF whose reading takes time without end and hardly any memory: to be given up.
#[must_use]
pub fn endless() -> Document {
    Document::new("doubling-forms.pdf", doubling(40))
}

/// Documents of the kinds that break readers, and what their errors say. Each needs more memory, time or
/// stack than a reader has.
#[must_use]
pub fn breaking() -> Vec<(Document, &'static str)> {
    let own_parent = b"<< /Type /Page /Parent 3 0 R /Contents 4 0 R >>".to_vec();
    let own_parent = pdf(&[CATALOG.into(), PAGES.into(), own_parent, stream("", b"q Q")]);
    let drawn = stream("", b"/X Do");
    let in_itself = page(drawn, "/XObject << /X 6 0 R >>", vec![form("/X Do", "/X 6 0 R")]);
    let flate = "/Filter /FlateDecode";
    let unpacked = page(stream(flate, &bomb(b' ', 1536)), "", Vec::new());
    let mut twice = ZlibEncoder::new(Vec::new(), Compression::best());
    twice.write_all(&bomb(b' ', 1536)).expect("memory takes all bytes");
    let twice = twice.finish().expect("memory takes all bytes");
    let twice = page(stream("/Filter [/FlateDecode /FlateDecode]", &twice), "", Vec::new());
    let elements = |open: &str| format!("<!doctype html>{}deep", open.repeat(40_000)).into_bytes();
    let long = "a".repeat(200 << 20);
    vec![
        (Document::new("page-its-own-parent.pdf", own_parent), "nests too deeply"),
        (Document::new("form-in-itself.pdf", in_itself), "nests too deeply"),
        (Document::new("unpacked.pdf", unpacked), "MiB of memory"),
        (Document::new("unpacked-twice.pdf", twice), "MiB of memory"),
        (Document::new("divs.html", elements("<div>")), "deep"),
        (Document::new("tables.html", elements("<table><tr><td>")), "deep"),
        (Document::new("long-word.docx", docx(paragraphs(&[&long]).as_bytes())), "MiB of memory"),
        (
            Document::new("many-words.docx", docx(paragraphs(&vec!["Rivers are wet."; 400_000]).as_bytes())),
            "more than",
        ),
        (Document::new("no-word.docx", docx(b"").into_iter().take(90).collect()), "DOCX cannot be read"),
    ]
}

/// Returns a PDF or a DOCX that was broken at random, by this seed.
#[must_use]
pub fn mutated(seed: u64) -> Document {
    let mut random = SplitMix64::new(seed);
    match seed % 4 {
        0 => Document::new(format!("mutated-{seed}.docx"), broken(docx(&words()), &mut random)),
        1 => Document::new(format!("mutated-{seed}.docx"), docx(&broken(words(), &mut random))),
        2 => {
            let sound = text_pdf(&["Rivers are long and deep.", "Lakes are wide."]);
            Document::new(format!("mutated-{seed}.pdf"), broken(sound, &mut random))
        }
        _ => Document::new(format!("mutated-{seed}.pdf"), broken(doubling(3), &mut random)),
    }
}

fn words() -> Vec<u8> {
    paragraphs(&["Rivers are long &amp; deep.", "Lakes are wide."]).into_bytes()
}

/// Breaks a few places: bits, digits, and pieces that are lost, doubled or moved.
fn broken(mut bytes: Vec<u8>, random: &mut SplitMix64) -> Vec<u8> {
    for _ in 0..=random.below(6) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let len = random.below(32.min(bytes.len() - at));
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let piece = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
            4 => bytes.truncate(at.max(bytes.len() / 2)),
            // Another number: lengths, places and names of objects.
            _ => {
                let digit = bytes[at..].iter().position(u8::is_ascii_digit);
                if let Some(digit) = digit {
                    bytes[at + digit] = b'0' + random.below(10) as u8;
                }
            }
        }
    }
    bytes
}
