//! Slow clients: the server closes their connections.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

use super::{ATTACKER, connect, raw, status, until_closed};
use crate::console::console_tls::Certificates;
use crate::harness::Database;
use crate::harness::console::{Console, TokenFile};

/// Time limit that the console promises for headers, bodies and blocked responses; a slow machine
/// may need longer.
const PROMISED: Duration = Duration::from_secs(30 + 30);

const FORM: &str = "Host: localhost\r\nOrigin: http://localhost\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\n";

/// Sends these bytes, then a byte each second, until the server closes the connection. Returns its
/// answer.
async fn drip(address: &str, bytes: &[u8], byte: &[u8]) -> String {
    let begun = Instant::now();
    let (mut read, mut write) = connect(ATTACKER, address).await.unwrap().into_split();
    write.write_all(bytes).await.unwrap();
    let dripping = async {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            if write.write_all(byte).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut answer = String::new();
    let reading = tokio::io::AsyncReadExt::read_to_string(&mut read, &mut answer);
    tokio::select! {
        _ = reading => {}
        () = dripping => {}
    }
    let took = begun.elapsed();
    println!("closed after {took:?}");
    assert!(took < PROMISED, "{took:?}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_is_cut() {
    let database = Database::new().await;
    let token = TokenFile::new("a-token-of-enough-characters");
    let mut console = Console::start(&database, &["--token-file", token.path()]).await;
    let address = console.address.as_str();
    let header = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ";
    let body = format!("POST /login HTTP/1.1\r\n{FORM}Content-Length: 4000\r\n\r\n");
    let chunked = format!("POST /login HTTP/1.1\r\n{FORM}Transfer-Encoding: chunked\r\n\r\n");
    let answers = tokio::join!(
        drip(address, b"", b""),
        drip(address, header, b"a"),
        drip(address, body.as_bytes(), b"a"),
        drip(address, chunked.as_bytes(), b"1\r\na\r\n"),
        blocked_response(address),
    );
    assert_eq!(answers.0, "");
    assert_eq!(status(&answers.1), None, "{}", answers.1);
    assert_eq!(status(&answers.2), Some(400), "{}", answers.2);
    assert_eq!(status(&answers.3), Some(400), "{}", answers.3);
    // A client that is in the middle of a request does not delay the shutdown beyond the limit.
    let mut slow = connect(ATTACKER, address).await.unwrap();
    slow.write_all(header).await.unwrap();
    raw(ATTACKER, address, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    console.terminate().await;
    until_closed(&mut slow).await;
}

/// Requests many responses and reads none of them, until the server closes the connection.
async fn blocked_response(address: &str) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let request = "GET /static/uplot.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    // The server stops reading when it cannot write. Its reset ends the write.
    let written = stream.write_all(request.as_bytes()).await;
    let mut more = Ok(());
    while more.is_ok() {
        more = stream.write_all(request.as_bytes()).await;
    }
    println!("the client that does not read: {written:?}, then {more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_tls_handshake_is_cut() {
    let database = Database::new().await;
    let (token, certificates) =
        (TokenFile::new("a-token-of-enough-characters"), Certificates::new("slow"));
    let (own, key) = (certificates.path("own.crt"), certificates.path("own.key"));
    let flags = ["--token-file", token.path(), "--tls-cert", &own, "--tls-key", &key];
    let console = Console::start(&database, &flags).await;
    // The header of a TLS record whose content does not arrive.
    drip(&console.address, b"\x16\x03\x01\x02\x00", b"\x01").await;
}
