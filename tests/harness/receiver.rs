//! A receiver of webhooks and traces: an HTTP server that records requests, and answers as the test says.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::eventually;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    /// Headers in lower case.
    pub(crate) headers: String,
    /// The content, if it is JSON.
    pub(crate) body: Value,
    pub(crate) content: Vec<u8>,
}

/// The server; it ends with the test's runtime.
pub(crate) struct Receiver {
    pub(crate) address: String,
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<String>>,
}

impl Receiver {
    /// Starts a server that answers 200.
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Starts a server that answers 200, with TLS if there is an acceptor.
    pub(crate) async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(Mutex::new("200 OK".to_owned()));
        let it = Self { address, received: Arc::clone(&received), answer: Arc::clone(&answer) };
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (received, answer) = (Arc::clone(&received), Arc::clone(&answer));
                match tls.clone() {
                    None => drop(tokio::spawn(serve(stream, received, answer))),
                    Some(tls) => drop(tokio::spawn(async move {
                        serve(tls.accept(stream).await.ok()?, received, answer).await
                    })),
                }
            }
        });
        it
    }

    /// Sets the status and further header lines of answers; without a text, requests stay
    /// unanswered.
    pub(crate) fn answers(&self, status_and_headers: &str) {
        *self.answer.lock() = status_and_headers.to_owned();
    }

    /// Returns the requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    /// Waits until this many requests have arrived, and returns all.
    pub(crate) async fn until_received(&self, count: usize) -> Vec<Received> {
        eventually(&format!("{count} requests arrive"), async || self.received().len() >= count)
            .await;
        self.received()
    }

    /// Returns the URL with this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<String>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let (mut headers, mut length) = (String::new(), 0);
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        headers.push_str(&lower);
    }
    let mut content = vec![0; length];
    stream.read_exact(&mut content).await.ok()?;
    let body = serde_json::from_slice(&content).unwrap_or_default();
    let status = answer.lock().clone();
    received.lock().push(Received { path, headers, body, content });
    if status.is_empty() {
        return std::future::pending().await;
    }
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// A file with this content, removed on drop.
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Writes the file.
    pub(crate) fn new(content: &str) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-notify-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
