//! A hub of models with Hugging Face's API: the files of a repository, and their addresses.

use super::choose::Listed;
use super::http::{Http, List, refused};
use super::{PullError, TOKEN_ENV};
use reqwest::Url;
use serde::Deserialize;

/// Most pages of a list of files.
const PAGES_MAX: usize = 50;

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    fn listed(self) -> Option<Listed> {
        let (bytes, sha256) = match self.lfs {
            Some(lfs) => (lfs.size, Some(lfs.oid.to_ascii_lowercase()).filter(|oid| is_sha256(oid))),
            None => (self.size, None),
        };
        (self.kind == "file").then_some(Listed { path: self.path, bytes, sha256 })
    }
}

/// Whether this is a SHA-256 in lower-case hex.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Lists the files of a repository.
pub(super) async fn files(http: &Http, repo: &str, revision: &str) -> Result<Vec<Listed>, PullError> {
    let path = ["api", "models"].into_iter().chain(repo.split('/')).chain(["tree", revision]);
    let mut url = http.url(path);
    url.set_query(Some("recursive=true"));
    let mut files = Vec::new();
    for _ in 0..PAGES_MAX {
        let list = http.list(&url, "application/json").await?;
        check(http, repo, revision, &url, &list)?;
        let entries: Vec<Entry> = list.json(&url)?;
        files.extend(entries.into_iter().filter_map(Entry::listed));
        match list.header("link").and_then(next).and_then(|next| url.join(next).ok()) {
            Some(next) if next.origin() == url.origin() => url = next,
            _ => break,
        }
    }
    Ok(files)
}

/// Returns the address of the next page from a `Link` header.
fn next(link: &str) -> Option<&str> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    next.trim().strip_prefix('<')?.split_once('>').map(|(url, _)| url)
}

fn check(http: &Http, repo: &str, revision: &str, url: &Url, list: &List) -> Result<(), PullError> {
    let (host, repo) = (http.host(), repo.to_owned());
    let code = list.header("x-error-code");
    match (list.status.as_u16(), code) {
        (200, _) => Ok(()),
        (401 | 403, Some("GatedRepo")) => Err(gated(http, &repo)),
        (404, Some("RevisionNotFound")) => Err(PullError::NoRevision { repo, revision: revision.to_owned() }),
        (_, Some("RepoNotFound")) | (404, _) => Err(PullError::NoRepository { host, repo }),
        // Without a token, the hub answers so also for what does not exist.
        (401, _) if !http.has_token() => Err(PullError::NoRepository { host, repo }),
        (401, _) => Err(PullError::Token { host }),
        _ => Err(refused(url, list.status)),
    }
}

/// Returns the error of a repository that is given only to those who accept terms.
pub(super) fn gated(http: &Http, repo: &str) -> PullError {
    let page = super::http::shown(&http.url(repo.split('/')));
    let fix = if http.has_token() {
        format!("accept its terms at {page}, with the account that the token in {TOKEN_ENV} is of")
    } else {
        format!("accept its terms at {page}, then set {TOKEN_ENV} to a token of your account")
    };
    PullError::Gated { repo: repo.to_owned(), fix }
}

/// Returns the address of a file.
pub(super) fn url_of(http: &Http, repo: &str, revision: &str, path: &str) -> Url {
    http.url(repo.split('/').chain(["resolve", revision]).chain(path.split('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;
    use reqwest::header::{HeaderMap, HeaderValue};

    #[test]
    fn entries_are_read_with_their_digests() {
        let oid = "a".repeat(64);
        let json = format!(
            r#"[{{"type":"directory","oid":"1","size":0,"path":"d"}},
                {{"type":"file","oid":"2","size":12,"path":"config.json"}},
                {{"type":"file","oid":"3","size":700,"path":"d/m.gguf","xetHash":"x",
                  "lfs":{{"oid":"{}","size":700,"pointerSize":135}}}},
                {{"type":"file","size":700,"path":"n.gguf","lfs":{{"oid":"not a digest","size":9}}}}]"#,
            oid.to_ascii_uppercase()
        );
        let entries: Vec<Entry> = serde_json::from_str(&json).unwrap();
        let found: Vec<Listed> = entries.into_iter().filter_map(Entry::listed).collect();
        let listed = |path: &str, bytes, sha256| Listed { path: path.into(), bytes, sha256 };
        let want =
            [listed("config.json", 12, None), listed("d/m.gguf", 700, Some(oid)), listed("n.gguf", 9, None)];
        assert_eq!(found, want);
    }

    #[test]
    fn refusals_name_what_helps() {
        let said = |token: Option<&str>, status: u16, code: Option<&'static str>| {
            let http = Http::new("https://hub.example", token.map(str::to_owned)).unwrap();
            let mut headers = HeaderMap::new();
            headers.extend(code.map(|code| {
                (reqwest::header::HeaderName::from_static("x-error-code"), HeaderValue::from_static(code))
            }));
            let list = List { status: StatusCode::from_u16(status).unwrap(), headers, body: Vec::new() };
            let url = http.url(["x"]);
            check(&http, "ann/m", "main", &url, &list).map_err(|err| err.to_string()).unwrap_err()
        };
        let gated = said(None, 401, Some("GatedRepo"));
        assert!(
            gated.contains("accept its terms at https://hub.example/ann/m, then set HF_TOKEN"),
            "{gated}"
        );
        let gated = said(Some("t"), 403, Some("GatedRepo"));
        assert!(gated.contains("with the account"), "{gated}");
        for (token, status, code, want) in [
            (None, 401, None, "no model repository `ann/m`"),
            (Some("t"), 404, Some("RepoNotFound"), "no model repository `ann/m`"),
            (Some("t"), 401, None, "refuses the token"),
            (None, 404, Some("RevisionNotFound"), "no revision `main`"),
            (None, 503, None, "status 503"),
        ] {
            let said = said(token, status, code);
            assert!(said.contains(want), "{status} {code:?}: {said}");
        }
    }

    #[test]
    fn pages_and_addresses() {
        let link = r#"<https://a/x?cursor=1>; rel="prev", <https://a/x?cursor=2>; rel="next""#;
        assert_eq!(next(link), Some("https://a/x?cursor=2"));
        assert_eq!(next("<https://a>; rel=\"last\""), None);
        let http = Http::new("https://hub.example/mirror/", None).unwrap();
        let url = url_of(&http, "ann/m", "refs/pr/1", "d/m.gguf");
        assert_eq!(url.as_str(), "https://hub.example/mirror/ann/m/resolve/refs%2Fpr%2F1/d/m.gguf");
    }
}
