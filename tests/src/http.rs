//! Makes a client for services on the loopback, in plain HTTP.

use std::time::Duration;

/// Makes a client without TLS, so that it also works if there are no root certificates.
///
/// # Panics
/// Never, because a client without TLS roots can always be built.
#[must_use]
pub fn client() -> reqwest::Client {
    // A second installation fails and leaves the first provider in place.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().tls_certs_only([]).connect_timeout(Duration::from_secs(60));
    builder.build().expect("a client without TLS roots can be built")
}
