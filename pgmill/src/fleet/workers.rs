//! `pgmill worker`: lists workers, and makes them stop claiming or claim again.

use cli::{Failure, exit};
use conninfo::Client;
use health::problems;
use queue::operate;
use queue::workers::{self, Worker};
use serde_json::json;
use terminal::visible;

use crate::args::{DrainArgs, WorkerVerb};
use crate::output::format::{counted, span};
use crate::output::{Field, Output, Tone};

const HEADINGS: [&str; 11] = [
    "id",
    "worker",
    "state",
    "readers",
    "reserved",
    "running",
    "heartbeat",
    "uptime",
    "version",
    "schema",
    "queues",
];

/// Runs a subcommand of `pgmill worker`.
pub(crate) async fn run(client: &Client, out: &Output, verb: &WorkerVerb) -> Result<u8, Failure> {
    match verb {
        WorkerVerb::List => list(client, out).await,
        WorkerVerb::Drain(args) => drain(client, out, args).await,
    }
}

/// Lists workers.
async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let workers = workers::workers(client).await?;
    if out.json {
        out.document(&workers)?;
    } else if workers.is_empty() {
        out.note("no workers registered");
    } else {
        out.print_table(&HEADINGS, rows(&workers))?;
        for login in problems::unconnected_logins(&workers) {
            out.note(visible(&login.message));
        }
    }
    Ok(exit::OK)
}

pub(crate) fn table(out: &Output, workers: &[Worker]) -> String {
    out.table(&HEADINGS, rows(workers))
}

fn rows(workers: &[Worker]) -> Vec<Vec<Field>> {
    let row = |worker: &Worker| {
        let (state, tone) = state(worker);
        let up = worker.started_at.map(|started| {
            span(
                worker.heartbeat_age_seconds
                    + worker.heartbeat_at.duration_since(started).as_secs_f64(),
            )
        });
        vec![
            Field::new(&worker.id.to_string()[..8]),
            Field::new(worker.label()),
            Field::new(state).tone(tone),
            Field::new(worker.readers),
            Field::count(worker.reserved.into()),
            Field::new(worker.running),
            Field::new(format!("{} ago", span(worker.heartbeat_age_seconds))),
            Field::or_blank(up),
            Field::or_blank(worker.version.as_deref()),
            Field::or_blank(worker.schema_version),
            Field::new(
                worker.queues.as_ref().map_or_else(|| "all".to_owned(), |all| all.join(", ")),
            ),
        ]
    };
    workers.iter().map(row).collect()
}

/// Returns the displayed state. A worker with a recent heartbeat but without a control session may
/// be reconnecting.
pub(crate) fn state(worker: &Worker) -> (&'static str, Tone) {
    match (worker.alive, worker.session_alive, worker.draining) {
        (false, false, _) => ("dead", Tone::Error),
        (false, true, _) => ("silent", Tone::Error),
        (true, false, _) => ("disconnected", Tone::Warning),
        (true, true, true) => ("draining", Tone::Warning),
        (true, true, false) => ("alive", Tone::Success),
    }
}

/// Makes workers stop claiming, or claim again.
///
/// # Errors
/// Fails if no worker matches, or if an id prefix matches several workers.
async fn drain(client: &Client, out: &Output, args: &DrainArgs) -> Result<u8, Failure> {
    let workers = workers::workers(client).await?;
    let chosen = match (&args.id, &args.host) {
        (Some(prefix), _) => vec![by_prefix(&workers, prefix)?],
        (None, host) => {
            let host = host.as_deref();
            workers.iter().filter(|worker| worker.host.as_deref() == host).collect()
        }
    };
    if chosen.is_empty() {
        return Err(
            Failure::not_found("no worker registered on this host").hint("pgmill worker list")
        );
    }
    let mut results = Vec::new();
    for worker in chosen {
        let result = if worker.draining != args.undo {
            "unchanged"
        } else if args.dry_run || operate::drain(client, worker.id, !args.undo).await? {
            if args.undo { "resumed" } else { "draining" }
        } else {
            "not found"
        };
        results.push((worker, result));
    }
    let gone = results.iter().all(|(_, result)| *result == "not found");
    report(out, args, &results)?;
    Ok(if gone { exit::NOT_FOUND } else { exit::OK })
}

fn report(out: &Output, args: &DrainArgs, results: &[(&Worker, &str)]) -> Result<(), Failure> {
    if out.json {
        let workers: Vec<_> = results
            .iter()
            .map(|(worker, result)| json!({ "id": worker.id, "host": worker.host, "result": result }))
            .collect();
        return out.document(&json!({ "dry_run": args.dry_run, "workers": workers }));
    }
    let mut lines: Vec<String> = results
        .iter()
        .map(|(worker, result)| {
            let runs = counted(worker.running, "task");
            let what = match *result {
                "draining" => format!("draining, {runs} running"),
                "unchanged" if args.undo => "was not draining".to_owned(),
                "unchanged" => format!("already draining, {runs} running"),
                "not found" => "no longer registered".to_owned(),
                other => other.to_owned(),
            };
            format!("worker {} on {}: {what}", &worker.id.to_string()[..8], worker.label())
        })
        .collect();
    if args.dry_run {
        lines.push("dry run: nothing was changed".to_owned());
    }
    out.text(&lines.join("\n"))
}

/// Returns the only worker whose id has this prefix, ignoring dashes and case.
fn by_prefix<'a>(workers: &'a [Worker], prefix: &str) -> Result<&'a Worker, Failure> {
    let wanted = prefix.replace('-', "").to_lowercase();
    if wanted.is_empty() || !wanted.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Failure::usage(format!(
            "\"{prefix}\" is not the beginning of a worker id, which has hexadecimal digits"
        ))
        .hint("pgmill worker list"));
    }
    let matching: Vec<&Worker> = workers
        .iter()
        .filter(|worker| worker.id.0.simple().to_string().starts_with(&wanted))
        .collect();
    match matching.as_slice() {
        [] => Err(Failure::not_found(format!("no worker id starts with {prefix}"))
            .hint("pgmill worker list")),
        [worker] => Ok(*worker),
        several => {
            let ids: Vec<String> = several
                .iter()
                .map(|worker| format!("{} on {}", worker.id, worker.label()))
                .collect();
            Err(Failure::usage(format!("several worker ids start with {prefix}"))
                .hint(format!("Use a longer prefix of one of {}.", ids.join(", "))))
        }
    }
}
