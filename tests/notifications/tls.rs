//! HTTPS: the certificate of a receiver is verified.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, Receiver, eventually};
use crate::notifications::delivery::worker;
use crate::notifications::events::subscribe;

/// A root certificate, and a certificate for localhost with its key. Removed on drop.
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    /// Creates them in a folder of this name.
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pgmill-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = "set -e; key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            openssl req -x509 $key -keyout ca.key -out ca.crt -days 2 -subj /CN=root
            openssl req $key -keyout own.key -out own.csr -subj /CN=localhost
            echo 'subjectAltName=DNS:localhost' > names
            openssl x509 -req -in own.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                -extfile names -out own.crt";
        let made = Command::new("bash").args(["-c", script]).current_dir(&folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let certificate = CertificateDer::from_pem_file(self.path("own.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("own.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_only_to_a_receiver_with_a_valid_certificate() {
    let database = Database::new().await;
    let certificates = Certificates::new("receiver");
    let receiver = Receiver::start_with(Some(certificates.acceptor())).await;
    let port = receiver.address.rsplit(':').next().unwrap();
    let ca = certificates.path("ca.crt");
    let table = |name: &str, host: &str, more: &str| {
        format!(
            "[destinations.{name}]\nkind = \"webhook\"\nurl = \"https://{host}:{port}/{name}\"\n\
             allow_private = true\n{more}\n"
        )
    };
    let trusted = format!("ca_file = \"{ca}\"");
    let tables = [
        table("good", "localhost", &trusted),
        table("other_name", "127.0.0.1", &trusted),
        table("untrusted", "localhost", ""),
    ];
    let config = TemporaryFile::new(&tables.concat());
    for name in ["good", "other_name", "untrusted"] {
        subscribe(&database, name, json!({"events": ["task_failed"], "destination": name})).await;
    }
    let _worker = worker(&database, &config);
    database.execute("SELECT mill.notify('task_failed', '{\"task_id\": 1}')").await;
    eventually("all were attempted", async || {
        database
            .value(
                "SELECT bool_and(last_error IS NOT NULL OR last_sent_at IS NOT NULL)
                 FROM mill.subscription_state",
            )
            .await
    })
    .await;
    let errors: Vec<Option<String>> = database
        .value("SELECT array_agg(s.last_error ORDER BY s.name) FROM mill.subscription_status s")
        .await;
    assert_eq!(errors[0], None, "{errors:?}");
    for error in &errors[1..] {
        let error = error.as_deref().unwrap();
        assert!(error.contains("failed: invalid peer certificate"), "{error}");
    }
    let paths: Vec<String> = receiver.received().into_iter().map(|it| it.path).collect();
    assert_eq!(paths, ["/good"]);
}
