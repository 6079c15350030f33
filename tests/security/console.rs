//! The HTTP servers under attack: `pgmill console`, `worker --console` and `worker --http`. Attackers
//! write to real servers over TCP.

pub(crate) mod bodies;
pub(crate) mod certificate;
pub(crate) mod flood;
pub(crate) mod pages;
pub(crate) mod proxy_headers;
pub(crate) mod sign_in;
pub(crate) mod slow;
pub(crate) mod smuggling;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::console::{reached_time_limit, until_in_time};

/// Source address of the attacker.
const ATTACKER: &str = "127.0.0.2";
/// Source address of somebody else.
const HONEST: &str = "127.0.0.3";

/// Connects from a source address. Linux accepts every address of 127.0.0.0/8.
async fn connect(from: &str, address: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{from}:0").parse().unwrap())?;
    socket.connect(address.parse().unwrap()).await
}

/// Sends bytes on a new connection, and returns everything that the server answers until it closes
/// the connection. Sends them again if they reached a time limit.
async fn raw(from: &str, address: &str, bytes: &[u8]) -> String {
    let send = || async {
        let mut stream = connect(from, address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        until_closed(&mut stream).await
    };
    until_in_time(send, |answer| reached_time_limit(status(answer).unwrap_or_default(), answer))
        .await
}

/// Reads until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let (mut read, mut chunk) = (Vec::new(), [0; 8192]);
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        read.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// Returns the status of a raw response; `None` without a response.
fn status(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// Requests a path on an open connection, and returns the status.
async fn get_on(stream: &mut TcpStream, path: &str) -> Option<u16> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut head = String::new();
    let mut byte = [0];
    while !head.ends_with("\r\n\r\n") {
        stream.read_exact(&mut byte).await.ok()?;
        head.push(byte[0].into());
    }
    let length = head.to_lowercase();
    let length = length.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    status(&head)
}

/// Allows this process to open as many files as the system permits.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns the resident memory of a process in kB.
fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the number of open files of a process.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
