//! Any request gets a timely response, and never a server error.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::harness::console::{Console, ask, csrf};
use crate::harness::routes::{post_routes, routes};
use crate::harness::{Database, Worker, amount};

/// Seed of the generated requests. Another seed generates other requests.
const SEED: u64 = 20_261_122;

/// Maximum time of any response, even on a slow machine: two statements may reach their time limit.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Values of parameters, form fields and path segments.
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "007",
    "+1",
    "1.5",
    "1e9",
    "NaN",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "99999999999999999999999999",
    "null",
    "true",
    "default",
    "it",
    "nobody",
    "%00",
    "%FF",
    "%C3%28",
    "%ED%A0%80",
    "%",
    "%4",
    "%zz",
    "%2F..%2F..%2Fetc",
    "..",
    ".",
    "%252e",
    "a%20b",
    "%3Cscript%3E",
    "%22%27",
    "'",
    "1;SELECT",
    "%E2%80%AE",
    "%F0%9F%92%A9",
    "%0A",
    "%0D%0A",
    "\\",
    "*",
    "state:running",
    "state:finished+since:1h",
    "queue:etl+state:",
    "since:99999999999d",
    "since:1h",
    "id:1,2,3",
    "id:9223372036854775807",
    "sqlstate:*",
    "sqlstate:%25",
    "cause:x",
    "name:%2A%2A",
    "run:-1",
    "key:%22",
    "priority:reserved",
    "00000000-0000-0000-0000-000000000000",
    "1h",
    "-1h",
    "1d1d",
    "2026-12-01T00:00:00Z,5",
    "1764547200000000,1",
    "1,1",
    "ticked",
    "all",
    "failed",
    "running",
    "1,2",
];

/// Names of parameters that screens use, and that the API does not describe.
const NAMES: &[&str] = &["what", "up_to", "run", "hours", "return_to", "q", "id", "csrf", ""];

struct Fuzzer {
    random: StdRng,
    names: Vec<String>,
}

impl Fuzzer {
    fn value(&mut self) -> String {
        match self.random.random_range(0..20) {
            0 => "a".repeat(self.random.random_range(1..100_000)),
            1 => "%F0%9F%92%A9".repeat(self.random.random_range(1..3000)),
            2 => (0..self.random.random_range(1..40))
                .map(|_| format!("%{:02x}", self.random.random_range(0..256)))
                .collect(),
            3 => "(".repeat(self.random.random_range(1..5000)),
            _ => (*VALUES.choose(&mut self.random).unwrap()).to_owned(),
        }
    }

    /// Generates `name=value` pairs, possibly with a repeated name.
    fn pairs(&mut self) -> String {
        let count = self.random.random_range(0..5);
        let pairs: Vec<String> = (0..count)
            .map(|_| {
                let names = self.names.clone();
                let name = names.choose(&mut self.random).unwrap();
                format!("{name}={}", self.value())
            })
            .collect();
        pairs.join("&")
    }

    fn path(&mut self, pattern: &str) -> String {
        let mut path = String::new();
        for step in pattern.split_inclusive('/') {
            let (name, end) = step.strip_suffix('/').map_or((step, ""), |name| (name, "/"));
            path += &if name.starts_with('{') { self.value() } else { name.to_owned() };
            path += end;
        }
        match self.random.random_range(0..4) {
            0 => path,
            _ => format!("{path}?{}", self.pairs()),
        }
    }

