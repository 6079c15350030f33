//! `pgmill durations`, and the comparison of an attempt with others of the same name.

use cli::{Failure, exit};
use conninfo::Client;
use queue::insight::{self, Durations};

use crate::args::DurationsArgs;
use crate::output::format::{counted, relative_time, span};
use crate::output::{Field, Output, Tone};

/// A trend of at least this factor is highlighted.
const SLOWER: f64 = 1.5;

/// Lists durations by task name.
pub(crate) async fn run(
    client: &Client,
    out: &Output,
    args: &DurationsArgs,
) -> Result<u8, Failure> {
    let names = insight::durations(client, args.queue.as_deref()).await?;
    if out.json {
        out.document(&names)?;
    } else if names.is_empty() {
        out.note("no named task ran in the last seven days");
    } else {
        let now = queue::task_queries::now(client).await?;
        let row = |it: &Durations| {
            let tone = if it.trend.is_some_and(|trend| trend >= SLOWER) {
                Tone::Warning
            } else {
                Tone::Plain
            };
            vec![
                Field::new(&it.queue),
                Field::new(&it.name),
                Field::new(it.attempts),
                Field::count(it.failures).tone(Tone::Error),
                Field::or_blank(it.p50_seconds.map(span)),
                Field::or_blank(it.p95_seconds.map(span)),
                Field::or_blank(it.mean_seconds.map(span)),
                Field::or_blank(it.last_seconds.map(span)),
                Field::new(relative_time(it.last_at, now)),
                Field::or_blank(it.trend.map(|trend| format!("{trend:.2}"))).tone(tone),
            ]
        };
        const HEADINGS: [&str; 10] = [
            "queue", "name", "attempts", "failed", "p50", "p95", "mean", "last", "finished",
            "trend",
        ];
        out.print_table(&HEADINGS, names.iter().map(row).collect())?;
    }
    Ok(exit::OK)
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
