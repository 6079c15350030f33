//! Sign-in: tokens cannot be guessed, and nobody can choose the session of somebody else.

use super::{ATTACKER, HONEST, raw, status};
use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::{Database, amount, eventually};

const TOKEN: &str = "a-token-of-enough-characters";

/// Number of wrong tokens without a lock.
const FREE_GUESSES: usize = 10;

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").into()
}

fn bearer(token: &str) -> Vec<u8> {
    get("/api/v1/queues", &format!("Authorization: Bearer {token}\r\n"))
}

fn form(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nConnection: close\r\n\
         {headers}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into()
}

fn login(token: &str) -> Vec<u8> {
    form("/login", "", &format!("token={token}"))
}

/// Returns the `Set-Cookie` header of a response.
fn set_cookie(answer: &str) -> Option<&str> {
    answer.lines().find_map(|line| line.strip_prefix("set-cookie: "))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guesser_is_locked_out_and_learns_nothing() {
    let database = Database::new().await;
    let file = TokenFile::new(TOKEN);
    let console = Console::start(&database, &["--token-file", file.path()]).await;
    let address = console.address.as_str();
    // Many guesses at once, by both ways.
    let count = amount(60, 300);
    let guesses = (0..count).map(|n| {
        let guess = format!("{TOKEN}{n}");
        let request = if n % 2 == 0 { bearer(&guess) } else { login(&guess) };
        async move { raw(ATTACKER, address, &request).await }
    });
    let answers = futures_util::future::join_all(guesses).await;
    let with = |expected| answers.iter().filter(|it| status(it) == Some(expected)).count();
    let (examined, locked) = (with(401), with(429));
    println!("{examined} guesses examined, {locked} not examined");
    assert_eq!(examined + locked, count);
    // Each second of the test permits at most one more guess.
    assert!((FREE_GUESSES + 1..FREE_GUESSES + 20).contains(&examined), "{examined}");
    // The right token gets the same answer as a wrong one.
    let lines = |answer: &str| {
        let ignored = ["date: ", "retry-after: "];
        let lines = answer.lines().filter(|line| !ignored.iter().any(|it| line.starts_with(it)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // Each further guess doubles the time of the lock, until it is long enough for what follows.
    for n in 0..amount(3, 4) {
        let guess = bearer(&format!("{TOKEN}-again-{n}"));
        eventually("the guess is examined", async || {
            status(&raw(ATTACKER, address, &guess).await) == Some(401)
        })
        .await;
    }
    let wrong = raw(ATTACKER, address, &bearer("another-wrong-token")).await;
    let right = raw(ATTACKER, address, &bearer(TOKEN)).await;
    assert_eq!(status(&right), Some(429), "{right}");
    assert!(right.contains("retry-after: "), "{right}");
    assert_eq!(lines(&right), lines(&wrong));
    let right = raw(ATTACKER, address, &login(TOKEN)).await;
    assert_eq!(status(&right), Some(429), "{right}");
    assert!(right.contains("Too many wrong tokens") && set_cookie(&right).is_none(), "{right}");
    // Others are not locked.
    assert_eq!(status(&raw(HONEST, address, &bearer(TOKEN)).await), Some(200));
    assert_eq!(status(&raw(HONEST, address, &login(TOKEN)).await), Some(303));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_token_and_a_signed_in_user_are_not_locked() {
    let database = Database::new().await;
    let file = TokenFile::new(TOKEN);
    let console = Console::start(&database, &["--token-file", file.path()]).await;
    let address = console.address.as_str();
    for _ in 0..3 * FREE_GUESSES {
        assert_eq!(status(&raw(HONEST, address, &bearer("an-outdated-token")).await), Some(401));
    }
    let signed_in = raw(HONEST, address, &login(TOKEN)).await;
    let cookie = set_cookie(&signed_in).unwrap().split(';').next().unwrap();
    for n in 0..3 * FREE_GUESSES {
        raw(HONEST, address, &bearer(&format!("another-guess-{n}"))).await;
    }
    let page = raw(HONEST, address, &get("/queues", &format!("Cookie: {cookie}\r\n"))).await;
    assert_eq!(status(&page), Some(200), "{page}");
    assert_eq!(status(&raw(HONEST, address, &get("/login", "")).await), Some(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_the_clients_of_the_proxy_are_told_apart() {
    let database = Database::new().await;
    let file = TokenFile::new(TOKEN);
    let console = Console::start(&database, &["--token-file", file.path(), "--behind-proxy"]).await;
    let ask = async |token: &str, forwarded: &str| {
        let headers = format!(
            "X-Forwarded-Proto: https\r\nX-Forwarded-For: {forwarded}\r\nAuthorization: Bearer {token}\r\n"
        );
        status(&raw(HONEST, &console.address, &get("/api/v1/queues", &headers)).await)
    };
    let mut last = None;
    for n in 0..=FREE_GUESSES + 1 {
        // The client adds addresses; the proxy appends that of the client.
        last = ask(&format!("guess-number-{n}"), &format!("192.0.2.{n}, 198.51.100.1")).await;
    }
    assert_eq!(last, Some(429));
    assert_eq!(ask(TOKEN, "198.51.100.2").await, Some(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_never_that_of_somebody_else() {
    let database = Database::new().await;
    let file = TokenFile::new(&format!("{TOKEN} ann\nanother-{TOKEN} eve"));
    let console = Console::start(&database, &["--token-file", file.path()]).await;
    let address = console.address.as_str();
    // A sign-in ignores the cookie that the browser sends, and creates a new one.
    let first = raw(HONEST, address, &login(TOKEN)).await;
    let first = set_cookie(&first).unwrap().split(';').next().unwrap().to_owned();
    for planted in ["pgmill=planted", first.as_str(), "__Host-pgmill=planted", "pgmill="] {
        let cookie = format!("Cookie: {planted}\r\n");
        let answer =
            raw(HONEST, address, &form("/login", &cookie, &format!("token={TOKEN}"))).await;
        let set = set_cookie(&answer).unwrap();
        assert!(!set.starts_with(&format!("{planted};")), "{set}");
        assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
        let page = raw(HONEST, address, &get("/queues", "Cookie: pgmill=planted\r\n")).await;
        assert_eq!(status(&page), Some(303), "{page}");
    }
    // One user cannot sign others out by signing in many times.
    for _ in 0..120 {
        raw(ATTACKER, address, &login(&format!("another-{TOKEN}"))).await;
    }
    let own = format!("Cookie: {first}\r\n");
    let page = raw(HONEST, address, &get("/queues", &own)).await;
    assert_eq!(status(&page), Some(200), "{page}");
    // Signing out ends the session on the server.
    let body = format!("csrf={}", csrf(&page));
    assert_eq!(status(&raw(HONEST, address, &form("/logout", &own, &body)).await), Some(303));
    assert_eq!(status(&raw(HONEST, address, &get("/queues", &own)).await), Some(303));
}
