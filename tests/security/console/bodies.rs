//! Oversized headers, paths and bodies: refused, with bounded memory.

use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{ATTACKER, raw, resident_kb, status};
use crate::harness::console::{Console, TokenFile};
use crate::harness::{Database, amount};

/// Memory that large bodies may use together, in kB: two bodies of 2 MB, each of which takes up to
/// 131 MB once it is parsed, and what the allocator keeps.
const MAX_MEMORY_KB: u64 = 400_000;

fn json(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_headers_and_paths_are_refused() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let ask = async |path: &str, headers: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        let answer = raw(ATTACKER, &console.address, request.as_bytes()).await;
        assert!(answer.len() < 400_000, "{} bytes", answer.len());
        status(&answer)
    };
    let long = |length: usize| "a".repeat(length);
    assert_eq!(ask("/livez", &format!("X: {}\r\n", long(60_000))).await, Some(200));
    assert_eq!(ask("/livez", &format!("X: {}\r\n", long(70_000))).await, Some(431));
    assert_eq!(ask("/livez", &format!("{}: x\r\n", long(70_000))).await, Some(431));
    assert_eq!(ask("/livez", &format!("Cookie: pgmill={}\r\n", long(70_000))).await, Some(431));
    assert_eq!(ask("/livez", &"X: 1\r\n".repeat(90)).await, Some(200));
    assert_eq!(ask("/livez", &"X: 1\r\n".repeat(101)).await, Some(431));
    assert_eq!(ask(&format!("/{}", long(60_000)), "").await, Some(404));
    assert_eq!(ask(&format!("/{}", long(70_000)), "").await, Some(431));
    assert_eq!(ask(&format!("/tasks?q={}", "name:a+".repeat(8_000)), "").await, Some(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_refused() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    for depth in [200, 100_000, 900_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            if open.len() * depth > 1_900_000 {
                continue;
            }
            let close = if depth < 1_000 { close.repeat(depth) } else { String::new() };
            let nested = format!("{}1{close}", open.repeat(depth));
            for body in [
                nested.clone(),
                format!(r#"{{"tasks": [{{"statement": "SELECT 1", "params": {nested}}}]}}"#),
                format!(r#"{{"tasks": [{{"statement": "SELECT 1"}}], "metadata": {nested}}}"#),
            ] {
                let answer = raw(ATTACKER, &console.address, &json("/api/v1/tasks", &body)).await;
                let reported = answer.get(..300).unwrap_or(&answer);
                assert!(matches!(status(&answer), Some(400 | 422)), "{open} {depth}: {reported}");
            }
        }
    }
    assert_eq!(console.get("/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_use_bounded_memory() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let (pid, before) = (console.pid(), resident_kb(console.pid()));
    let zeros = "0,".repeat(999_000);
    let body = format!(r#"{{"tasks": [{{"statement": "SELECT 1", "params": [{zeros}0]}}]}}"#);
    let request = json("/api/v1/tasks", &body);
    let count = amount(12, 40);
    let (over, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let measure = async {
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(5));
        while !over.load(Ordering::Relaxed) {
            ticks.tick().await;
            peak.fetch_max(resident_kb(pid), Ordering::Relaxed);
        }
    };
    let requests = async {
        let all = (0..count).map(|_| raw(ATTACKER, &console.address, &request));
        let answers = futures_util::future::join_all(all).await;
        over.store(true, Ordering::Relaxed);
        answers
    };
    let (answers, ()) = tokio::join!(requests, measure);
    for answer in &answers {
        // On a busy machine, the transfer may reach its time limit.
        let slow = status(answer) == Some(400) && answer.contains("not complete after 30 s");
        assert!(slow || matches!(status(answer), Some(422 | 503)), "{answer}");
    }
    let grown = peak.load(Ordering::Relaxed).saturating_sub(before);
    println!("{count} bodies of 2 MB: {grown} kB");
    assert!(grown < MAX_MEMORY_KB, "{grown} kB");
    // A length that is not true reserves nothing for ever.
    let small: Value = serde_json::json!({ "tasks": [{ "statement": "SELECT 1" }] });
    let answer = console.post_json("/api/v1/tasks", &small, &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_form_without_a_session_is_refused() {
    let database = Database::new().await;
    let token = TokenFile::new("a-token-of-enough-characters");
    let console = Console::start(&database, &["--token-file", token.path()]).await;
    let form = "a&".repeat(1_000_000);
    let answer = console.post_with("/login", &form, &[]).await;
    assert_eq!(answer.status, 413, "{}", answer.body);
    let answer = console.post_with("/queues/etl/pause", &form, &[]).await;
    assert_eq!(answer.status, 303, "the body of a stranger is not read: {}", answer.body);
    assert!(answer.headers.contains("location: /login"), "{}", answer.headers);
}
