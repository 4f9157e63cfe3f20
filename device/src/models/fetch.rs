//! Downloads one file, and goes on where an earlier try was cut.
//!
//! A thread writes while the next bytes come. After a cut the rest is asked for, as long as tries bring
//! bytes. Then the error says how to go on. What a reply means for the bytes so far is decided without I/O
//! ([`decide`]).

use super::PullError;
use super::http::{Http, Patience, asked, host_of, reason, refused, stalled};
use super::hub;
use super::part::{Part, Written};
use super::pull::{Meter, Stop};
use bytes::Bytes;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Time before the second try without a byte; doubled for each further one.
const WAIT: Duration = Duration::from_millis(500);
/// Longest time that a server may make a client wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Pieces that wait for the disk.
const PIECES: usize = 64;

/// A file to download.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// Its address.
    pub(super) url: Url,
    /// Its name for messages.
    pub(super) file: String,
    /// The hub's repository that it is in.
    pub(super) repo: Option<String>,
}

/// A look at the bytes whenever a chunk of them is durable; an error ends the download.
pub(super) type Look = Box<dyn FnMut(&Part) -> Result<(), PullError> + Send>;

/// What a reply means for the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Its body goes on after them.
    GoOn,
    /// Its body is the file from the beginning.
    FromStart,
    /// They are of another file: ask again without them.
    Again,
    /// They are all there is.
    Whole,
    /// Wait, then ask again.
    Later(Option<Duration>),
    /// It cannot be used.
    Wrong(String),
    /// The file is refused.
    Refused,
}

/// What matters of a reply's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Head {
    status: u16,
    etag: Option<String>,
    /// Length of the whole file, as far as the head says it.
    bytes: Option<u64>,
    /// The first byte of the body.
    begin: u64,
    retry_after: Option<Duration>,
}

impl Head {
    fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let range = text(CONTENT_RANGE).and_then(content_range);
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let (begin, bytes) = match status.as_u16() {
            200 => (0, length),
            _ => range.unwrap_or((0, None)),
        };
        let retry_after =
            text(RETRY_AFTER).and_then(|secs| secs.trim().parse().ok()).map(Duration::from_secs);
        Self { status: status.as_u16(), etag: text(ETAG).map(str::to_owned), bytes, begin, retry_after }
    }
}

/// Reads `bytes 10-19/20` and `bytes */20`: the first byte, and the length of the whole.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    match range.split_once('-') {
        Some((begin, _)) => Some((begin.parse().ok()?, whole)),
        None => (range == "*").then_some((0, whole)),
    }
}

/// Decides what a reply to a request for the bytes from `len` on means. `etag` and `bytes` are what is known
/// of the file.
fn decide(len: u64, etag: Option<&str>, bytes: Option<u64>, head: &Head) -> Verdict {
    let other_length = bytes.zip(head.bytes).filter(|(known, said)| known != said);
    let wrong_length = |(known, said): (u64, u64)| {
        Verdict::Wrong(format!("it has {said} bytes now, and {known} were promised: pull it again later"))
    };
    match head.status {
        200 => other_length.map_or(Verdict::FromStart, wrong_length),
        206 => {
            let other = etag.zip(head.etag.as_deref()).is_some_and(|(known, said)| known != said);
            if len > 0 && (other || other_length.is_some()) {
                Verdict::Again
            } else if head.begin != len {
                Verdict::Wrong(format!("it sent bytes from {} on, and was asked from {len} on", head.begin))
            } else {
                other_length.map_or(Verdict::GoOn, wrong_length)
            }
        }
        416 if len > 0 && head.bytes == Some(len) && other_length.is_none() => Verdict::Whole,
        416 if len > 0 => Verdict::Again,
        408 | 425 | 429 | 500 | 502..=504 => Verdict::Later(head.retry_after),
        _ => Verdict::Refused,
    }
}

/// Why a try did not bring the whole file, and how long the server asks to wait.
struct Failure {
    host: String,
    why: Why,
    wait: Option<Duration>,
}

/// Why bytes stopped coming.
enum Why {
    /// The line or the server broke. A message for people.
    Broke(String),
    /// The server made no progress.
    Stalled(String),
}

impl From<&str> for Why {
    fn from(text: &str) -> Why {
        Why::Broke(text.to_owned())
    }
}

/// Counts the bytes of a body, and the time that they are waited for.
struct Progress {
    patience: Patience,
    waited: Duration,
    bytes: u64,
}

impl Progress {
    fn new(patience: Patience) -> Progress {
        Progress { patience, waited: Duration::ZERO, bytes: 0 }
    }

    /// Waits for the next bytes; `None` if there is no progress for too long.
    async fn next<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let left = self.patience.stall.saturating_sub(self.waited);
        let next = tokio::time::timeout(left, work).await.ok();
        self.waited += begun.elapsed();
        next
    }

    /// Counts bytes that came.
    fn count(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= self.patience.progress_bytes {
            *self = Progress::new(self.patience);
        }
    }
}

