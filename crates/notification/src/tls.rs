//! TLS with the root certificates of the system, and those of a file.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{SendError, unreadable};

/// Reading the roots of the system takes some milliseconds.
static SYSTEM_ROOTS: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
});

/// Returns a connector that verifies certificates.
pub(crate) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = SYSTEM_ROOTS.clone();
    if let Some(path) = ca_file {
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unreadable(path, &error))?;
            roots.add(certificate).map_err(|error| unreadable(path, &error))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Encrypts the connection, and verifies that the certificate is that of the host.
pub(crate) async fn connect(
    host: &str,
    stream: TcpStream,
    ca_file: Option<&Path>,
) -> Result<TlsStream<TcpStream>, SendError> {
    let connector = connector(ca_file).map_err(SendError::unavailable)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare)
        .map_err(|_| SendError::unavailable("the host of the url is invalid"))?;
    connector
        .connect(name, stream)
        .await
        .map_err(|error| SendError::unavailable(format!("TLS with {host} failed: {error}")))
}
