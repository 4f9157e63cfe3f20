//! TLS: a certificate and its key from files, reloaded when they change.
//!
//! Always: the server uses a complete pair that matches. If files are missing, half-written or do not match,
//! the old pair stays in force. Only HTTP/1.1 is offered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The paths of certificate and key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by the chain that signs it.
    pub cert: PathBuf,
    /// The private key (PKCS#8, PKCS#1 or SEC1).
    pub key: PathBuf,
}

/// Why a pair cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: std::io::Error,
    },
    /// A file is not PEM or holds something else.
    #[error("`{path}` is not PEM that holds {want}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        want: &'static str,
        /// The cause.
        #[source]
        err: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("`{0}` holds no certificate")]
    NoCertificate(PathBuf),
    /// Certificate and key do not belong together, or are of a kind that is not supported.
    #[error("certificate `{cert}` and key `{key}` cannot be used together")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The cause, in a box because it is large.
        #[source]
        err: Box<rustls::Error>,
    },
}

/// The pair in force.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] if they are not a pair that can be used.
    pub fn open(files: TlsFiles) -> Result<Tls, TlsError> {
        let current = ArcSwap::from(read(&files)?);
        Ok(Tls { files, current })
    }

    /// Returns the configuration for new connections.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Reads the files again; existing connections keep their certificate.
    ///
    /// # Errors
    /// [`TlsError`]; the old pair then stays in force.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(read(&self.files)?);
        Ok(())
    }

    /// Returns the paths of the files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let TlsFiles { cert, key } = files;
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|err| TlsError::Pem {
        path: key.clone(),
        want: "a private key",
        err,
    })?;
    let pair = |err| TlsError::Pair { cert: cert.clone(), key: key.clone(), err: Box::new(err) };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns the certificates of a file, at least one.
///
/// # Errors
/// [`TlsError`] if the file cannot be read or holds something else.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(&bytes(path)?).collect::<Result<Vec<_>, _>>();
    let found = read.map_err(|err| TlsError::Pem { path: path.to_owned(), want: "certificates", err })?;
    if found.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(found) }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|err| TlsError::Read { path: path.to_owned(), err })
}
