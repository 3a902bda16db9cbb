//! TLS, by rustls with ring.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate chain and its key, ready to serve.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
}

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read or has no usable contents.
    #[error("cannot use {}: {}", .0.display(), .1)]
    Pem(PathBuf, String),
    /// Certificate and key do not match.
    #[error("cannot use the TLS certificate with this key: {0}")]
    Pair(String),
}

impl Tls {
    /// Reads a certificate chain and a private key, both PEM.
    ///
    /// # Errors
    /// A file cannot be read, or the two do not match.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let pem = |path: &Path, error: rustls::pki_types::pem::Error| TlsError::Pem(path.to_owned(), error.to_string());
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| pem(certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| pem(key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| TlsError::Pair(error.to_string()))?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}
