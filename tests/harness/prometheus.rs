//! A real Prometheus that scrapes real workers, with rules that the test provides.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{File, create_dir_all, read_to_string, remove_dir_all, write};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::eventually;
use super::http::free_address;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// One process with its own folder, both removed on drop; the log is shown if the test fails.
pub(crate) struct Prometheus {
    child: Child,
    folder: PathBuf,
    address: String,
}

/// Labels with their values, ordered by time in seconds.
pub(crate) type Series = (BTreeMap<String, String>, Vec<(f64, f64)>);

impl Prometheus {
    /// Starts a Prometheus that scrapes these addresses as the fleet `test` twice a second. Prints
    /// a message and returns `None` if Prometheus is not installed.
    pub(crate) async fn start(targets: &[&str], rules: &[(String, String)]) -> Option<Self> {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgmill-test-prometheus-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        create_dir_all(&folder).unwrap();
        let mut config = String::from(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n\
             scrape_configs:\n- job_name: pgmill\n  static_configs:\n",
        );
        writeln!(config, "  - {{targets: {targets:?}, labels: {{fleet: test}}}}").unwrap();
        config.push_str("rule_files:\n");
        for (n, (_, text)) in rules.iter().enumerate() {
            write(folder.join(format!("{n}.yml")), text).unwrap();
            writeln!(config, "- {n}.yml").unwrap();
        }
        write(folder.join("prometheus.yml"), config).unwrap();
        let address = free_address();
        let child = Command::new("prometheus")
            .current_dir(&folder)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn();
        let child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                remove_dir_all(&folder).unwrap();
                println!("skipped: prometheus is not installed; .ci/run installs its package");
                return None;
            }
            child => child.unwrap(),
        };
        let it = Self { child, folder, address };
        eventually("Prometheus is ready", async || it.get("/-/ready").await.is_some()).await;
        Some(it)
    }

    /// Returns the current series of an expression.
    pub(crate) async fn query(&self, expr: &str) -> Vec<Series> {
        self.series(&format!("/api/v1/query?query={}", encoded(expr)), "value").await
    }

    /// Returns the names of the firing alerts.
    pub(crate) async fn firing(&self) -> Vec<String> {
        let answer = self.api("/api/v1/alerts").await;
        let alerts = answer["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until this alert fires, or stops firing.
    pub(crate) async fn until(&self, alert: &str, fires: bool) {
        let what = if fires { "fires" } else { "is quiet" };
        let took = eventually(&format!("{alert} {what}"), async || {
            self.firing().await.iter().any(|name| name == alert) == fires
        })
        .await;
        println!("{alert} {what} after {:.1} s", took.as_secs_f64());
    }

    async fn series(&self, path: &str, field: &str) -> Vec<Series> {
        let answer = self.api(path).await;
        let point = |point: &Value| -> (f64, f64) {
            (point[0].as_f64().unwrap(), point[1].as_str().unwrap().parse().unwrap())
        };
        let one = |series: &Value| {
            let labels = serde_json::from_value(series["metric"].clone()).unwrap();
            let points = match field {
                "value" => vec![point(&series[field])],
                _ => series[field].as_array().unwrap().iter().map(point).collect(),
            };
            (labels, points)
        };
        answer["result"].as_array().unwrap().iter().map(one).collect()
    }

    async fn api(&self, path: &str) -> Value {
        let body = self.get(path).await.unwrap_or_else(|| panic!("no response for {path}"));
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }

    /// Returns the body of a successful response. HTTP/1.0 avoids chunked responses.
    async fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?;
        assert!(!status.starts_with('4'), "{path}: {text}");
        (status == "200").then(|| body.to_owned())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = read_to_string(self.folder.join("log"));
            eprintln!("--- log of Prometheus\n{}", log.unwrap_or_default());
        }
        let _ = remove_dir_all(&self.folder);
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        if byte.is_ascii_alphanumeric() {
            all.push(byte.into());
        } else {
            write!(all, "%{byte:02X}").unwrap();
        }
        all
    })
}
