//! Each format's text is what a reader of it sees, and broken files are errors.

use std::io::{Cursor, Write as _};

use super::*;
use proptest::prelude::*;

/// Makes a PDF of one page with these lines.
fn pdf_of(lines: &[&str]) -> Vec<u8> {
    let shown: String = lines.iter().map(|line| format!("({line}) Tj 0 -14 Td ")).collect();
    let content = format!("BT /F1 12 Tf 72 720 Td {shown}ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    let mut out = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (number, object) in (1..).zip(&objects) {
        places.push(out.len());
        out += &format!("{number} 0 obj\n{object}\nendobj\n");
    }
    let table = out.len();
    out += &format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    places.iter().for_each(|place| out += &format!("{place:010} 00000 n \n"));
    out += &format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n", objects.len() + 1);
    out.into_bytes()
}

/// Makes a DOCX with this body.
fn docx_of(body: &str) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let xml = format!(
        "<?xml version=\"1.0\"?><w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:body>{body}</w:body></w:document>"
    );
    for (name, content) in [("[Content_Types].xml", "<Types/>"), ("word/document.xml", &xml)] {
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(content.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Returns the text in this process; `tests/suites/documents.rs` does the same with the shipped program.
#[track_caller]
fn text_of(bytes: Vec<u8>, name: &str, kind: Kind) -> String {
    assert_eq!(Kind::of(&bytes, name, None), kind);
    extract(kind, bytes).unwrap()
}

#[test]
fn a_pdf_has_the_lines_of_its_pages() {
    let text = text_of(
        pdf_of(&["Section 1", "The river is long and deep, as every-", "body knows."]),
        "a",
        Kind::Pdf,
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words.join(" "), "Section 1 The river is long and deep, as everybody knows.", "{text:?}");
}

#[test]
fn a_docx_has_its_paragraphs_and_tables() {
    let body = "<w:p><w:r><w:t>Rivers &amp; lakes</w:t></w:r><w:r><w:tab/><w:t xml:space=\"preserve\"> are &#119;et.</w:t></w:r></w:p><w:p/>\
        <w:p><w:r><w:t>Second</w:t><w:br/><w:t>line</w:t></w:r></w:p>\
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>\
        <w:p><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>";
    let text = text_of(docx_of(body), "letter.docx", Kind::Docx);
    assert_eq!(text, "Rivers & lakes\t are wet.\n\nSecond\nline\na \tb\n\n");
    assert!(extract(Kind::Docx, docx_of("<w:p></w:q>")).is_err());
    assert_eq!(extract(Kind::Docx, docx_of("<w:p/>")).unwrap(), "");
    let mut archive = docx_of("<w:p/>");
    let names: Vec<usize> =
        archive.windows(4).enumerate().filter(|(_, four)| four == b"word").map(|(at, _)| at).collect();
    names.into_iter().for_each(|at| archive[at..at + 4].copy_from_slice(b"body"));
    let err = extract(Kind::Docx, archive).unwrap_err();
    assert!(err.contains("is no document of Word"), "{err}");
}

#[test]
fn a_web_page_has_what_is_shown_of_it() {
    let page = "<!DOCTYPE html><html><head><title>T</title><style>p{}</style><script>let a = 1 < 2;</script></head><body>\
        <h1>Rivers</h1><p>One &amp; <a href='http://a.b'>two</a>.</p><hr><ul><li>x</li></ul>\
        <table><tr><td>k</td><td>v</td></tr></table></body></html>";
    let text = text_of(page.as_bytes().to_vec(), "page", Kind::Html);
    assert!(text.contains("Rivers\n") && text.contains("One & ") && text.contains("two"), "{text}");
    assert!(["let a", "p{}", "─"].iter().all(|hidden| !text.contains(hidden)), "{text}");
    assert_eq!(Kind::of(b"<p>a</p>", "a.HTM", None), Kind::Html);
    assert_eq!(Kind::of(b"<p>a</p>", "a", Some("text/html; charset=utf-8")), Kind::Html);
}

#[test]
fn deep_pages_are_refused_and_flat_ones_are_not() {
    let page = |open: &str, close: &str, count: usize| {
        let text = format!("<!doctype html>{}deep{}", open.repeat(count), close.repeat(count));
        extract(Kind::Html, text.into_bytes())
    };
    assert!(page("<div>", "</div>", 200).unwrap().contains("deep"));
    for open in ["<div>", "<span>", "<ul><li>", "<blockquote>", "<table><tr><td>", "<svg><g>"] {
        let err = page(open, "", 40_000).unwrap_err();
        assert!(err.contains("deep"), "{open}: {err}");
    }
    // Elements that end by themselves, or that are closed, are not deep.
    for many in ["<p>word", "<li>word", "<br>word", "<div>word</div>", "<b>word</b>"] {
        assert!(page(many, "", 20_000).unwrap().contains("word"), "{many}");
    }
}

#[tokio::test]
async fn other_bytes_are_text_or_refused() {
    let read = async |bytes: &[u8]| read(bytes, "a.md", None).await;
    assert_eq!(read(b"# Rivers\r\n\r\nare wet").await.unwrap(), (Kind::Text, "# Rivers\n\nare wet".into()));
    let long = "\r\n".repeat(TEXT_BYTES_MAX - 1) + "a";
    assert_eq!(read(long.as_bytes()).await.unwrap().1.len(), TEXT_BYTES_MAX);
    let cut = format!("a{}", "\u{e4}".repeat(TEXT_BYTES_MAX + 2));
    for (bytes, want) in [
        (&b"GGUF\0\0"[..], "byte 4 is zero"),
        (b"ab\xff", "bad byte at 2"),
        (b" \n", "holds no text"),
        ("a".repeat(TEXT_BYTES_MAX + 1).as_bytes(), "more than"),
        (cut.as_bytes(), "more than"),
    ] {
        let err = read(bytes).await.unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn broken_files_are_errors_and_never_end_the_program(
        cut in 0.0..1.0f64,
        place in 0.0..1.0f64,
        byte in any::<u8>(),
    ) {
        let body = "<w:p><w:r><w:t>Rivers</w:t></w:r></w:p>";
        for (kind, mut bytes) in [(Kind::Pdf, pdf_of(&["Rivers", "are wet."])), (Kind::Docx, docx_of(body))] {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = byte;
            bytes.truncate((cut.max(0.2) * bytes.len() as f64) as usize);
            if let Err(err) = extract(kind, bytes) {
                prop_assert!(!err.is_empty());
            }
        }
    }
}
