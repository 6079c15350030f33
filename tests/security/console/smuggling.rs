//! Request smuggling: bytes that one server takes for a body are never a request of the console.

use super::{ATTACKER, raw, status};
use crate::harness::Database;
use crate::harness::console::Console;

/// A request that would be visible in the answer.
const SMUGGLED: &str = "GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\n\r\n";

const JSON: &str = "POST /api/v1/queues/pause HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_lengths_is_the_last_of_its_connection() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let ask = async |headers: &str, body: &str| {
        raw(ATTACKER, &console.address, format!("{JSON}{headers}\r\n{body}").as_bytes()).await
    };
    let length = SMUGGLED.len() + 5;
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    for headers in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        format!("transfer-encoding: Chunked\r\ncontent-length: {length}\r\n"),
        format!(
            "Transfer-Encoding: chunked\r\nContent-Length: {length}\r\nConnection: keep-alive\r\n"
        ),
    ] {
        let answer = ask(&headers, &chunked).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{headers}: {answer}");
        assert!(!answer.contains("HTTP/1.1 200"), "{headers}: {answer}");
    }
    // Framing that servers understand differently is refused.
    for headers in [
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: 0, {length}\r\n"),
        "Content-Length: +5\r\n".to_owned(),
        "Content-Length: -1\r\n".to_owned(),
        "Content-Length: 0x10\r\n".to_owned(),
        "Content-Length: 99999999999999999999\r\n".to_owned(),
        "Transfer-Encoding: identity\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
        "Transfer-Encoding:\x0bchunked\r\n".to_owned(),
        " Transfer-Encoding: chunked\r\n".to_owned(),
        "X: 1\r\n Transfer-Encoding: chunked\r\n".to_owned(),
        "Transfer\x00Encoding: chunked\r\n".to_owned(),
    ] {
        let answer = ask(&headers, &chunked).await;
        assert_eq!(status(&answer), Some(400), "{headers:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{headers:?}: {answer}");
    }
    // Invalid chunks end the connection.
    for chunks in ["fffffffffffffffff\r\n", "-1\r\n", "5 5\r\nhello\r\n", "5\rhello\r\n", "0x5\r\n"]
    {
        let answer = ask("Transfer-Encoding: chunked\r\n", &format!("{chunks}{SMUGGLED}")).await;
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{chunks:?}: {answer}");
        assert!(!answer.contains("HTTP/1.1 200"), "{chunks:?}: {answer}");
    }
    // HTTP/1.0 has no chunks.
    let old = format!("{JSON}Transfer-Encoding: chunked\r\n\r\n{chunked}")
        .replace("HTTP/1.1", "HTTP/1.0");
    let answer = raw(ATTACKER, &console.address, old.as_bytes()).await;
    assert!(!answer.contains(" 200 "), "{answer}");
}

/// The body of a refused request is not the next request, although the console has not read it.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_refused_request_is_not_a_request() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let length = SMUGGLED.len();
    for line in [
        "POST /api/v1/queues/pause HTTP/1.1\r\nHost: evil.example",
        "DELETE /api/v1/queues HTTP/1.1\r\nHost: localhost",
        "POST /queues/etl/pause HTTP/1.1\r\nHost: localhost\r\nOrigin: null",
        "GET /livez HTTP/1.1\r\nHost: localhost",
    ] {
        let request = format!("{line}\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}");
        let request =
            format!("{request}GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = raw(ATTACKER, &console.address, request.as_bytes()).await;
        assert!(
            !answer.contains("application/json\r\nx-content") || !answer.contains("\"queues\""),
            "{answer}"
        );
        assert!(!answer.contains("[]"), "{line}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 2, "{line}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_hosts_is_refused() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    for (hosts, expected) in [
        ("Host: localhost\r\n", 200),
        ("Host: localhost\r\nHost: localhost\r\n", 400),
        ("Host: localhost\r\nHost: evil.example\r\n", 400),
        ("Host: evil.example\r\nHost: localhost\r\n", 400),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost@evil.example\r\n", 403),
        ("Host: localhost:1@evil.example\r\n", 403),
        ("Host: localhost.\r\n", 403),
        ("Host: [::1]evil.example\r\n", 403),
        ("Host:\r\n", 403),
        ("X-Forwarded-Host: localhost\r\n", 403),
        ("Host: evil.example\r\nX-Forwarded-Host: localhost\r\n", 403),
        ("Host: evil.example\r\nForwarded: host=localhost\r\n", 403),
    ] {
        let request = format!("GET /livez HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let answer = raw(ATTACKER, &console.address, request.as_bytes()).await;
        assert_eq!(status(&answer), Some(expected), "{hosts:?}: {answer}");
    }
    // The name in the request line does not replace the header.
    for line in ["http://localhost/livez", "//localhost/livez"] {
        let request =
            format!("GET {line} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        let answer = raw(ATTACKER, &console.address, request.as_bytes()).await;
        assert_eq!(status(&answer), Some(403), "{line}: {answer}");
    }
}