    /// Generates malformed headers.
    fn headers(&mut self, address: &str) -> Vec<u8> {
        let mut headers = format!("Host: {address}\r\n").into_bytes();
        let odd: &[&[u8]] = &[
            b"Host: evil.example\r\n",
            b"Host: [::1\r\n",
            b"Cookie: pgmill=\r\n",
            b"Cookie: ;;;=;pgmill\r\n",
            b"Cookie: pgmill=\xff\xfe\r\n",
            b"Authorization: Bearer \xc3\x28\r\n",
            b"Accept: text/event-stream;q=nan\r\n",
            b"If-None-Match: \"\"\"\r\n",
            b"X-Forwarded-Proto: https, \xff\r\n",
            b"Sec-Fetch-Site: \xff\r\n",
            b"Content-Type: multipart/form-data\r\n",
            b"Content-Type: application/json; charset=\xff\r\n",
            b"Range: bytes=5-1\r\n",
            b"Expect: 100-continue\r\n",
        ];
        if self.random.random_range(0..3) == 0 {
            headers.extend_from_slice(odd.choose(&mut self.random).unwrap());
        }
        if self.random.random_range(0..40) == 0 {
            let long = "x".repeat(self.random.random_range(1..300_000));
            headers.extend_from_slice(format!("X-Long: {long}\r\n").as_bytes());
        }
        if self.random.random_range(0..40) == 0 {
            (0..300).for_each(|n| headers.extend_from_slice(format!("X-{n}: 1\r\n").as_bytes()));
        }
        headers
    }
}

/// Returns the status of the response; panics without a timely response.
async fn status(address: &str, request: &[u8]) -> u16 {
    let reported = String::from_utf8_lossy(&request[..request.len().min(2000)]).into_owned();
    let answer = tokio::time::timeout(TIMEOUT, ask(address, request)).await;
    let answer = answer.unwrap_or_else(|_| panic!("no timely response to {reported}"));
    assert!(answer.status < 500, "{} {} to {reported}", answer.status, answer.body);
    answer.status
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_causes_a_server_error() {
    println!("seed {SEED}");
    let database = Database::new().await;
    let worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "50ms"]);
    database
        .execute(
            r#"SELECT mill.set_job('it', '[{"name": "it", "statement": "SELECT 1"}]');
               SELECT mill.set_schedule('it', 'manual', jobs => ARRAY['it']);
               SELECT mill.start_run(ARRAY['it']); SELECT mill.enqueue('SELECT 1/0', max_attempts => 1)"#,
        )
        .await;
    database.until_empty().await;
    drop(worker);
    let console = Console::start(&database, &[]).await;
    let document: Value =
        serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
    let described = document["paths"].as_object().unwrap();
    let mut names: Vec<String> = NAMES.iter().map(ToString::to_string).collect();
    for path in described.values() {
        let parameters = path["get"]["parameters"].as_array().into_iter().flatten();
        names.extend(parameters.map(|it| it["name"].as_str().unwrap().to_owned()));
    }
    let reads: Vec<String> = routes()
        .into_iter()
        .filter(|it| it.get)
        .map(|it| it.path)
        .chain(described.keys().cloned())
        .collect();
    let acts = post_routes();
    let own = csrf(&console.get("/priorities").await.body).to_owned();
    let mut fuzzer = Fuzzer { random: StdRng::seed_from_u64(SEED), names };
    let (mut seen, address) = ([0; 6], console.address.as_str());
    let requests = amount(300, 1500);
    for _ in 0..requests {
        let acting = fuzzer.random.random_range(0..3) == 0;
        let pattern =
            if acting { &acts } else { &reads }.choose(&mut fuzzer.random).unwrap().clone();
        let path = fuzzer.path(&pattern);
        let mut body = String::new();
        let mut headers = fuzzer.headers(address);
        if acting {
            // A third of the requests pass the origin check.
            body = fuzzer.pairs();
            if fuzzer.random.random_range(0..3) == 0 {
                body = format!("csrf={own}&{body}");
            }
            let typed = format!(
                "Origin: http://{address}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            );
            headers.extend_from_slice(typed.as_bytes());
        }
        let method = if acting { "POST" } else { "GET" };
        let line = format!("{method} {path} HTTP/1.1\r\n");
        let rest = format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        let request = [line.as_bytes(), &headers, rest.as_bytes()].concat();
        seen[usize::from(status(address, &request).await / 100)] += 1;
    }
    println!("responses by the first digit of their status: {seen:?}");
    assert!(seen[2] > requests / 20 && seen[4] > requests / 20, "{seen:?}");
    for whole in ["GET\r\n\r\n", "GET / HTTP/9\r\n\r\n", "\u{1}\u{2}\r\n\r\n"] {
        status(address, whole.as_bytes()).await;
    }
    assert_eq!(console.get("/livez").await.status, 200);
}
