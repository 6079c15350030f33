//! Floods of connections: their number and their memory are bounded, and other clients are served.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{
    ATTACKER, HONEST, connect, get_on, open_files, raise_file_limit, raw, resident_kb, status,
};
use crate::console::console_tls::Certificates;
use crate::harness::console::{Console, TokenFile};
use crate::harness::http::{free_address, get};
use crate::harness::{Database, Worker, amount, eventually};

/// Number of connections that the console accepts.
const MAX_CONNECTIONS: usize = 512;
/// Files of a console without clients: sessions, runtime, listener, standard streams. Measured: 18.
const OTHER_FILES: usize = 40;
/// Memory that all connections of clients without a session may use together, in kB: 64 kB for each.
const MAX_MEMORY_KB: u64 = 40_000;

const GET: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Number of connections of the attacker: more than the console accepts, and so many more that an
/// unlimited console would have too many open files.
fn flood_size() -> usize {
    amount(MAX_CONNECTIONS + 2 * OTHER_FILES, 1500)
}

/// Opens connections that send these bytes. The server closes some of them.
async fn flood(address: &str, bytes: &[u8]) -> Vec<TcpStream> {
    connections(flood_size(), address, bytes).await
}

/// Opens this number of connections that send these bytes.
async fn connections(number: usize, address: &str, bytes: &[u8]) -> Vec<TcpStream> {
    raise_file_limit();
    let mut open = Vec::new();
    for _ in 0..number {
        let mut stream = connect(ATTACKER, address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        open.push(stream);
    }
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_do_not_keep_others_out() {
    let database = Database::new().await;
    let token = TokenFile::new("a-token-of-enough-characters");
    let console = Console::start(&database, &["--token-file", token.path()]).await;
    let address = console.address.as_str();
    let mut kept = connect(HONEST, address).await.unwrap();
    assert_eq!(get_on(&mut kept, "/livez").await, Some(200));
    let before = resident_kb(console.pid());
    let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}", "a".repeat(60_000));
    let body = "POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
                Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 8000\r\n\r\ntoken=";
    for (what, bytes) in [("nothing", ""), ("half a header", &header), ("half a body", body)] {
        let mut open = Vec::new();
        while open.len() < flood_size() {
            open.extend(connections(flood_size() / 10, address, bytes.as_bytes()).await);
            // The attacker replaces its own connections.
            assert_eq!(get_on(&mut kept, "/livez").await, Some(200), "{what}");
        }
        assert!(open_files(console.pid()) <= MAX_CONNECTIONS + OTHER_FILES, "{what}");
        let answer = raw(HONEST, address, GET).await;
        assert_eq!(status(&answer), Some(200), "{what}: {answer}");
        let grown = resident_kb(console.pid()).saturating_sub(before);
        println!("{what}: {} kB for {} connections", grown, open.len());
        assert!(grown < MAX_MEMORY_KB, "{what}: {grown} kB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_of_tls_do_not_keep_others_out() {
    let database = Database::new().await;
    let (token, certificates) =
        (TokenFile::new("a-token-of-enough-characters"), Certificates::new("flood"));
    let (own, key) = (certificates.path("own.crt"), certificates.path("own.key"));
    let flags = ["--token-file", token.path(), "--tls-cert", &own, "--tls-key", &key];
    let flags = [&flags[..], &["--allow-host", "console.example"]].concat();
    let console = Console::start(&database, &flags).await;
    let open = flood(&console.address, b"").await;
    assert!(open_files(console.pid()) <= MAX_CONNECTIONS + OTHER_FILES);
    let request = b"GET /livez HTTP/1.1\r\nHost: console.example\r\nConnection: close\r\n\r\n";
    assert_eq!(certificates.ask(&console.address, request).await.status, 200);
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_does_not_keep_others_out() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let address = console.address.as_str();
    let request = "GET /tasks HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(amount(2, 20));
    let open = flood(address, request.as_bytes()).await;
    for path in ["/livez", "/queues"] {
        eventually(&format!("{path} is answered"), async || {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            status(&raw(HONEST, address, request.as_bytes()).await) == Some(200)
        })
        .await;
    }
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_stop_metrics_or_tasks_and_is_counted() {
    let database = Database::new().await;
    let (http, console) = (free_address(), free_address());
    let flags = ["--readers", "1", "--http", &http, "--console", &console];
    let worker =
        Worker::start_as_superuser(&database, "the console shows everything to its login", &flags);
    eventually("the console is served", async || {
        get(&console, "/livez").await.is_some_and(|it| it.status == 200)
    })
    .await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
    let open = [
        flood(&http, b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ").await,
        flood(&console, b"").await,
        flood(&http, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await,
    ];
    assert_eq!(database.run("SELECT 1", "").await.outcome, "succeeded");
    // All checks of readiness have used the same session.
    assert!(database.value::<i64>(sessions).await < 20);
    assert!(open_files(worker.pid()) <= MAX_CONNECTIONS + 64 + 2 * OTHER_FILES);
    let text =
        raw(HONEST, &http, &String::from_utf8_lossy(GET).replace("livez", "metrics").into_bytes())
            .await;
    for server in ["metrics", "console"] {
        let name = "pgmill_http_refused_total";
        let series = format!("{name}{{reason=\"replaced\",server=\"{server}\"}} ");
        let count: usize = text
            .lines()
            .find_map(|line| line.strip_prefix(&series))
            .unwrap_or_else(|| panic!("{text}"))
            .parse()
            .unwrap();
        assert!(count >= flood_size() - MAX_CONNECTIONS, "{server}: {count}");
    }
    drop(open);
}
