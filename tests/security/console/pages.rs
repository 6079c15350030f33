//! Pages and forms: requests from other sites, frames, caches, paths and names.

use super::{ATTACKER, raw, status};
use crate::harness::console::{Console, csrf};
use crate::harness::routes::{filled, post_routes, routes};
use crate::harness::{Database, amount};

/// Values for the parameters of paths.
const VALUES: [(&str, &str); 4] =
    [("id", "1"), ("queue", "default"), ("group", "g"), ("name", "console.js")];

/// Returns the headers that a browser sends with a form of another site, or from a sandboxed frame.
const FOREIGN: &[&str] = &[
    "Origin: null\r\nSec-Fetch-Site: cross-site\r\n",
    "Origin: null\r\n",
    "Origin: null\r\nReferer: http://localhost/queues\r\n",
    "Origin: http://evil.example\r\n",
    "Origin: http://localhost.evil.example\r\n",
    "Origin: http://localhost@evil.example\r\n",
    "Origin: http://localhost:1\r\n",
    "Origin: http://evil.example\r\nOrigin: http://localhost\r\n",
    "Origin: http://localhost\r\nSec-Fetch-Site: cross-site\r\n",
    "Origin: http://localhost\r\nSec-Fetch-Site: same-site\r\n",
    "Origin: localhost\r\n",
    "Origin:\r\n",
    "Referer: http://localhost/queues\r\n",
    "",
];

fn post(path: &str, headers: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
         Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_of_another_site_acts() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    // The attacker even knows the CSRF token.
    let own = csrf(&console.get("/priorities").await.body).to_owned();
    let form = format!("paused=true&draining=true&csrf={own}");
    let kind = "application/x-www-form-urlencoded";
    for headers in FOREIGN {
        for path in post_routes().iter().map(String::as_str).chain(["/login", "/logout"]) {
            let request = post(&filled(path, &VALUES), headers, kind, &form);
            let answer = raw(ATTACKER, &console.address, &request).await;
            assert_eq!(status(&answer), Some(403), "{path} with {headers:?}: {answer}");
        }
    }
    let body = r#"{"queue": "etl", "paused": true}"#;
    let (paths, last) = FOREIGN.split_at(FOREIGN.len() - 2);
    for headers in paths {
        let request = post("/api/v1/queues/pause", headers, "application/json", body);
        let answer = raw(ATTACKER, &console.address, &request).await;
        assert_eq!(status(&answer), Some(403), "{headers:?}: {answer}");
    }
    // A program sends no Origin. A form that a browser sends without one cannot be JSON.
    for headers in last {
        for kind in ["text/plain", kind, "multipart/form-data", "", "text/plain; application/json"]
        {
            let request = post("/api/v1/queues/pause", headers, kind, body);
            let answer = raw(ATTACKER, &console.address, &request).await;
            assert_eq!(status(&answer), Some(415), "{kind:?}: {answer}");
        }
    }
    // A page of another site may not ask for more.
    let preflight = "OPTIONS /api/v1/queues/pause HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    let answer = raw(ATTACKER, &console.address, preflight.as_bytes()).await;
    assert_eq!(status(&answer), Some(405), "{answer}");
    assert!(!answer.to_lowercase().contains("access-control-allow"), "{answer}");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.queues").await, 0);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.audit").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_is_framed_or_cached() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let paths = routes().into_iter().filter(|it| it.get).map(|it| filled(&it.path, &VALUES));
    let more =
        ["/api/v1/tasks", "/api/v1/openapi.json", "/livez", "/nowhere", "/tasks/1/plan.json"];
    let mut seen = 0;
    for path in paths.chain(more.map(str::to_owned)) {
        let headers = console.get(&path).await.headers;
        assert!(headers.contains("x-frame-options: DENY"), "{path}: {headers}");
        assert!(headers.contains("frame-ancestors 'none'"), "{path}: {headers}");
        assert!(headers.contains("x-content-type-options: nosniff"), "{path}: {headers}");
        let cache = if path.starts_with("/static/") { "no-cache" } else { "no-store" };
        assert!(headers.contains(&format!("cache-control: {cache}")), "{path}: {headers}");
        assert!(!headers.contains("access-control-allow"), "{path}: {headers}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} paths");
    // Responses before the router, which only a program can cause.
    let refused = raw(
        ATTACKER,
        &console.address,
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(refused.contains("x-frame-options: DENY"), "{refused}");
    assert!(refused.contains("cache-control: no-store"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leaves_the_embedded_files() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    for path in [
        "/static/../Cargo.toml",
        "/static/..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..%5c..%5cetc%5cpasswd",
        "/static/console.js%00.css",
        "/static/console.js/../../etc/passwd",
        "/static/./console.js",
        "/../../../etc/passwd",
        "/tasks/../static/../etc/passwd",
        "/db/../static/console.js",
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = raw(ATTACKER, &console.address, request.as_bytes()).await;
        assert!(matches!(status(&answer), Some(400 | 404)), "{path}: {answer:.300}");
        assert!(
            !answer.contains("root:") && !answer.contains("[package]"),
            "{path}: {answer:.300}"
        );
    }
}

/// A name with line breaks, in every path and field that becomes part of a redirect.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_splits_a_response() {
    let database = Database::new().await;
    database.execute("SELECT mill.enqueue('SELECT 1', due_at => now() + interval '1 day')").await;
    let console = Console::start(&database, &[]).await;
    let own = csrf(&console.get("/priorities").await.body).to_owned();
    let hostile = [
        "a%0d%0aSet-Cookie:%20x=1%0d%0a%0d%0a%3Cscript%3E",
        "a%0aSet-Cookie:%20x=1",
        "a%0dSet-Cookie:%20x=1",
        "%c4%8d%c4%8aSet-Cookie:%20x=1",
        "a%e2%80%a8Set-Cookie:%20x=1",
    ];
    let mut redirects = 0;
    for (k, name) in hostile.into_iter().enumerate() {
        let values = [("id", "1"), ("queue", name), ("group", name), ("name", name)];
        let form = format!(
            "csrf={own}&return_to=/{name}&name={name}&queue={name}&group={name}&job={name}&query=x&screen=tasks\
             &paused=true&enabled=true&max_running=1&key={name}"
        );
        let gets = routes().into_iter().filter(|it| it.get && !it.path.contains("events"));
        let gets = gets.map(|it| {
            format!("GET {}?name={name}&q={name}&format=csv HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", filled(&it.path, &values))
                .into_bytes()
        });
        let posts = post_routes().into_iter().map(|path| {
            let kind = "application/x-www-form-urlencoded";
            post(&filled(&path, &values), "Origin: http://localhost\r\n", kind, &form)
        });
        // In the short form, each route gets two of the names.
        let is_tried = |n: usize| (n + k) % hostile.len() < amount(2, hostile.len());
        for (_, request) in gets.chain(posts).enumerate().filter(|(n, _)| is_tried(*n)) {
            let answer = raw(ATTACKER, &console.address, &request).await;
            let head = answer.split("\r\n\r\n").next().unwrap().to_lowercase();
            let line = String::from_utf8_lossy(&request[..request.len().min(120)]).into_owned();
            assert!(status(&answer).is_some_and(|it| it < 500), "{line}: {answer:.300}");
            assert!(!head.contains("\nset-cookie"), "{line}: {head}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{line}: {answer:.300}");
            redirects += usize::from(head.contains("\nlocation: "));
        }
    }
    assert!(redirects > 10, "{redirects} redirects");
}
