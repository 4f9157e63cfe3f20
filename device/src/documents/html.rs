//! Web pages: parsed by html5ever, laid out as text by html2text.
//!
//! The parser looks through all open elements at each tag, so a deep page takes time with the square of its
//! depth. It is given a page bit by bit, and none after elements are open too deeply.

use html2text::{Handle, RcDom};
use html5ever::tendril::TendrilSink as _;
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{ParseOpts, parse_document};

use super::lines;

/// Columns of a text made from HTML: lines are not wrapped, because a wrapped sentence is two lines.
const COLUMNS: usize = 100_000;
/// Deepest elements. Browsers open no element below 512 (Chrome) or 200 (Firefox) others.
const DEPTH_MAX: usize = 2048;
/// Bytes that are parsed between two looks at the depth.
const CHUNK_BYTES: usize = 4096;

/// Returns the text that is shown of a page.
pub(super) fn text(bytes: &[u8]) -> Result<String, String> {
    let config = html2text::config::plain_no_decorate().no_table_borders().allow_width_overflow();
    // The elements go before the text is laid out: each of the two is many times larger than the page.
    let tree = config.dom_to_render_tree(&parsed(bytes)?).map_err(|err| err.to_string())?;
    let text = config.render_to_string(tree, COLUMNS).map_err(|err| err.to_string())?;
    Ok(lines::tidied(&text))
}

fn parsed(bytes: &[u8]) -> Result<RcDom, String> {
    let tree_builder = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let options = ParseOpts { tree_builder, ..ParseOpts::default() };
    let mut parser = parse_document(RcDom::default(), options).from_utf8();
    for chunk in bytes.chunks(CHUNK_BYTES) {
        parser.process(chunk.into());
        if is_deep(&parser.inner_sink.tokenizer.sink.sink.document) {
            return Err(format!("its elements are more than {DEPTH_MAX} deep"));
        }
    }
    Ok(parser.finish())
}

/// Whether the newest elements are deeper than allowed: those that are open are each the last in the one
/// before.
fn is_deep(document: &Handle) -> bool {
    let mut node = document.clone();
    for _ in 0..DEPTH_MAX {
        let Some(last) = node.children.borrow().last().cloned() else { return false };
        node = last;
    }
    true
}
