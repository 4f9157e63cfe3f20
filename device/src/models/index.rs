//! A package index with PyPI's simple API in JSON (PEP 691): the wheel of a version, its address and digest.

use super::PullError;
use super::http::{Http, refused};
use super::hub::is_sha256;
use super::source::{Requirement, normal};
use reqwest::Url;
use serde::Deserialize;
use std::collections::BTreeMap;

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json";
/// Most versions that an error names.
const VERSIONS_MAX: usize = 20;

#[derive(Debug, Deserialize)]
struct Project {
    files: Vec<File>,
}

#[derive(Debug, Clone, Deserialize)]
struct File {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
    size: Option<u64>,
}

/// A wheel of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wheel {
    /// Its file name.
    pub(super) file: String,
    /// Its address.
    pub(super) url: Url,
    /// Its length, if the index says it.
    pub(super) bytes: Option<u64>,
    /// Its SHA-256 in lower-case hex.
    pub(super) sha256: String,
}

/// Finds the wheel of a version.
pub(super) async fn wheel(http: &Http, want: &Requirement) -> Result<Wheel, PullError> {
    // Indexes redirect an address without the last slash.
    let url = http.url([want.name.as_str(), ""]);
    let list = http.list(&url, ACCEPT).await?;
    match list.status.as_u16() {
        200 => {}
        404 => return Err(no(http, format!("package `{}`", want.name))),
        401 | 403 => {
            return Err(PullError::Reply {
                host: http.host(),
                what: format!(
                    "it asks for credentials (status {}): give them in the address of --index",
                    list.status
                ),
            });
        }
        _ => return Err(refused(&url, list.status)),
    }
    let kind = list.header("content-type").unwrap_or_default();
    if !kind.contains("json") {
        let what = format!("it sends its list as `{kind}`, and a list in JSON (PEP 691) is needed");
        return Err(PullError::Reply { host: http.host(), what });
    }
    let project: Project = list.json(&url)?;
    pick(http, want, project.files, &url)
}

fn no(http: &Http, what: String) -> PullError {
    PullError::NoPackage { host: http.host(), what }
}

/// Picks the wheel of a version: that for every platform, or the only one.
fn pick(http: &Http, want: &Requirement, files: Vec<File>, base: &Url) -> Result<Wheel, PullError> {
    let of = |file: &File| version_of(&file.filename, &want.name);
    let wheels: Vec<&File> = files.iter().filter(|file| of(file).as_ref() == Some(&want.version)).collect();
    let any = wheels.iter().find(|file| file.filename.ends_with("-any.whl"));
    let file = match (any, &wheels[..]) {
        (Some(any), _) => *any,
        (None, [one]) => *one,
        (None, []) => {
            let mut versions: Vec<String> = files.iter().filter_map(of).collect();
            versions.dedup();
            let from = versions.len().saturating_sub(VERSIONS_MAX);
            let there = match versions.is_empty() {
                true => "it has no wheels".to_owned(),
                false => format!("it has wheels of {}", versions[from..].join(", ")),
            };
            return Err(no(http, format!("wheel of {want}: {there}")));
        }
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|file| file.filename.as_str()).collect();
            let what = format!("wheel of {want} for every platform, only {}", names.join(", "));
            return Err(no(http, what));
        }
    };
    let sha256 = file.hashes.get("sha256").map(|hash| hash.to_ascii_lowercase());
    let sha256 = sha256.filter(|hash| is_sha256(hash)).ok_or_else(|| PullError::Reply {
        host: http.host(),
        what: format!("it promises no SHA-256 for `{}`", file.filename),
    })?;
    let url = base.join(&file.url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| PullError::Reply {
        host: http.host(),
        what: format!("`{}` has no address that can be read", file.filename),
    })?;
    Ok(Wheel { file: file.filename.clone(), url, bytes: file.size, sha256 })
}

/// Returns the version in a wheel's file name (`NAME-VERSION[-BUILD]-PY-ABI-OS.whl`), if it is of this
/// package.
fn version_of(file: &str, package: &str) -> Option<String> {
    let mut words = file.strip_suffix(".whl")?.split('-');
    let (name, version) = (words.next()?, words.next()?);
    let tags = words.count();
    (normal(name) == package && matches!(tags, 3 | 4)).then(|| version.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(version: &str, json: &str) -> Result<Wheel, String> {
        let http = Http::new("https://index.example/simple", None).unwrap();
        let want = Requirement { name: "small-model".into(), version: version.into() };
        let project: Project = serde_json::from_str(json).unwrap();
        let base = http.url(["small-model", ""]);
        pick(&http, &want, project.files, &base).map_err(|err| err.to_string())
    }

    fn file(name: &str) -> String {
        let hash = "0".repeat(64);
        format!(
            r#"{{"filename":"{name}","url":"../../files/{name}","hashes":{{"sha256":"{hash}"}},"size":7}}"#
        )
    }

    #[test]
    fn the_wheel_of_a_version_is_found() {
        let files: Vec<String> = [
            "small_model-1.0.tar.gz",
            "small_model-1.0-py3-none-any.whl",
            "small_model-1.0-cp312-cp312-win_amd64.whl",
            "Small.Model-1.1-1-py3-none-any.whl",
            "small_model-2.0-cp312-cp312-win_amd64.whl",
            "small_model-2.0-cp312-cp312-linux_x86_64.whl",
            "small_model_more-1.5-py3-none-any.whl",
        ]
        .map(file)
        .into();
        let json = format!(r#"{{"meta":{{"api-version":"1.1"}},"name":"x","files":[{}]}}"#, files.join(","));
        let wheel = picked("1.0", &json).unwrap();
        assert_eq!(wheel.file, "small_model-1.0-py3-none-any.whl");
        assert_eq!(wheel.url.as_str(), "https://index.example/files/small_model-1.0-py3-none-any.whl");
        assert_eq!((wheel.bytes, wheel.sha256.len()), (Some(7), 64));
        assert_eq!(picked("1.1", &json).unwrap().file, "Small.Model-1.1-1-py3-none-any.whl");
        let said = picked("1.5", &json).unwrap_err();
        assert!(said.contains("no wheel of small-model==1.5: it has wheels of 1.0, 1.1, 2.0"), "{said}");
        let said = picked("2.0", &json).unwrap_err();
        assert!(
            said.contains("for every platform, only small_model-2.0-cp312-cp312-win_amd64.whl, "),
            "{said}"
        );
    }

    #[test]
    fn a_wheel_without_a_digest_is_refused() {
        let json = |hashes: &str| {
            format!(
                r#"{{"files":[{{"filename":"small_model-1.0-py3-none-any.whl","url":"x","hashes":{hashes}}}]}}"#
            )
        };
        for hashes in ["{}", r#"{"md5":"00"}"#, r#"{"sha256":"short"}"#] {
            let said = picked("1.0", &json(hashes)).unwrap_err();
            assert!(said.contains("promises no SHA-256"), "{said}");
        }
    }
}
