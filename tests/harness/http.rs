//! HTTP GET over a plain socket.

use cluster::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::console::until_in_time;

/// Returns a loopback address without a listener. No other test gets it.
pub(crate) fn free_address() -> String {
    let port = Port::reserve().unwrap();
    let address = format!("127.0.0.1:{}", port.number());
    // The address stays reserved until the end of the process.
    std::mem::forget(port);
    address
}

/// Response of a server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Headers in lower case.
    pub(crate) headers: String,
    pub(crate) body: String,
}

/// Sends a GET request, again if a query reached its time limit; `None` if the address has no
/// listener.
pub(crate) async fn get(address: &str, path: &str) -> Option<Answer> {
    let timed_out = |answer: &Option<Answer>| answer.as_ref().is_some_and(|it| it.status == 504);
    until_in_time(|| exchange(address, path), timed_out).await
}

async fn exchange(address: &str, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let (status, headers) = head.split_once("\r\n")?;
    Some(Answer {
        status: status.split(' ').nth(1)?.parse().ok()?,
        headers: headers.to_lowercase(),
        body: body.to_owned(),
    })
}
