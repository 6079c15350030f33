//! A console process, and requests as a browser or another client sends them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::http::Answer;
use super::{Database, Program};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Number of times that a request is sent while a query reaches its time limit of two seconds. On a
/// busy machine any query may reach the limit; a query that reads too much reaches it every time.
pub(crate) const MAX_TIMED_OUT_REQUESTS: usize = 10;

/// Error of a request that waited too long for a session.
const NO_SESSION: &str = "no session with the database within";

/// Text that a console prints when it accepts requests.
const READY: &str = "console listening at ";

/// One console process, terminated on drop.
pub(crate) struct Console {
    child: Child,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
}

impl Console {
    /// Starts a console on the database with additional flags.
    pub(crate) async fn start(database: &Database, flags: &[&str]) -> Self {
        Self::start_at(database, &database.operator_url(), flags).await
    }

    /// Starts a console with another login.
    pub(crate) async fn start_at(database: &Database, url: &str, flags: &[&str]) -> Self {
        let flags = [&["--listen", "127.0.0.1:0"], flags].concat();
        Self::start_with(database, url, &flags).await
    }

    /// Starts a console with exactly these flags, again if its check of the database reached a time
    /// limit.
    pub(crate) async fn start_with(database: &Database, url: &str, flags: &[&str]) -> Self {
        let flags = [&["console"], flags].concat();
        let launch = || launch(Program::pgmill(database, &flags).at(url).into_command());
        let timed_out = |(_, printed): &(Child, String)| {
            let ended = !printed.contains(READY);
            ended && (printed.contains("statement timeout") || printed.contains(NO_SESSION))
        };
        let (child, printed) = until_in_time(launch, timed_out).await;
        let (_, url) =
            printed.split_once("://").unwrap_or_else(|| panic!("unexpected output: {printed}"));
        let address = url.split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits until the console has ended.
    pub(crate) async fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        while self.child.try_wait().unwrap().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Requests a page or a document.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[("Host", &self.address)], "").await
    }

    /// Submits a form from one of the console's pages, with the token of that page.
    pub(crate) async fn post(&self, path: &str, form: &str) -> Answer {
        let page = self.get("/priorities").await.body;
        let csrf = csrf(&page);
        self.post_with(path, &format!("{form}&csrf={csrf}"), &[]).await
    }

    /// Submits a form with these fields from a page of the console.
    pub(crate) async fn post_with(&self, path: &str, form: &str, more: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.address);
        let own = [("Host", self.address.as_str()), ("Origin", origin.as_str())];
        self.request("POST", path, &[&own[..], more].concat(), form).await
    }

    /// Sends a JSON document to the API, as a program does.
    pub(crate) async fn post_json(
        &self,
        path: &str,
        body: &serde_json::Value,
        more: &[(&str, &str)],
    ) -> Answer {
        let own = [("Host", self.address.as_str()), ("Content-Type", "application/json")];
        self.request("POST", path, &[&own[..], more].concat(), &body.to_string()).await
    }

    /// Returns the cookie after signing in with this token and name.
    pub(crate) async fn sign_in(&self, token: &str, name: &str) -> String {
        let answer = self.post_with("/login", &format!("token={token}&name={name}"), &[]).await;
        let set = answer.headers.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        set.and_then(|it| it.split(';').next()).unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    }

    /// Sends any request.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        ask(&self.address, &request(method, path, headers, body)).await
    }
}

/// Starts a console. Returns what it printed until it was ready or ended.
async fn launch(mut command: Command) -> (Child, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let stderr = child.stderr.take().unwrap();
    let printed = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(stderr);
        let mut printed = String::new();
        while !printed.contains(READY) && lines.read_line(&mut printed).unwrap() > 0 {}
        printed
    });
    (child, printed.await.unwrap())
}

/// Returns the console's response; sends the request again if it reached a time limit.
pub(crate) async fn ask(address: &str, request: &[u8]) -> Answer {
    let send = || async { exchange(TcpStream::connect(address).await.unwrap(), request).await };
    until_in_time(send, timed_out).await
}

/// Sends a request again while it reaches a time limit, and returns the last response.
pub(crate) async fn until_in_time<A, F: Future<Output = A>>(
    send: impl Fn() -> F,
    timed_out: impl Fn(&A) -> bool,
) -> A {
    for _ in 1..MAX_TIMED_OUT_REQUESTS {
        let answer = send().await;
        if !timed_out(&answer) {
            return answer;
        }
    }
    send().await
}

/// Returns whether a request reached a time limit of the console.
pub(crate) fn timed_out(answer: &Answer) -> bool {
    reached_time_limit(answer.status, &answer.body)
}

/// Returns whether a request reached a time limit of the console, as it can on a busy machine: that of
/// a query, for which a list has a notice next to its search; that of a lock; or that of a session.
pub(crate) fn reached_time_limit(status: u16, body: &str) -> bool {
    status == 504
        || body.contains("The search exceeded its time limit.")
        || (status == 503 && (body.contains("lock timeout") || body.contains(NO_SESSION)))
}

/// Formats a request as sent over the network.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let has_type = headers.iter().any(|(name, _)| *name == "Content-Type");
    let headers: String = headers
        .iter()
        .chain(if has_type { &[][..] } else { &form })
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    request.into_bytes()
}

/// Sends one request on a new connection and returns the response. The response to an oversized
/// request arrives before the request has been read.
pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> Answer {
    let _ = stream.write_all(request).await;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 8192]);
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        bytes.extend_from_slice(&chunk[..count]);
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text}"));
    let (status, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    Answer {
        status: status.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers.to_owned(),
        body: body.to_owned(),
    }
}

/// A file with the token, removed on drop.
pub(crate) struct TokenFile(std::path::PathBuf);

impl TokenFile {
    pub(crate) fn new(token: &str) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-token-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("{token}\n")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the token in the forms of a page; empty without a form.
pub(crate) fn csrf(page: &str) -> &str {
    let value = page.split("name=\"csrf\" value=\"").nth(1);
    value.and_then(|rest| rest.split('"').next()).unwrap_or_default()
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
