//! TLS of the console's own: certificates from files, and a listener that hands out sessions once they
//! are agreed upon.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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

use crate::app::StartError;

/// Who has not agreed upon a session by then is not waited for.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// More are not spoken with at once; the others wait in the queue of the socket.
const MAX_HANDSHAKES: usize = 64;

/// Where certificate and key are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM: the certificate, and behind it those that lead to a root.
    pub certificate: PathBuf,
    /// PEM, unencrypted.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Read once: a new certificate needs a restart.
    pub(crate) fn read(&self) -> Result<Arc<ServerConfig>, StartError> {
        let wrong = |what: &str, path: &Path, error: String| {
            StartError::Usage {
            message: format!("cannot use the {what} in {}: {error}", path.display()),
            hint: "both files are PEM; the certificate stands first in its file, the key is not encrypted"
                .to_owned(),
        }
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

/// Sessions over TLS. Nobody waits for the handshake of another.
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
                Some(agreed) = self.handshakes.join_next() => {
                    if let Ok(Some(session)) = agreed {
                        return session;
                    }
                }
                (stream, from) = axum::serve::Listener::accept(&mut self.tcp),
                    if self.handshakes.len() < MAX_HANDSHAKES =>
                {
                    let agreement = self.acceptor.accept(stream);
                    self.handshakes.spawn(async move {
                        match timeout(HANDSHAKE_TIMEOUT, agreement).await {
                            Ok(Ok(session)) => Some((session, from)),
                            Ok(Err(error)) => {
                                tracing::debug!("no TLS with {from}: {error}");
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
