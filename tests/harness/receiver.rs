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
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    received: Mutex<Vec<Received>>,
    answer: Mutex<String>,
    /// Answer to the next request only.
    next_answer: Mutex<Option<String>>,
    /// Unanswered requests on open connections: now, and the most at any time.
    unanswered: Mutex<(usize, usize)>,
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
        let state = Arc::new(State::default());
        let it = Self { address, state: Arc::clone(&state) };
        it.answers("200 OK");
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                match tls.clone() {
                    None => drop(tokio::spawn(async move { serve(stream, &state).await })),
                    Some(tls) => drop(tokio::spawn(async move {
                        serve(tls.accept(stream).await.ok()?, &state).await
                    })),
                }
            }
        });
        it
    }

    /// Sets the status and further header lines of answers; without a text, requests stay
    /// unanswered.
    pub(crate) fn answers(&self, status_and_headers: &str) {
        *self.state.answer.lock() = status_and_headers.to_owned();
    }

    /// Sets the status and further header lines of the next answer.
    pub(crate) fn answers_once(&self, status_and_headers: &str) {
        *self.state.next_answer.lock() = Some(status_and_headers.to_owned());
    }

    /// Returns the requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.received.lock().clone()
    }

    /// Returns how many requests were unanswered at the same time. A request whose connection has just
    /// been closed may count together with its successor.
    pub(crate) fn most_unanswered(&self) -> usize {
        self.state.unanswered.lock().1
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

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, state: &State) -> Option<()> {
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
    let next = state.next_answer.lock().take();
    let status = next.unwrap_or_else(|| state.answer.lock().clone());
    state.received.lock().push(Received { path, headers, body, content });
    if status.is_empty() {
        {
            let (now, most) = &mut *state.unanswered.lock();
            *now += 1;
            *most = (*most).max(*now);
        }
        // The client gives up.
        let _ = stream.read(&mut [0]).await;
        state.unanswered.lock().0 -= 1;
        return None;
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
        Self::with_suffix(content, "")
    }

    /// Writes the file; its name ends in `suffix`.
    pub(crate) fn with_suffix(content: &str, suffix: &str) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-notify-{}-{n}{suffix}", std::process::id());
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
