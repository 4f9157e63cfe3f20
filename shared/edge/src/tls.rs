//! TLS: a certificate and its key from files, taken over anew when they change.
//!
//! Always: what is served is a whole pair that fits; files that are missing, half-written or do not fit each other
//! leave the old pair in force. HTTP/1.1 is all that is offered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Where certificate and key are, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, then those that it is signed by.
    pub cert: PathBuf,
    /// Its private key (PKCS#8, PKCS#1 or SEC1).
    pub key: PathBuf,
}

/// A pair that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read `{path}`")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        err: std::io::Error,
    },
    /// A file holds something else.
    #[error("`{path}` is not PEM that holds {want}")]
    Pem {
        /// Which one.
        path: PathBuf,
        /// What it should hold.
        want: &'static str,
        /// What is wrong.
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
        /// Why.
        #[source]
        err: rustls::Error,
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
    /// [`TlsError`] where they are no pair that can be served.
    pub fn open(files: TlsFiles) -> Result<Tls, TlsError> {
        let current = ArcSwap::from(read(&files)?);
        Ok(Tls { files, current })
    }

    /// What new connections are offered.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Reads the files again; connections that stand keep what they have.
    ///
    /// # Errors
    /// [`TlsError`]; then the old pair stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(read(&self.files)?);
        Ok(())
    }

    /// Where they come from.
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
    let pair = |err| TlsError::Pair { cert: cert.clone(), key: key.clone(), err };
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

/// The certificates of a file, of which there is at least one.
///
/// # Errors
/// [`TlsError`] where the file cannot be read or holds something else.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(&bytes(path)?).collect::<Result<Vec<_>, _>>();
    let found = read.map_err(|err| TlsError::Pem { path: path.to_owned(), want: "certificates", err })?;
    if found.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(found) }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|err| TlsError::Read { path: path.to_owned(), err })
}
