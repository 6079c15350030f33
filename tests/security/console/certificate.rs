//! The certificate is replaced while the console serves.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::console::console_tls::Certificates;
use crate::harness::console::TokenFile;
use crate::harness::http::free_address;
use crate::harness::{Database, Worker, eventually};

const GET: &[u8] = b"GET /livez HTTP/1.1\r\nHost: console.example\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_certificate_is_used_without_a_restart() {
    let database = Database::new().await;
    let token = TokenFile::new("a-token-of-enough-characters");
    let [used, next] = ["used", "next"].map(Certificates::new);
    let old = Certificates::new("old");
    let address = free_address();
    let copy = |name: &str, from: &Certificates| {
        std::fs::copy(from.path(name), used.path(name)).unwrap();
    };
    copy("own.crt", &old);
    copy("own.key", &old);
    let (certificate, key) = (used.path("own.crt"), used.path("own.key"));
    let flags = ["--readers", "1", "--console", &address, "--console-token-file", token.path()];
    let tls = ["--console-tls-cert", &certificate, "--console-tls-key", &key];
    let allow = ["--console-allow-host", "console.example"];
    let worker = Worker::start_as_superuser(
        &database,
        "the console shows everything to its login",
        &[&flags[..], &tls, &allow].concat(),
    );
    eventually("the console is served", async || {
        old.connect(&address, "console.example").await.is_ok()
    })
    .await;
    let mut kept = old.connect(&address, "console.example").await.unwrap();

    // Only one of the files is replaced, or a file is empty: the old pair stays in use.
    copy("own.crt", &next);
    worker.until_logged("the old certificate stays in use").await;
    assert_eq!(old.ask(&address, GET).await.status, 200);
    assert!(next.connect(&address, "console.example").await.is_err());

    copy("own.key", &next);
    worker.until_logged("the certificate was read again").await;
    assert_eq!(next.ask(&address, GET).await.status, 200);
    assert!(old.connect(&address, "console.example").await.is_err());
    // An open connection continues.
    kept.write_all(GET).await.unwrap();
    let mut answer = String::new();
    let _ = kept.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
