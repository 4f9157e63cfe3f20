//! Style sheet, script and icon. They are compiled in, served under a path with their digest, and cached for
//! ever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

use super::problem::{Kind, Problem};

#[derive(RustEmbed)]
#[folder = "assets/"]
struct Files;

/// A file with its path.
#[derive(Debug)]
struct Asset {
    name: &'static str,
    kind: &'static str,
    /// The first 64 bits of its SHA-256, in hex.
    digest: String,
    bytes: std::borrow::Cow<'static, [u8]>,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let asset = |name, kind| {
        let file = Files::get(name).expect("the file is compiled in");
        let digest = hex::encode(&file.metadata.sha256_hash()[..8]);
        Asset { name, kind, digest, bytes: file.data }
    };
    vec![
        asset("console.css", "text/css; charset=utf-8"),
        asset("console.js", "text/javascript; charset=utf-8"),
        asset("icon.svg", "image/svg+xml"),
    ]
});

/// Returns the path of a file.
///
/// # Panics
/// If the name is not one of the three files.
#[must_use]
pub(super) fn url(name: &str) -> String {
    let asset = ASSETS.iter().find(|asset| asset.name == name).expect("pages name files that there are");
    format!("/admin/assets/{}/{}", asset.digest, asset.name)
}

/// Serves a file.
pub(super) async fn show(
    Path((digest, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let found = ASSETS.iter().find(|asset| asset.name == name && asset.digest == digest);
    let asset = found.ok_or_else(|| Problem::new(Kind::NotFound, "there is no such file"))?;
    let tag = format!("\"{digest}\"");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known.is_some_and(|known| known.contains(&tag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = asset.bytes.to_vec().into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
        response
    };
    let cached = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, cached);
    let tag = HeaderValue::from_str(&tag).expect("quoted hex digits are a header value");
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_small_and_ask_for_nothing_outside() {
        for asset in ASSETS.iter() {
            let text = std::str::from_utf8(&asset.bytes).unwrap();
            let own = text.replace("http://www.w3.org/2000/svg", "");
            for outside in ["http:", "https:", "@import", "url("] {
                assert!(!own.contains(outside), "{} has {outside}", asset.name);
            }
            assert!(asset.bytes.len() < 40_000, "{}", asset.name);
        }
    }

    /// Returns the colours of a scheme: the declarations `--name: #rrggbb` of one block.
    fn colours(css: &str, block: &str) -> Vec<(String, [f64; 3])> {
        let start = css.find(block).unwrap_or_else(|| panic!("no block {block}")) + block.len();
        let block = &css[start..start + css[start..].find('}').expect("a block ends")];
        let colour = |line: &str| {
            let (name, value) = line.trim().trim_end_matches(';').split_once(": ")?;
            let hex = value.strip_prefix('#')?;
            let part = |at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"));
            Some((name.strip_prefix("--")?.to_owned(), [part(0), part(2), part(4)]))
        };
        block.lines().filter_map(colour).collect()
    }

    /// Returns the relative luminance of WCAG 2.2.
    fn luminance(colour: [f64; 3]) -> f64 {
        let linear = |part: f64| {
            let part = part / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(colour[0]) + 0.7152 * linear(colour[1]) + 0.0722 * linear(colour[2])
    }

    #[test]
    fn colours_can_be_told_apart() {
        let css = std::str::from_utf8(&ASSETS[0].bytes).unwrap();
        for scheme in ["/* light */ :root {", "/* dark */ :root {"] {
            let colours = colours(css, scheme);
            let of = |name: &str| {
                let found = colours.iter().find(|(known, _)| known == name);
                found.unwrap_or_else(|| panic!("{scheme} has no {name}")).1
            };
            let contrast = |a: &str, b: &str| {
                let (a, b) = (luminance(of(a)), luminance(of(b)));
                (a.max(b) + 0.05) / (a.min(b) + 0.05)
            };
            // WCAG AA requires a contrast of 4.5 for text.
            for text in ["text", "muted", "accent", "good", "warn", "bad"] {
                for ground in ["page", "surface"] {
                    let is = contrast(text, ground);
                    assert!(is >= 4.5, "{scheme} {text} on {ground}: {is:.2}");
                }
            }
            for (text, ground) in [
                ("on-accent", "accent"),
                ("text", "region"),
                ("text", "warn-ground"),
                ("text", "bad-ground"),
                ("text", "good-ground"),
            ] {
                let is = contrast(text, ground);
                assert!(is >= 4.5, "{scheme} {text} on {ground}: {is:.2}");
            }
            // Lines of charts and borders of fields need 3.
            for line in ["s1", "s2", "s3", "field"] {
                let is = contrast(line, "surface");
                assert!(is >= 3.0, "{scheme} {line}: {is:.2}");
            }
        }
    }
}