/// Downloads the rest of `part`. Returns it when every byte is durable; the caller compares the digest.
pub(super) async fn fetch(
    http: &Http,
    remote: &Remote,
    mut part: Part,
    meter: &Meter,
    stop: &Stop,
    mut look: Look,
) -> Result<Part, PullError> {
    let (mut tries, mut most, mut reached) = (0, part.len(), false);
    while !part.is_whole() {
        stop.check()?;
        if part.len() > 0 && !part.is_known() {
            // Nothing would tell whether the rest is of the same file.
            part.clear()?;
        }
        let failure = match request(http, remote, &part, stop).await {
            Ok(response) => {
                reached = true;
                let failure;
                (part, look, failure) = take(http, remote, response, (part, look), meter, stop).await?;
                failure
            }
            Err(PullError::Offline { host, reason }) if reached => {
                Some(Failure { host, why: Why::Broke(reason), wait: None })
            }
            Err(err) => return Err(err),
        };
        let Some(Failure { host, why, wait }) = failure.filter(|_| !part.is_whole()) else { continue };
        tries = if part.len() > most { 0 } else { tries + 1 };
        most = most.max(part.len());
        let patience = http.patience();
        let (reason, is_over) = match why {
            Why::Broke(reason) => (reason, false),
            Why::Stalled(reason) => (reason, patience.is_short),
        };
        if tries >= patience.tries || is_over {
            return Err(PullError::Cut { file: remote.file.clone(), got: part.len(), host, reason });
        }
        let wait = wait.unwrap_or(if tries == 0 { Duration::ZERO } else { WAIT * 2_u32.pow(tries - 1) });
        stop.sleep(wait.min(WAIT_MAX)).await?;
    }
    Ok(part)
}

/// Takes what a reply brings. Returns why it is not the whole rest, if it is not.
async fn take(
    http: &Http,
    remote: &Remote,
    response: Response,
    (mut part, look): (Part, Look),
    meter: &Meter,
    stop: &Stop,
) -> Result<(Part, Look, Option<Failure>), PullError> {
    let head = Head::of(response.status(), response.headers());
    let host = asked(&response);
    let verdict = decide(part.len(), part.etag(), part.bytes(), &head);
    let from_start = |part: &mut Part| {
        meter.note(format!(
            "`{}` is read from its beginning: it changed, or its server cannot go on",
            remote.file
        ));
        part.clear()
    };
    match verdict {
        Verdict::Whole => {
            part.told(head.etag, head.bytes);
            Ok((part, look, None))
        }
        Verdict::Again => {
            from_start(&mut part)?;
            let why = Why::from("the file changed");
            Ok((part, look, Some(Failure { host, why, wait: Some(Duration::ZERO) })))
        }
        Verdict::GoOn | Verdict::FromStart => {
            if verdict == Verdict::FromStart && part.len() > 0 {
                from_start(&mut part)?;
            }
            part.told(head.etag, head.bytes);
            let progress = Progress::new(http.patience());
            let (ended, mut part, look) = body(response, part, look, meter, stop, progress).await?;
            if ended.is_none() && part.bytes().is_none() {
                // The server said no length, and ended the body in order.
                part.told(part.etag().map(str::to_owned), Some(part.len()));
            }
            let why = ended.unwrap_or_else(|| Why::from("the body ended early"));
            Ok((part, look, Some(Failure { host, why, wait: None })))
        }
        Verdict::Later(wait) => {
            let why = Why::Broke(format!("status {}", head.status));
            Ok((part, look, Some(Failure { host, why, wait })))
        }
        Verdict::Wrong(what) => Err(PullError::Reply { host, what: format!("`{}`: {what}", remote.file) }),
        Verdict::Refused => Err(denied(http, remote, &response)),
    }
}

async fn request(http: &Http, remote: &Remote, part: &Part, stop: &Stop) -> Result<Response, PullError> {
    let mut request = http.get(&remote.url);
    if part.len() > 0 {
        request = request.header(RANGE, format!("bytes={}-", part.len()));
        if let Some(etag) = part.strong_etag() {
            request = request.header(IF_RANGE, etag);
        }
    }
    stop.or(http.in_time(&remote.url, request.send())).await?
}

/// Returns the error of a reply that refuses the file.
fn denied(http: &Http, remote: &Remote, response: &Response) -> PullError {
    let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
    match (response.status().as_u16(), code) {
        (401 | 403, Some("GatedRepo")) => hub::gated(http, remote.repo.as_deref().unwrap_or_default()),
        (401, _) if http.has_token() && host_of(response.url()) == http.host() => {
            PullError::Token { host: http.host() }
        }
        _ => refused(response.url(), response.status()),
    }
}

