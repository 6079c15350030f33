//! `pgmill durations`, and the comparison of an attempt with others of the same name.

use cli::Exit;
use conninfo::Client;
use queue::insight::{self, Durations};

use crate::args::DurationsArgs;
use crate::output::format::{counted, relative_time, span};
use crate::output::{Output, Row, Tone};

/// A trend of at least this factor is highlighted.
const SLOWER: f64 = 1.5;

/// Lists durations by task name.
pub(crate) async fn run(client: &Client, out: &Output, args: &DurationsArgs) -> Exit {
    let names = insight::durations(client, args.queue.as_deref()).await?;
    let now = queue::task_queries::now(client).await?;
    out.list(&names, "no named task ran in the last seven days", |it| {
        Row::of("queue", &it.queue)
            .text("name", &it.name)
            .text("attempts", it.attempts)
            .count("failed", it.failures)
            .tone(Tone::Error)
            .maybe("p50", it.p50_seconds.map(span))
            .maybe("p95", it.p95_seconds.map(span))
            .maybe("mean", it.mean_seconds.map(span))
            .maybe("last", it.last_seconds.map(span))
            .text("finished", relative_time(it.last_at, now))
            .maybe("trend", it.trend.map(|trend| format!("{trend:.2}")))
            .warn_if(it.trend.is_some_and(|trend| trend >= SLOWER))
    })
}

/// Compares a duration with those of other attempts of the same name.
pub(crate) fn compared_with_others(others: &Durations, seconds: Option<f64>) -> Option<String> {
    let (p50, p95) = (others.p50_seconds?, others.p95_seconds?);
    let mut text = format!(
        "p50 {}, p95 {} of the last {}",
        span(p50),
        span(p95),
        counted(others.attempts, "attempt")
    );
    if let Some(times) = seconds.map(|seconds| seconds / p50).filter(|times| times.is_finite()) {
        text.push_str(&format!("; this attempt: {times:.1} times the median"));
    }
    Some(text)
}
