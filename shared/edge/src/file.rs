//! Files as replies: whole, or one range of their bytes, so that downloads go on where they ended.

use std::io::SeekFrom;
use std::path::Path;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

/// Bytes of a file that are read at once.
const READ_BYTES: usize = 256 << 10;

/// Replies with the bytes of a file, or with the range that was asked for. `name` is of these bytes alone,
/// like their digest: clients keep the reply for a year, and go on with a download by it.
///
/// # Errors
/// The file cannot be read. If it ends early, the reply's body does too, with an error.
pub async fn reply(path: &Path, name: &str, headers: &HeaderMap) -> std::io::Result<Response> {
    let mut file = File::open(path).await?;
    let bytes = file.metadata().await?.len();
    let tag = format!("\"{name}\"");
    // Bytes of a digest never change, so every tag that a client knows is right or of another file.
    let same = headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == tag.as_bytes());
    let asked = headers.get(header::RANGE).filter(|_| same).and_then(|value| value.to_str().ok());
    let (status, begin, end) = match asked.and_then(|text| range(text, bytes)) {
        None => (StatusCode::OK, 0, bytes),
        Some(Some((begin, end))) => (StatusCode::PARTIAL_CONTENT, begin, end),
        Some(None) => {
            let mut refused = StatusCode::RANGE_NOT_SATISFIABLE.into_response();
            refused.headers_mut().insert(header::CONTENT_RANGE, text(format!("bytes */{bytes}")));
            return Ok(refused);
        }
    };
    file.seek(SeekFrom::Start(begin)).await?;
    let body = stream::try_unfold((file, end - begin), |(mut file, left)| async move {
        if left == 0 {
            return Ok::<_, std::io::Error>(None);
        }
        let mut part = vec![0; READ_BYTES.min(usize::try_from(left).unwrap_or(READ_BYTES))];
        let read = file.read(&mut part).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        part.truncate(read);
        Ok(Some((Bytes::from(part), (file, left - read as u64))))
    });
    let mut reply = (status, Body::from_stream(body)).into_response();
    let set = reply.headers_mut();
    set.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    set.insert(header::CONTENT_LENGTH, HeaderValue::from(end - begin));
    set.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set.insert(header::ETAG, text(tag));
    set.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    if status == StatusCode::PARTIAL_CONTENT {
        set.insert(header::CONTENT_RANGE, text(format!("bytes {begin}-{}/{bytes}", end - 1)));
    }
    Ok(reply)
}

fn text(value: String) -> HeaderValue {
    // A name that no header can carry gives an empty one.
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static(""))
}

/// Reads one range of bytes: first and past the last one. `None` if it is of another form, which the standard
/// lets a server ignore; `Some(None)` if the file has no such bytes.
fn range(text: &str, bytes: u64) -> Option<Option<(u64, u64)>> {
    let (begin, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if begin.is_empty() || !digits(begin) || !digits(last) {
        return None;
    }
    let begin: u64 = begin.parse().ok()?;
    let end = if last.is_empty() { bytes } else { last.parse::<u64>().ok()?.saturating_add(1).min(bytes) };
    Some((begin < end).then_some((begin, end)))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn ranges_are_read() {
        for (text, want) in [
            ("bytes=0-", Some(Some((0, 10)))),
            ("bytes=3-5", Some(Some((3, 6)))),
            ("bytes=3-99", Some(Some((3, 10)))),
            ("bytes=10-", Some(None)),
            ("bytes=5-4", Some(None)),
            ("bytes=-5", None),
            ("bytes=1-2,4-5", None),
            ("bytes=+1-", None),
            ("lines=1-", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(range(text, 10), want, "{text}");
        }
    }
}
