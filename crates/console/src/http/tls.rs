//! Certificate and key of the console, which are read again while it serves.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, version};
use tokio::sync::watch;

use crate::options::{StartError, TlsFiles};
use crate::reload::{self, Reload};

/// Certificate and key, and the contents of their files.
pub(crate) struct TlsConfig {
    files: TlsFiles,
    contents: [Vec<u8>; 2],
    current: watch::Sender<Arc<ServerConfig>>,
}

impl TlsConfig {
    /// Reads both files.
    pub(crate) fn read(files: &TlsFiles) -> Result<Self, StartError> {
        let contents = contents(files)?;
        let current = watch::Sender::new(Arc::new(server_config(files, &contents)?));
        Ok(Self { files: files.clone(), contents, current })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.current.subscribe()
    }

    /// Reads the files again at an interval, and replaces the configuration of new connections if the
    /// files have changed.
    pub(crate) async fn reload(mut self) {
        let mut reload = Reload::of("certificate");
        loop {
            reload.due().await;
            let result = self.reload_once().await;
            reload.done(result);
        }
    }

    async fn reload_once(&mut self) -> Result<(), StartError> {
        let files = self.files.clone();
        let Some(read) = reload::read(move || contents(&files)).await? else {
            return Ok(());
        };
        if read == self.contents {
            return Ok(());
        }
        let config = server_config(&self.files, &read)?;
        self.contents = read;
        self.current.send_replace(Arc::new(config));
        tracing::info!("the certificate was read again");
        Ok(())
    }
}

fn contents(files: &TlsFiles) -> Result<[Vec<u8>; 2], StartError> {
    let read = |what: &str, path: &Path| {
        std::fs::read(path).map_err(|error| unusable(what, path, &error.to_string()))
    };
    Ok([read("certificate", &files.certificate)?, read("key", &files.key)?])
}

fn unusable(what: &str, path: &Path, error: &str) -> StartError {
    StartError::Usage {
        message: format!("could not use the {what} in {}: {error}", path.display()),
        hint: "both files must be PEM: the certificate first in its file, the key not encrypted"
            .to_owned(),
    }
}

fn server_config(
    files: &TlsFiles,
    [certificate, key]: &[Vec<u8>; 2],
) -> Result<ServerConfig, StartError> {
    let unusable_certificate = |error: String| unusable("certificate", &files.certificate, &error);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable_certificate(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| unusable("key", &files.key, &error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&version::TLS13, &version::TLS12];
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable_certificate(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
