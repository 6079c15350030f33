//! A console that serves a database, and requests to it as a browser or anybody else would send them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::http::Answer;
use super::{Database, Program};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// On a crowded machine a look may reach its two seconds, whatever it reads; one that reads too much
/// reaches them each time.
const MAX_TIMED_OUT_REQUESTS: usize = 10;

/// One process. Ended when dropped.
pub(crate) struct Console {
    child: Child,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
}

impl Console {
    /// On the database, with more flags.
    pub(crate) async fn start(database: &Database, flags: &[&str]) -> Self {
        Self::start_at(database, &database.url(), flags).await
    }

    /// Under another login.
    pub(crate) async fn start_at(database: &Database, url: &str, flags: &[&str]) -> Self {
        let flags = [&["--listen", "127.0.0.1:0"], flags].concat();
        Self::start_with(database, url, &flags).await
    }

    /// With these flags alone.
    pub(crate) async fn start_with(database: &Database, url: &str, flags: &[&str]) -> Self {
        let flags = [&["console"], flags].concat();
        let mut command = Program::pgmill(database, &flags).at(url).into_command();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let output = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(stderr);
            let mut output = String::new();
            while !output.contains("the console is at ")
                && lines.read_line(&mut output).unwrap() > 0
            {}
            output
        });
        let output = output.await.unwrap();
        let (_, url) = output.split_once("://").unwrap_or_else(|| panic!("it said {output}"));
        let address = url.split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        while self.child.try_wait().unwrap().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// A page or a document.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[("Host", &self.address)], "").await
    }

    /// A form of one of its pages: from there, and with the token of that page.
    pub(crate) async fn post(&self, path: &str, form: &str) -> Answer {
        let page = self.get("/priorities").await.body;
        let csrf = csrf(&page);
        self.post_with(path, &format!("{form}&csrf={csrf}"), &[]).await
    }

    /// A form with these fields, from a page of the console.
    pub(crate) async fn post_with(&self, path: &str, form: &str, more: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.address);
        let own = [("Host", self.address.as_str()), ("Origin", origin.as_str())];
        self.request("POST", path, &[&own[..], more].concat(), form).await
    }

    /// The cookie of who signs in with this token and name.
    pub(crate) async fn sign_in(&self, token: &str, name: &str) -> String {
        let answer = self.post_with("/login", &format!("token={token}&name={name}"), &[]).await;
        let set = answer.headers.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        set.and_then(|it| it.split(';').next()).unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    }

    /// Anything.
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

/// What the console there answers, asked again if a look came to its end.
pub(crate) async fn ask(address: &str, request: &[u8]) -> Answer {
    let mut polls = 0;
    loop {
        let answer = exchange(TcpStream::connect(address).await.unwrap(), request).await;
        polls += 1;
        if answer.status != 504 || polls == MAX_TIMED_OUT_REQUESTS {
            return answer;
        }
    }
}

/// As it goes over the wire.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Content-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    request.into_bytes()
}

/// One request on a connection of its own, and what is answered. A request that is too long is answered
/// before it has been read.
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
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let (status, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    Answer {
        status: status.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers.to_owned(),
        body: body.to_owned(),
    }
}

/// A file with the token; removed with the value.
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

/// The token in the forms of a page; empty if it has no form.
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
