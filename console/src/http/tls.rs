//! TLS termination in the console: reads certificate files, and provides a listener that returns
//! connections after the TLS handshake.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, version};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::options::{StartError, TlsFiles};

/// Time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent handshakes; further clients wait in the accept queue of the socket.
const MAX_HANDSHAKES: usize = 64;

impl TlsFiles {
    /// Reads both files. They are read once: a new certificate requires a restart.
    pub(crate) fn read(&self) -> Result<Arc<ServerConfig>, StartError> {
        let wrong = |what: &str, path: &Path, error: String| StartError::Usage {
            message: format!("could not use the {what} in {}: {error}", path.display()),
            hint:
                "both files must be PEM: the certificate first in its file, the key not encrypted"
                    .to_owned(),
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(|error| wrong("certificate", &self.certificate, error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| wrong("key", &self.key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = [&version::TLS13, &version::TLS12];
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| wrong("certificate", &self.certificate, error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A listener that runs TLS handshakes concurrently, so that no client waits for another one.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    pub(crate) fn new(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self { tcp, acceptor: TlsAcceptor::from(config), handshakes: JoinSet::new() }
    }
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(finished) = self.handshakes.join_next() => {
                    if let Ok(Some(session)) = finished {
                        return session;
                    }
                }
                (stream, from) = axum::serve::Listener::accept(&mut self.tcp),
                    if self.handshakes.len() < MAX_HANDSHAKES =>
                {
                    let handshake = self.acceptor.accept(stream);
                    self.handshakes.spawn(async move {
                        match timeout(HANDSHAKE_TIMEOUT, handshake).await {
                            Ok(Ok(session)) => Some((session, from)),
                            Ok(Err(error)) => {
                                tracing::debug!("TLS handshake with {from} failed: {error}");
                                None
                            }
                            Err(_) => None,
                        }
                    });
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}
