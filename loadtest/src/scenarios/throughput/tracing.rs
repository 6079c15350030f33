//! Drains a backlog of `SELECT 1` without tracing, and with tracing of no task, one in a hundred, and
//! every task. The receiver runs in this process and only counts the traced tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::context::RunContext;
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, drain};
use crate::measure::rounds::{against, alternate, rate};
use crate::result::{Check, Scenario};

const OFF: &str = "tracing off";

/// Case, goal for the ratio to a drain without tracing, and flags for the sampler.
const TRACED: [(&str, Option<f64>, &[&str]); 3] = [
    ("no task traced", Some(0.95), &["--traces-sampler=always_off"]),
    (
        "1 % of tasks traced",
        Some(0.95),
        &["--traces-sampler=traceidratio", "--traces-sampler-arg=0.01"],
    ),
    ("every task traced", None, &["--traces-sampler=always_on"]),
];

/// Name of the span of an attempt.
const SPAN: &[u8] = b"process default";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("--otlp-endpoint=http://{}", listener.local_addr()?);
    let received = Arc::new(AtomicUsize::new(0));
    let mut receiver = JoinSet::new();
    receiver.spawn(receive(listener, Arc::clone(&received)));
    let plain = FleetSpec::from_options(context);
    let tasks = context.tasks(50_000, 5_000);
    let database = context.database("tracing").await?;
    let mut cases = vec![rate(OFF)];
    let mut fleets = vec![plain.clone()];
    for (name, goal, sampler) in TRACED {
        cases.push(against(rate(name), OFF, goal));
        let mut traced = plain.clone();
        traced.flags.push(endpoint.clone());
        traced.flags.extend(sampler.iter().map(|&flag| flag.to_owned()));
        fleets.push(traced);
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let mut scenario = alternate(context, cases, async |n, round| {
        database.renew(&context.progress, tasks, "SELECT 1").await?;
        let drained = drain(context, &database, &fleets[n], Until::Empty, round).await?;
        let traced = received.swap(0, Ordering::Relaxed);
        let succeeded = drained.tasks;
        let check = Check {
            what: "every task succeeded, and traces were received of sampled tasks".to_owned(),
            passed: succeeded == tasks && (traced > 0) == (n > 1),
            detail: format!("{succeeded} of {tasks} succeeded, {traced} traces received"),
        };
        Ok(drained.with_processor_time(&names[n]).check(check))
    })
    .await?;
    scenario.notes = vec![
        format!("{tasks} tasks per round, {}", plain.describe()),
        "a worker drops spans that it cannot export in time".to_owned(),
    ];
    Ok(scenario)
}

/// Receives OTLP over HTTP.
async fn receive(listener: TcpListener, received: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, Arc::clone(&received)));
    }
}

/// Answers the requests of a connection until it ends.
async fn answer(stream: TcpStream, received: Arc<AtomicUsize>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let spans = body.windows(SPAN.len()).filter(|name| *name == SPAN);
        received.fetch_add(spans.count(), Ordering::Relaxed);
        stream.get_mut().write_all(ANSWER).await.ok()?;
    }
}
