//! A console on a public address: with its own TLS, or behind a proxy that reports TLS.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::console::{
    Console, TokenFile, csrf, exchange, request, timed_out, until_in_time,
};
use crate::harness::http::Answer;
use crate::harness::{Database, Program};

const TOKEN: &str = "a-token-for-elsewhere";

/// A root certificate, a certificate signed by it with its key, and an unrelated key. Removed on
/// drop.
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pgmill-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = "set -e; key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            openssl req -x509 $key -keyout ca.key -out ca.crt -days 2 -subj /CN=root
            openssl req $key -keyout own.key -out own.csr -subj /CN=console.example
            echo 'subjectAltName=DNS:console.example' > names
            openssl x509 -req -in own.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                -extfile names -out own.crt
            openssl req -x509 $key -keyout other.key -out other.crt -days 2 -subj /CN=other";
        let made = Command::new("bash").args(["-c", script]).current_dir(&folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Connects as a client that trusts only this root.
    pub(crate) async fn connect(
        &self,
        address: &str,
        name: &str,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.crt")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    pub(crate) async fn ask(&self, address: &str, asked: &[u8]) -> Answer {
        let connect = || self.connect(address, "console.example");
        let send = || async { exchange(connect().await.unwrap(), asked).await };
        until_in_time(send, timed_out).await
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the loopback address of a console that listens on all addresses.
fn reached(console: &Console) -> String {
    format!("127.0.0.1:{}", console.address.rsplit_once(':').unwrap().1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_address_needs_tls_or_a_proxy() {
    let database = Database::new().await;
    let token = TokenFile::new(TOKEN);
    let certificates = Certificates::new("mismatch");
    let (own, key, other) = (
        certificates.path("own.crt"),
        certificates.path("own.key"),
        certificates.path("other.key"),
    );
    let open = ["console", "--listen", "0.0.0.0:0", "--token-file", token.path()];
    let cases: [(&[&str], &[&str]); 5] = [
        (&[], &["TLS is required", "--tls-cert FILE --tls-key FILE, or --behind-proxy"]),
        (&["--tls-cert", &own], &["--tls-key"]),
        (&["--tls-key", &key], &["--tls-cert"]),
        (
            &["--tls-cert", &own, "--tls-key", &other],
            &["could not use the certificate in", "own.crt"],
        ),
        (
            &["--tls-cert", "/nowhere", "--tls-key", &key],
            &["could not use the certificate in /nowhere"],
        ),
    ];
    for (flags, texts) in cases {
        let flags = [&open[..], flags].concat();
        let (code, _, printed) = Program::pgmill(&database, &flags).run().await;
        assert_eq!(code, i32::from(cli::exit::USAGE), "{flags:?}: {printed}");
        for text in texts {
            assert!(printed.contains(text), "{text} for {flags:?}: {printed}");
        }
    }
    let without = ["console", "--listen", "0.0.0.0:0", "--tls-cert", &own, "--tls-key", &key];
    let (code, _, printed) = Program::pgmill(&database, &without).run().await;
    assert!(
        code == i32::from(cli::exit::USAGE) && printed.contains("a token is required"),
        "{printed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_and_actions_work_over_tls() {
    let database = Database::new().await;
    let (token, certificates) = (TokenFile::new(TOKEN), Certificates::new("own"));
    let (own, key) = (certificates.path("own.crt"), certificates.path("own.key"));
    let flags = ["--listen", "0.0.0.0:0", "--token-file", token.path(), "--allow-host"];
    let flags = [&flags[..], &["console.example", "--tls-cert", &own, "--tls-key", &key]].concat();
    let mut console = Console::start_with(&database, &database.url(), &flags).await;
    let address = reached(&console);
    // A silent client does not block other clients. A client without TLS learns nothing.
    let _silent = TcpStream::connect(&address).await.unwrap();
    let mut plain = TcpStream::connect(&address).await.unwrap();
    let mut printed = Vec::new();
    tokio::io::AsyncWriteExt::write_all(&mut plain, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut plain, &mut printed).await;
    assert!(!String::from_utf8_lossy(&printed).contains("HTTP"), "{printed:?}");
    assert!(certificates.connect(&address, "evil.example").await.is_err(), "another name");

    let host = ("Host", "console.example");
    let login = format!("token={TOKEN}&name=ann");
    for (origin, status) in [
        ("http://console.example", 403),
        ("https://evil.example", 403),
        ("https://console.example", 303),
    ] {
        let asked = request("POST", "/login", &[host, ("Origin", origin)], &login);
        assert_eq!(certificates.ask(&address, &asked).await.status, status, "{origin}");
    }
    let own = [host, ("Origin", "https://console.example")];
    let answer = certificates.ask(&address, &request("POST", "/login", &own, &login)).await;
    let set = answer.headers.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(set.contains("; Secure") && set.contains("HttpOnly"), "{set}");
    let cookie = ("Cookie", set.split(';').next().unwrap());
    let page = certificates.ask(&address, &request("GET", "/queues", &[host, cookie], "")).await;
    assert_eq!(page.status, 200);
    let form = format!("paused=true&csrf={}", csrf(&page.body));
    let act = request("POST", "/queues/default/pause", &[own[0], own[1], cookie], &form);
    assert_eq!(certificates.ask(&address, &act).await.status, 303);
    assert!(database.value::<bool>("SELECT paused FROM mill.queues").await);
    // Shutdown works with an unfinished TLS handshake still open.
    console.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_a_request_without_tls_is_refused() {
    let database = Database::new().await;
    let token = TokenFile::new(&format!("{TOKEN}-of-a-proxy"));
    let flags = ["--listen", "0.0.0.0:0", "--token-file", token.path(), "--behind-proxy"];
    let console = Console::start_with(&database, &database.url(), &flags).await;
    let address = reached(&console);
    let ask = async |path: &str, headers: &[(&str, &str)]| {
        let headers = [&[("Host", address.as_str())], headers].concat();
        let stream = TcpStream::connect(&address).await.unwrap();
        exchange(stream, &request("GET", path, &headers, "")).await
    };
    let forwarded_proto = |value| ("X-Forwarded-Proto", value);
    for path in ["/login", "/livez", "/static/console.js", "/api/v1/queues"] {
        for headers in [
            &[][..],
            &[forwarded_proto("http")],
            &[forwarded_proto("")],
            &[forwarded_proto("https, http")],
            &[forwarded_proto("https"), forwarded_proto("http")],
            &[forwarded_proto("httpsx")],
        ] {
            let answer = ask(path, headers).await;
            assert_eq!(answer.status, 403, "{path} with {headers:?}");
            assert!(answer.body.contains("X-Forwarded-Proto: https"), "{}", answer.body);
        }
        let through = ask(path, &[forwarded_proto("HTTPS")]).await;
        assert_ne!(through.status, 403, "{path}: {}", through.body);
    }
    assert_eq!(ask("/login", &[forwarded_proto("https, https")]).await.status, 200);
    let sign_in = async |origin: &str| {
        let headers = [("Host", address.as_str()), forwarded_proto("https"), ("Origin", origin)];
        let stream = TcpStream::connect(&address).await.unwrap();
        let form = format!("token={TOKEN}-of-a-proxy");
        exchange(stream, &request("POST", "/login", &headers, &form)).await
    };
    assert_eq!(sign_in(&format!("http://{address}")).await.status, 403);
    let answer = sign_in(&format!("https://{address}")).await;
    assert!(answer.status == 303 && answer.headers.contains("; Secure"), "{}", answer.headers);
}
