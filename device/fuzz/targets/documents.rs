//! Reads any bytes as a web page, as the text part of a DOCX and as a whole one. Each ends in a text or an
//! error.
//!
//! The readers' own sources are compiled here, and only they are instrumented. A panic of a library is an
//! error to them, so it is none here; an overflow of the stack is. PDFs are not read: the library overflows
//! the stack on known ones, which the process around it is for. `./x test documents` gives broken ones to it.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

#[path = "../../../device/src/documents"]
mod documents {
    //! The readers as the device has them.

    mod docx;
    mod html;
    #[allow(dead_code, reason = "the device uses more of it than this target")]
    mod lines;

    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// As the device has it.
    pub(crate) const TEXT_BYTES_MAX: usize = 4 << 20;

    /// Reads bytes in each way.
    pub(crate) fn read(bytes: &[u8]) {
        let readers: [fn(&[u8]) -> Result<String, String>; 3] =
            [html::text, docx::text, |bytes| docx::paragraphs(bytes)];
        for reader in readers {
            let read = catch_unwind(AssertUnwindSafe(|| reader(bytes)));
            if let Ok(Ok(text)) = read
                && text.contains('\0')
            {
                std::process::abort();
            }
        }
    }
}

/// A web page and the text part of a DOCX with what readers look for.
const FIRST: [&str; 2] = [
    "<!doctype html><title>t</title><h1>Rivers</h1><p>are <b>wet</b> &amp; <a href=x>long</a><ul><li>a<li>b</ul>\
     <table><tr><td colspan=2>k<th>v</table><pre> x </pre><img alt=i><br><svg><g></svg><!-- c -->",
    "<?xml version=\"1.0\"?><w:document xmlns:w=\"w\"><w:body><w:p><w:r><w:t>Rivers &amp; &#119;</w:t><w:tab/>\
     </w:r></w:p><w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl></w:body></w:document>",
];

/// Writes the first inputs into the first folder among the program's arguments.
fn begin() {
    // The fuzzer's own hook ends the program at each panic, also at one that is caught.
    std::panic::set_hook(Box::new(|_| {}));
    let Some(folder) = std::env::args().skip(1).find(|argument| Path::new(argument).is_dir()) else { return };
    for (number, text) in FIRST.iter().enumerate() {
        let file = Path::new(&folder).join(format!("sample-{number:02}"));
        std::fs::write(&file, text).expect("the folder of inputs can be written to");
    }
}

fuzz_target!(init: begin(), |bytes: &[u8]| documents::read(bytes));
