//! The certificates that an Android system trusts. Its own verifier answers to apps alone, not to a program
//! that is started from a shell, so they are read from the system's files.

use std::path::Path;

use reqwest::Certificate;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Folders with one file for each certificate: that of updates since Android 14, else that of the system.
pub(super) const ANDROID_ROOTS: [&str; 2] =
    ["/apex/com.android.conscrypt/cacerts", "/system/etc/security/cacerts"];

/// Returns the certificates in the files of the first folder that has any. What cannot be read as a
/// certificate is left out; without any, no server is trusted.
pub(super) fn roots_in(folders: &[&Path]) -> Vec<Certificate> {
    let mut found = folders.iter().map(|folder| certificates_of(folder));
    found.find(|certificates| !certificates.is_empty()).unwrap_or_default()
}

fn certificates_of(folder: &Path) -> Vec<Certificate> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let texts = files.filter_map(|file| std::fs::read(file.ok()?.path()).ok());
    texts.flat_map(|text| certificates_in(&text)).collect()
}

fn certificates_in(text: &[u8]) -> Vec<Certificate> {
    let usable = |der: &CertificateDer<'_>| RootCertStore::empty().add(der.clone().into_owned()).is_ok();
    let all = CertificateDer::pem_slice_iter(text).filter_map(Result::ok).filter(usable);
    all.filter_map(|der| Certificate::from_der(&der).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root that nobody trusts, made for this test.
    const ROOT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUbmgZI+xp/F9toS+LLx6HbdvxlZMwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJdGVzdCByb290MCAXDTI2MTEyMzA0MzIzNloYDzIxMjYxMDMw
MDQzMjM2WjAUMRIwEAYDVQQDDAl0ZXN0IHJvb3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARZl8493y0WLDK+OL6IJS8rIsU9hOLRJMkhWZbjPaCX9gNOUodzapfc
AbbYTbM8mbCCov5/Ssxmgv1xW/zFgwJto1MwUTAdBgNVHQ4EFgQURrfuqox3C0Uv
xhw8NJOwBUdHVQswHwYDVR0jBBgwFoAURrfuqox3C0Uvxhw8NJOwBUdHVQswDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEA9bqG+hRZCDXpZxx3puwB
jZsY8TvAWpOYrPqs1yiO+aUCIE0YE/qWnVzCzbRx/8803YwZVKxPDmhr1Vd5N8UL
vIYS
-----END CERTIFICATE-----
Text that Android adds after a certificate.
";

    #[test]
    fn certificates_of_the_first_folder_that_has_some_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, files: &[(&str, &str)]| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            files.iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).unwrap());
            folder
        };
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let empty = folder("empty", &[("a.0", "no certificate"), ("b.0", bad)]);
        let full = folder("full", &[("a.0", ROOT), ("b.0", bad), ("c.0", ROOT)]);
        let more = folder("more", &[("a.0", ROOT)]);
        let missing = dir.path().join("missing");
        assert_eq!(roots_in(&[&missing, &empty, &full, &more]).len(), 2);
        assert_eq!(roots_in(&[&more, &full]).len(), 1);
        assert!(roots_in(&[&missing, &empty]).is_empty());
    }
}
