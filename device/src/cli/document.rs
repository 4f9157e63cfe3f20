//! Reads the document of a question: a file, a folder, a web page or standard input.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_terminal::errln;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode, Url};
use tokio::fs::File;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
use walkdir::{DirEntry, WalkDir};

use crate::documents::{self, NotText, TEXT_BYTES_MAX, Unreadable, plain_text};
use crate::models::http_client;

/// Longest time to fetch a web page.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Most files of a folder, and deepest folders in it.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 32;
/// Bytes of a web page that wait to be read.
const WAITING_BYTES: usize = 64 << 10;

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    #[error("read {}", Named(path))]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("{} has more than {max} bytes", Named(path))]
    TooLarge { path: PathBuf, max: u64 },
    #[error("read {}", Named(path))]
    Unreadable {
        path: PathBuf,
        #[source]
        err: Unreadable,
    },
    #[error("fetch `{url}`")]
    Fetch {
        url: Url,
        #[source]
        err: reqwest::Error,
    },
    #[error("fetch `{url}`: the server answered {status}")]
    Refused { url: Url, status: StatusCode },
    #[error("no file in the folder `{}` has a text that can be read", path.display())]
    NoFile { path: PathBuf },
}

/// The name of a source in messages.
struct Named<'a>(&'a Path);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Path::new("-") {
            f.write_str("standard input")
        } else {
            write!(f, "`{}`", self.0.display())
        }
    }
}

/// Reads the text of a document: a file, a folder with files, the address of a web page, or `-` for standard
/// input.
pub(super) async fn read(path: &Path) -> Result<String, DocumentError> {
    if let Some(url) = address(path) {
        return fetch(url).await;
    }
    if path.is_dir() { read_folder(path).await } else { read_file(path).await }
}

/// Whether a document is the address of a web page.
pub(super) fn is_address(path: &Path) -> bool {
    address(path).is_some()
}

/// Returns the address of a web page, if it is one and no file of this name.
fn address(path: &Path) -> Option<Url> {
    let text = path.to_str().filter(|_| !path.exists())?;
    Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

async fn fetch(url: Url) -> Result<String, DocumentError> {
    let failed = |err: reqwest::Error| DocumentError::Fetch { url: url.clone(), err: err.without_url() };
    let client = http_client(url.scheme() == "https").map_err(failed)?;
    let mut response = client.get(url.clone()).timeout(FETCH_TIMEOUT).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(DocumentError::Refused { url: url.clone(), status: response.status() });
    }
    let media_type = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = media_type.map(str::to_owned);
    let (page, pipe) = duplex(WAITING_BYTES);
    let receive = async { receive(&mut response, pipe).await.map_err(failed) };
    let read = async {
        let read = documents::read(page, url.path(), media_type.as_deref()).await;
        read.map_err(|err| DocumentError::Unreadable { path: PathBuf::from(url.as_str()), err })
    };
    let ((), (_, text)) = tokio::try_join!(receive, read)?;
    Ok(text)
}

/// Writes a response's body into the pipe, until its reader has enough.
async fn receive(response: &mut Response, mut pipe: DuplexStream) -> Result<(), reqwest::Error> {
    while let Some(more) = response.chunk().await? {
        if pipe.write_all(&more).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn read_file(path: &Path) -> Result<String, DocumentError> {
    let fail = |err| DocumentError::Read { path: path.to_owned(), err };
    let name = path.to_string_lossy();
    let read = if path == Path::new("-") {
        documents::read(tokio::io::stdin(), &name, None).await
    } else {
        documents::read(File::open(path).await.map_err(fail)?, &name, None).await
    };
    match read {
        Ok((_, text)) => Ok(text),
        Err(Unreadable::Input(err)) => Err(fail(err)),
        Err(err) => Err(DocumentError::Unreadable { path: path.to_owned(), err }),
    }
}

/// Reads the files of a folder and of those in it, in the order of their names, each behind a line with its
/// name. Hidden files and links are left out; what cannot be read is left out with a note.
async fn read_folder(path: &Path) -> Result<String, DocumentError> {
    let is_shown =
        |entry: &DirEntry| entry.depth() == 0 || !entry.file_name().to_string_lossy().starts_with('.');
    let walk = WalkDir::new(path).max_depth(DEPTH_MAX).sort_by_file_name().into_iter().filter_entry(is_shown);
    let mut text = String::new();
    for entry in walk.take(FILES_MAX) {
        let entry = entry.map_err(|err| DocumentError::Read { path: path.to_owned(), err: err.into() })?;
        if !entry.file_type().is_file() {
            continue;
        }
        match read_file(entry.path()).await {
            Ok(own) => {
                let name = entry.path().strip_prefix(path).unwrap_or(entry.path());
                text += &format!("# {}\n\n{}\n\n", name.display(), own.trim_end());
            }
            Err(err) => errln!("note: left out: {}", baton_terminal::chain(&err)),
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(DocumentError::TooLarge { path: path.to_owned(), max: TEXT_BYTES_MAX as u64 });
        }
    }
    if text.is_empty() { Err(DocumentError::NoFile { path: path.to_owned() }) } else { Ok(text) }
}

/// Decodes a line of standard input.
pub(super) fn line_text(line: Vec<u8>) -> Result<String, DocumentError> {
    let unreadable = |err: NotText| DocumentError::Unreadable { path: "-".into(), err: err.into() };
    plain_text(line).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn refused(path: &Path) -> String {
        baton_terminal::chain(&read(path).await.unwrap_err())
    }

    #[tokio::test]
    async fn a_file_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d");
        let write = |bytes: &[u8]| fs::write(folder.path().join("d"), bytes).unwrap();
        write(b"\xef\xbb\xbfhi");
        assert_eq!(read(&path).await.unwrap(), "hi");
        for (bytes, want) in
            [(&b"GGUF\0\0"[..], "byte 4 is zero"), (b"ab\xff", "bad byte at 2"), (b" \n", "it is empty")]
        {
            write(bytes);
            let said = refused(&path).await;
            assert!(said.contains(want) && said.contains(path.to_str().unwrap()), "{said}");
        }
        write(&vec![b'a'; 3 * TEXT_BYTES_MAX]);
        assert!(refused(&path).await.contains("its text has more than"));
        assert!(refused(Path::new("/nonexistent/x")).await.starts_with("read `/nonexistent/x`"));
    }

    #[tokio::test]
    async fn a_folder_is_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        assert!(refused(folder.path()).await.contains("no file in the folder"));
        write("b.md", b"second\n\n");
        write("a/z.txt", b"first");
        write(".git/config", b"hidden");
        write("c.bin", b"\0\0");
        assert_eq!(read(folder.path()).await.unwrap(), "# a/z.txt\n\nfirst\n\n# b.md\n\nsecond\n\n");
        write("d.txt", &vec![b'a'; TEXT_BYTES_MAX]);
        assert!(refused(folder.path()).await.contains("more than"));
    }

    #[tokio::test]
    async fn a_page_is_fetched() {
        use axum::routing::get;
        let page = get(async || ([("content-type", "text/plain")], "Rivers are wet."));
        let app = axum::Router::new().route("/page", page);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let url = |path: &str| PathBuf::from(format!("http://{address}{path}"));
        assert_eq!(read(&url("/page")).await.unwrap(), "Rivers are wet.");
        assert!(refused(&url("/none")).await.contains("404"));
        assert!(refused(Path::new("http://127.0.0.1:9/x")).await.starts_with("fetch `http://127.0.0.1:9/x`"));
        assert_eq!(super::address(Path::new("notes.txt")), None);
    }
}
