//! `pgmill health`: queries a worker's health endpoint, for containers without another HTTP client.
//!
//! Writes HTTP/1.1 to a socket without an HTTP library: the request is always the same, and the
//! response is one line.

use cli::{Exit, Failure, exit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::{HealthArgs, HealthUrl};
use crate::output::Output;

/// Maximum size of the response; a longer response is cut. A worker's response is one line.
const MAX_BYTES: u64 = 64 * 1024;

/// Queries the endpoint and prints the response. The exit code is 0 for status 200, else 1.
///
/// # Errors
/// Fails if no response arrives in time, or if the response is not HTTP.
pub(crate) async fn run(out: &Output, args: &HealthArgs) -> Exit {
    let HealthUrl { place, path } = &args.page;
    let url = format!("http://{place}{path}");
    let answered = match timeout(args.timeout, ask(&args.page)).await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "no response within {}",
            crate::output::format::span(args.timeout.as_secs_f64())
        )),
    };
    let (status, text) = match answered {
        Ok(answer) => answer,
        Err(reason) if out.json => {
            out.document(
                &json!({ "url": url, "healthy": false, "status": null, "answer": reason }),
            )?;
            return Ok(exit::FAILURE);
        }
        Err(reason) => {
            let hint = format!("Is the worker running with --http {place} (PGMILL_HTTP)?");
            return Err(Failure::new(exit::FAILURE, format!("{url}: {reason}")).hint(hint));
        }
    };
    let healthy = status == 200;
    out.answer(
        json!({ "url": url, "healthy": healthy, "status": status, "answer": text }),
        format!("{status} {text}"),
    )?;
    Ok(if healthy { exit::OK } else { exit::FAILURE })
}

/// Returns the status code and the body of the response, or the reason why there is none.
async fn ask(page: &HealthUrl) -> Result<(u16, String), String> {
    let connected = TcpStream::connect(&page.place).await;
    let mut stream = connected.map_err(|error| format!("could not connect: {error}"))?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: pgmill\r\nConnection: close\r\n\r\n",
        page.path, page.place
    );
    let cut = |error: std::io::Error| format!("connection lost: {error}");
    stream.write_all(request.as_bytes()).await.map_err(cut)?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await.map_err(cut)?;
    read(&String::from_utf8_lossy(&answer)).ok_or_else(|| "the response is not HTTP".to_owned())
}

fn read(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let line = head.lines().next()?.strip_prefix("HTTP/1.")?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_a_status_and_a_body() {
        assert_eq!(
            read("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\ndraining\n"),
            Some((503, "draining".into()))
        );
        for wrong in ["", "SSH-2.0\r\n\r\n", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1 200 OK"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
