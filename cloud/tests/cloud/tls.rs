//! Tests TLS over real sockets: what is accepted, what is refused, what is replaced while it runs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use baton_cloud::api::{self, Access, ApiLimits};
use baton_edge::tls::{Tls, TlsError, TlsFiles};
use baton_edge::{HttpLimits, Phase};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use crate::client::HANG;
use crate::world::{by_hand, options};

/// Writes a new certificate and key; returns the certificate.
fn pair(files: &TlsFiles) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&files.cert, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn files(folder: &Path) -> TlsFiles {
    TlsFiles { cert: folder.join("tls.crt"), key: folder.join("tls.key") }
}

/// Returns the reply to a request over TLS, and the agreed protocol; trusts only `root`.
async fn get(
    address: SocketAddr,
    root: &CertificateDer<'static>,
) -> std::io::Result<(String, Option<Vec<u8>>)> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut reply = String::new();
    let _ = tokio::time::timeout(HANG, stream.read_to_string(&mut reply)).await.expect("a reply");
    Ok((reply, agreed))
}

#[tokio::test]
async fn certificates_are_served_and_replaced_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let old = pair(&files);
    let tls = Arc::new(Tls::open(files.clone()).unwrap());
    let (service, _host) = by_hand(options());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = HttpLimits { handshake_timeout: Duration::from_millis(100), ..HttpLimits::default() };
    let server = baton_edge::Server {
        listener,
        app: api::router(service, Access::with_static_key(None), None, ApiLimits::default()),
        limits: Arc::new(ArcSwap::from_pointee(limits)),
        tls: Some(tls.clone()),
    };
    let (_phase, phases) = watch::channel(Phase::Serving);
    let serving = tokio::spawn(baton_edge::serve(server, phases, || ()));

    let (reply, agreed) = get(address, &old).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert_eq!(agreed.as_deref(), Some(&b"http/1.1"[..]));
    // A handshake that never ends, and bytes that are not a handshake.
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut read = Vec::new();
        let _ = tokio::time::timeout(HANG, stream.read_to_end(&mut read)).await.expect("it is cut");
        assert!(!read.starts_with(b"HTTP"), "nothing is served without TLS");
    }
    // A key that does not fit leaves the old pair in use; a complete new pair replaces it.
    let whole = std::fs::read(&files.key).unwrap();
    std::fs::write(&files.key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Pair { .. })));
    assert!(get(address, &old).await.is_ok());
    std::fs::write(&files.key, whole).unwrap();
    let new = pair(&files);
    tls.reload().unwrap();
    assert!(get(address, &new).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(get(address, &old).await.is_err(), "the old one is not offered any more");
    serving.abort();
}

#[test]
fn files_that_are_no_pair_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let check = |want: &str| {
        let err = Tls::open(files.clone()).unwrap_err().to_string();
        assert!(err.contains(want), "{err}, want `{want}`");
    };
    check("read `");
    pair(&files);
    assert!(Tls::open(files.clone()).is_ok());
    std::fs::write(&files.cert, "not a certificate").unwrap();
    check("tls.crt` holds no certificate");
    pair(&files);
    std::fs::write(&files.key, "not a key").unwrap();
    check("tls.key` is not PEM that holds a private key");
    std::fs::write(&files.key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    check("cannot be used together");
}
