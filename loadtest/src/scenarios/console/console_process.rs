//! Starts the program `pgmill console` and sends requests.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::Database;

/// Time limit of the start: the console reads the last hours in the background, minute by minute.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A console process, terminated on drop.
pub(super) struct ConsoleProcess {
    /// `127.0.0.1:port`.
    address: String,
    _child: Child,
}

impl ConsoleProcess {
    pub(super) async fn start(context: &RunContext, database: &Database) -> Result<Self> {
        let mut child = Command::new(context.program("pgmill"))
            .args(["console", "--listen", "127.0.0.1:0"])
            .env("DATABASE_URL", database.url())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("could not start `pgmill console`")?;
        let mut lines =
            BufReader::new(child.stderr.take().context("standard error is not captured")?).lines();
        let mut output = String::new();
        while let Some(line) = lines.next_line().await? {
            output.push_str(&line);
            if let Some((_, url)) = line.split_once("http://") {
                let address = url.split('/').next().unwrap_or_default().to_owned();
                return Ok(Self { address, _child: child });
            }
        }
        anyhow::bail!("the console did not start: {output}")
    }

    /// Returns the milliseconds from the connection to the last byte of a 200 response.
    pub(super) async fn time(&self, path: &str) -> Result<f64> {
        let begun = Instant::now();
        self.get(path).await?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }

    async fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("no response")?;
        let first = head.lines().next().unwrap_or_default();
        ensure!(first.contains(" 200 "), "{path}: {first}: {body}");
        Ok(body.to_owned())
    }

    async fn json(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.get(path).await?).context("not a JSON response")
    }

    pub(super) async fn until_hours_are_read(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let read = self.json("/api/v1/throughput?hours=6").await?["minutes_read"].as_i64();
            if read >= Some(360) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < TIMEOUT,
                "only {read:?} minutes were read within {TIMEOUT:?}"
            );
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns the paths in the navigation.
    pub(super) async fn screens(&self) -> Result<Vec<String>> {
        let page = self.get("/").await?;
        let nav = page.split_once("<nav").and_then(|(_, rest)| rest.split_once("</nav>"));
        let (nav, _) = nav.context("the page has no navigation")?;
        let hrefs = nav.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        Ok(hrefs.map(ToOwned::to_owned).collect())
    }

    /// Returns the API paths of the OpenAPI description that can be read and whose objects exist.
    pub(super) async fn api_paths(&self) -> Result<Vec<String>> {
        let document = self.json("/api/v1/openapi.json").await?;
        let paths = document["paths"].as_object().context("the API description has no paths")?;
        let readable = paths.iter().filter(|(_, described)| described.get("get").is_some());
        let of_one = |(path, described): (&String, &Value)| {
            let parameters = described["get"]["parameters"].as_array();
            let named = parameters.into_iter().flatten().any(|it| it["name"] == "name");
            let path =
                path.replace("/tasks/{id}", "/tasks/{failed}").replace("/runs/{id}", "/runs/{run}");
            if named { format!("{path}?name=it") } else { path }
        };
        Ok(readable.map(of_one).collect())
    }
}
