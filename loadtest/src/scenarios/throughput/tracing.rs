//! Drains a backlog of `SELECT 1` without tracing, and with tracing of no task, one in a hundred, and
//! every task. The receiver runs in this process and only counts the spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::drain::{fleet_round, succeeded};
use crate::context::RunContext;
use crate::fleet::FleetSpec;
use crate::measure::fleet_time::TimeCases;
use crate::measure::rounds::{against, alternate, case, rate};
use crate::result::{Better, Scenario};

const OFF: &str = "tracing off";

/// Case, and flags for the sampler.
const TRACED: [(&str, &[&str]); 3] = [
    ("no task traced", &["--traces-sampler=always_off"]),
    ("1 % of tasks traced", &["--traces-sampler=traceidratio", "--traces-sampler-arg=0.01"]),
    ("every task traced", &["--traces-sampler=always_on"]),
];

/// Minimum ratio to a drain without tracing, if few or no tasks are traced.
const GOAL: f64 = 0.95;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let receiver = Receiver::start().await?;
    let plain = FleetSpec::from_options(context);
    let tasks = context.tasks(50_000, 5_000);
    let database = context.database("tracing").await?;
    let mut cases = vec![rate(OFF)];
    let mut fleets = vec![plain.clone()];
    for (n, (name, sampler)) in TRACED.into_iter().enumerate() {
        let goal = (n + 1 < TRACED.len()).then_some(GOAL);
        cases.push(against(rate(name), OFF, goal));
        let mut traced = plain.clone();
        traced.flags.push(format!("--otlp-endpoint={}", receiver.url));
        traced.flags.extend(sampler.iter().map(|&flag| flag.to_owned()));
        fleets.push(traced);
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let mut times: Vec<TimeCases> = names.iter().map(|name| TimeCases::new(name)).collect();
    let mut spans = case("spans received per task, every task traced", "spans", Better::Higher);
    let mut checks = Vec::new();
    alternate(context, "tracing", &mut cases, async |n, round| {
        let before = receiver.spans();
        let size = (tasks, "SELECT 1");
        let drained = fleet_round(context, &database, &fleets[n], size, round).await?;
        let received = receiver.spans() - before;
        if n == TRACED.len() {
            #[expect(clippy::cast_precision_loss, reason = "a count of spans")]
            spans.rounds.push(received as f64 / drained.tasks.max(1) as f64);
        }
        if let Some(time) = drained.time {
            times[n].record(time, drained.tasks);
        }
        let mut check = succeeded(&drained, tasks);
        // Without a receiver or without samples, nothing may be exported.
        check.passed &= (received > 0) == (n > 1);
        check.what = format!("{}, {}, round {round}", check.what, names[n]);
        check.detail = format!("{}, {received} spans received", check.detail);
        checks.push(check);
        Ok(drained.into())
    })
    .await?;
    context.drop_database(database).await?;
    cases.push(spans);
    cases.extend(times.into_iter().flat_map(TimeCases::into_cases));
    let notes = vec![
        format!("{tasks} tasks per round, {}", plain.describe()),
        "a traced task has 4 spans; a worker drops spans that it cannot export in time".to_owned(),
    ];
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// A receiver of OTLP over HTTP that counts spans.
struct Receiver {
    url: String,
    spans: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Receiver {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let spans = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&spans);
        let server = async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer(stream, Arc::clone(&counted)));
            }
        };
        let mut task = JoinSet::new();
        task.spawn(server);
        Ok(Self { url, spans, _task: task })
    }

    fn spans(&self) -> u64 {
        self.spans.load(Ordering::Relaxed)
    }
}

/// Answers the requests of a connection until it ends.
async fn answer(stream: TcpStream, spans: Arc<AtomicU64>) -> Option<()> {
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
        spans.fetch_add(ExportRequest::decode(&body[..]).ok()?.spans(), Ordering::Relaxed);
        stream.get_mut().write_all(ANSWER).await.ok()?;
    }
}

/// `ExportTraceServiceRequest` of OTLP, without the contents of spans.
#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {}

impl ExportRequest {
    fn spans(&self) -> u64 {
        let scopes = self.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
        scopes.map(|scope| scope.spans.len() as u64).sum()
    }
}
