//! A registry in a private bucket of an S3-compatible store.
//!
//! This program signs an address for each read (AWS Signature Version 4 in the query). Devices need no key:
//! they ask this service, and it sends them to an address that holds for minutes. Never: gives out a key, or
//! asks the store itself.

use std::time::Duration;

use baton_registry::digest::Digest;
use baton_registry::layout::{INDEX_FILE, blob_path};
use reqwest::Url;
use rusty_s3::actions::{GetObject, S3Action as _};
use rusty_s3::{Bucket, Credentials, UrlStyle};

/// How long a signed address holds. A download that breaks later asks for a new one.
const VALID: Duration = Duration::from_secs(15 * 60);
/// The region that is meant if none is set.
const REGION: &str = "us-east-1";

/// A bucket, a path in it, and the key to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Registry {
    bucket: Bucket,
    /// Empty, or with a slash at its end.
    prefix: String,
    credentials: Credentials,
}

/// Why a bucket cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The address has another form.
    #[error("`{0}` is no bucket: want s3://BUCKET or s3://BUCKET/PATH")]
    Address(String),
    /// There is no key.
    #[error("a bucket needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")]
    Key,
    /// The address of the store cannot be used.
    #[error("AWS_ENDPOINT_URL has no address of an S3-compatible store: {0}")]
    Endpoint(String),
}

impl S3Registry {
    /// Reads `s3://BUCKET/PATH`; the rest is as in the tools of AWS, from the environment that `var` reads.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn new(text: &str, var: impl Fn(&str) -> Option<String>) -> Result<Self, BucketError> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let bad = || BucketError::Address(text.chars().filter(|c| !c.is_control()).take(200).collect());
        let rest = text.strip_prefix("s3://").ok_or_else(bad)?;
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@');
        if name.is_empty() || !rest.chars().all(plain) || path.split('/').any(|part| part == "..") {
            return Err(bad());
        }
        let key = var("AWS_ACCESS_KEY_ID").zip(var("AWS_SECRET_ACCESS_KEY")).ok_or(BucketError::Key)?;
        let credentials = match var("AWS_SESSION_TOKEN") {
            Some(token) => Credentials::new_with_token(key.0, key.1, token),
            None => Credentials::new(key.0, key.1),
        };
        let region = var("AWS_REGION").or_else(|| var("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| REGION.to_owned());
        let own = var("AWS_ENDPOINT_URL_S3").or_else(|| var("AWS_ENDPOINT_URL"));
        // Other stores than AWS have no host name for each bucket, and a name with dots fits no certificate.
        let style = if own.is_some() || name.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let endpoint = own.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let wrong = |why: String| BucketError::Endpoint(format!("`{endpoint}`: {why}"));
        let url = Url::parse(&endpoint).map_err(|err| wrong(err.to_string()))?;
        let bucket = Bucket::new(url, style, name.to_owned(), region);
        let bucket = bucket.map_err(|err| wrong(err.to_string()))?;
        let path = path.trim_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        Ok(Self { bucket, prefix, credentials })
    }

    /// Returns whether the store is asked without TLS.
    pub(super) fn is_plain(&self) -> bool {
        self.bucket.base_url().scheme() == "http"
    }

    /// Returns a signed address of the list of versions.
    pub(super) fn index_url(&self) -> Url {
        self.signed(INDEX_FILE)
    }

    /// Returns a signed address of bytes.
    pub fn blob_url(&self, digest: &Digest) -> Url {
        self.signed(&blob_path(digest))
    }

    fn signed(&self, path: &str) -> Url {
        let object = format!("{}{path}", self.prefix);
        GetObject::new(&self.bucket, Some(&self.credentials), &object).sign(VALID)
    }
}

impl std::fmt::Display for S3Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = format!("{}/{}", self.bucket.name(), self.prefix);
        write!(f, "s3://{}", path.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "hush")];

    fn registry(text: &str, set: &[(&str, &str)]) -> Result<S3Registry, BucketError> {
        S3Registry::new(text, |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn addresses_are_signed_for_the_bucket_s_place() {
        let digest = Digest::of(b"x");
        let path = format!("blobs/sha256/{}", digest.hex());
        let aws = registry("s3://models/v1/", &[&KEY[..], &[("AWS_REGION", "eu-west-1")]].concat()).unwrap();
        let url = aws.blob_url(&digest);
        assert_eq!(
            (url.host_str(), url.path()),
            (Some("models.s3.eu-west-1.amazonaws.com"), &*format!("/v1/{path}"))
        );
        let query = url.query().unwrap();
        assert!(query.contains("X-Amz-Expires=900") && query.contains("X-Amz-Signature="), "{query}");
        assert!(query.contains("AKID%2F") && query.contains("%2Feu-west-1%2Fs3%2F"), "{query}");
        assert!(!url.as_str().contains("hush") && !format!("{aws:?}").contains("hush"));
        let own = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"), ("AWS_SESSION_TOKEN", "t")];
        let own = registry("s3://models", &[&KEY[..], &own].concat()).unwrap();
        assert!(own.is_plain() && !aws.is_plain());
        assert!(own.index_url().as_str().starts_with("http://127.0.0.1:9000/models/index.json?"));
        assert!(own.index_url().as_str().contains("X-Amz-Security-Token=t"));
        assert_eq!((aws.to_string(), own.to_string()), ("s3://models/v1".into(), "s3://models".into()));
    }

    #[test]
    fn what_is_missing_is_named() {
        for bad in ["s3://", "s3:///a", "s3://a/../b", "s3://a?b", "s3://k@a", "http://a"] {
            let err = registry(bad, &KEY).unwrap_err();
            assert!(matches!(err, BucketError::Address(_)), "{bad}: {err}");
        }
        assert_eq!(registry("s3://a", &KEY[..1]), Err(BucketError::Key));
        assert_eq!(registry("s3://a", &[KEY[0], ("AWS_SECRET_ACCESS_KEY", "")]), Err(BucketError::Key));
        let err =
            registry("s3://a", &[&KEY[..], &[("AWS_ENDPOINT_URL", "minio:9000")]].concat()).unwrap_err();
        assert!(matches!(err, BucketError::Endpoint(_)), "{err}");
    }
}
