//! HTTP GET over a plain socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Returns a loopback address without a listener.
pub(crate) async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Response of a server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Headers in lower case.
    pub(crate) headers: String,
    pub(crate) body: String,
}

/// Sends a GET request; `None` if the address has no listener.
pub(crate) async fn get(address: &str, path: &str) -> Option<Answer> {
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