/// Writes a body after the bytes so far. Returns why it ended before its end, if it did.
async fn body(
    mut response: Response,
    mut part: Part,
    mut look: Look,
    meter: &Meter,
    stop: &Stop,
    mut progress: Progress,
) -> Result<(Option<Why>, Part, Look), PullError> {
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(PIECES);
    let counted = meter.clone();
    let mut left = part.bytes().map(|bytes| bytes - part.len());
    let writer = tokio::task::spawn_blocking(move || -> Result<(Part, Look, bool), PullError> {
        let failed = |part: &Part| {
            let path = part.path().to_owned();
            move |err| super::fit::full_or(err, &path)
        };
        while let Some(piece) = waiting.blocking_recv() {
            match part.write(&piece).map_err(failed(&part))? {
                Written::Some => {}
                Written::Chunk => look(&part)?,
                // What is still on its way belongs behind the bytes that are dropped.
                Written::Damaged => return Ok((part, look, true)),
            }
            counted.at(part.len());
        }
        part.commit().map_err(failed(&part))?;
        if part.is_whole() {
            look(&part)?;
        }
        Ok((part, look, false))
    });
    let ended = loop {
        let next = async {
            tokio::select! {
                // The writer has ended, with an error that is returned below.
                () = pieces.closed() => Ok(None),
                piece = response.chunk() => piece,
            }
        };
        match stop.or(progress.next(next)).await {
            Err(_stopped) => break None,
            Ok(None) => break Some(Why::Stalled(stalled(progress.patience.stall))),
            Ok(Some(Err(err))) => break Some(Why::Broke(reason(&err))),
            Ok(Some(Ok(None))) => break None,
            Ok(Some(Ok(Some(piece)))) => {
                progress.count(piece.len() as u64);
                if let Some(left) = &mut left {
                    let Some(rest) = left.checked_sub(piece.len() as u64) else {
                        break Some(Why::from("it sent more bytes than it promised"));
                    };
                    *left = rest;
                }
                // As above.
                if pieces.send(piece).await.is_err() {
                    break None;
                }
            }
        }
    };
    drop(pieces);
    let (part, look, damaged) = writer.await.expect("the writing thread does not panic")?;
    stop.check()?;
    let ended = if damaged { Some(Why::from("a part of it was damaged on the way")) } else { ended };
    Ok((ended, part, look))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16) -> Head {
        Head { status, etag: Some("\"1\"".into()), bytes: Some(100), ..Head::default() }
    }

    #[track_caller]
    fn check(len: u64, etag: Option<&str>, bytes: Option<u64>, head: &Head, want: &Verdict) {
        let found = decide(len, etag, bytes, head);
        let same = matches!((&found, want), (Verdict::Wrong(_), Verdict::Wrong(_))) || found == *want;
        assert!(same, "{len} {etag:?} {bytes:?} {head:?}: {found:?}, want {want:?}");
    }

    #[test]
    fn a_reply_goes_on_only_with_the_same_file() {
        let (known, wrong) = (Some("\"1\""), Verdict::Wrong(String::new()));
        check(0, None, Some(100), &head(200), &Verdict::FromStart);
        check(0, None, None, &Head { bytes: None, ..head(200) }, &Verdict::FromStart);
        check(40, known, Some(100), &head(200), &Verdict::FromStart);
        check(0, None, Some(90), &head(200), &wrong);
        let rest = Head { begin: 40, ..head(206) };
        check(40, known, Some(100), &rest, &Verdict::GoOn);
        check(40, None, Some(100), &rest, &Verdict::GoOn);
        check(40, known, None, &Head { bytes: None, ..rest.clone() }, &Verdict::GoOn);
        check(40, Some("\"2\""), Some(100), &rest, &Verdict::Again);
        check(40, known, Some(90), &rest, &Verdict::Again);
        check(40, known, Some(100), &Head { begin: 30, ..head(206) }, &wrong);
        check(40, known, Some(100), &head(206), &wrong);
        check(100, known, None, &head(416), &Verdict::Whole);
        check(120, known, None, &head(416), &Verdict::Again);
        check(0, None, None, &head(416), &Verdict::Refused);
        check(0, None, None, &head(404), &Verdict::Refused);
        let wait = Some(Duration::from_secs(3));
        check(7, known, None, &Head { retry_after: wait, ..head(503) }, &Verdict::Later(wait));
    }

    #[test]
    fn heads_of_replies_are_read() {
        for (text, want) in [
            ("bytes 10-19/20", Some((10, Some(20)))),
            ("bytes 10-19/*", Some((10, None))),
            ("bytes */20", Some((0, Some(20)))),
            ("bytes 10/20", None),
            ("bytes a-b/20", None),
            ("items 1-2/3", None),
        ] {
            assert_eq!(content_range(text), want, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, "60".parse().unwrap());
        headers.insert(CONTENT_RANGE, "bytes 40-99/100".parse().unwrap());
        let found = Head::of(StatusCode::PARTIAL_CONTENT, &headers);
        assert_eq!((found.begin, found.bytes), (40, Some(100)));
        assert_eq!(Head::of(StatusCode::OK, &headers).bytes, Some(60));
    }
}
