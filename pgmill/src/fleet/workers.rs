//! `pgmill worker`: lists workers, and makes them stop claiming or claim again.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use health::problems;
use queue::operate;
use queue::workers::{self, Worker};
use serde_json::json;
use terminal::visible;

use crate::args::{DrainArgs, WorkerVerb};
use crate::output::format::{counted, span};
use crate::output::{Output, Row, Tone};
use crate::session::change;

/// Runs a subcommand of `pgmill worker`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &WorkerVerb) -> Exit {
    match verb {
        WorkerVerb::List => list(client, out).await,
        WorkerVerb::Drain(args) => drain(client, out, args).await,
    }
}

/// Lists workers.
async fn list(client: &Client, out: &Output) -> Exit {
    let workers = workers::workers(client).await?;
    let code = out.list(&workers, "no workers registered", row)?;
    if !out.json {
        for login in problems::unconnected_logins(&workers) {
            out.note(visible(&login.message));
        }
    }
    Ok(code)
}

pub(crate) fn row(worker: &Worker) -> Row {
    let (state, tone) = state(worker);
    let age = worker.heartbeat_age_seconds;
    let up = worker
        .started_at
        .map(|started| span(age + worker.heartbeat_at.duration_since(started).as_secs_f64()));
    let queues = worker.queues.as_ref().map_or_else(|| "all".to_owned(), |all| all.join(", "));
    Row::of("id", &worker.id.to_string()[..8])
        .text("worker", worker.label())
        .text("state", state)
        .tone(tone)
        .text("readers", worker.readers)
        .count("reserved", worker.reserved)
        .text("running", worker.running)
        .text("heartbeat", format!("{} ago", span(age)))
        .maybe("uptime", up)
        .maybe("version", worker.version.as_deref())
        .maybe("schema", worker.schema_version)
        .text("queues", queues)
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
async fn drain(client: &mut Client, out: &Output, args: &DrainArgs) -> Exit {
    let workers = workers::workers(client).await?;
    let chosen = match (&args.id, &args.host) {
        (Some(prefix), _) => vec![by_prefix(&workers, prefix)?],
        (None, host) => workers.iter().filter(|worker| worker.host == *host).collect(),
    };
    if chosen.is_empty() {
        return Err(
            Failure::not_found("no worker registered on this host").hint("pgmill worker list")
        );
    }
    let results = change(client, args.dry_run, async |to| {
        let mut results = Vec::new();
        for worker in chosen {
            let result = if worker.draining != args.undo {
                "unchanged"
            } else if !operate::drain(to, worker.id, !args.undo).await? {
                "not found"
            } else if args.undo {
                "resumed"
            } else {
                "draining"
            };
            results.push((worker, result));
        }
        Ok(results)
    })
    .await?;
    let gone = results.iter().all(|(_, result)| *result == "not found");
    report(out, args, &results)?;
    Ok(if gone { exit::NOT_FOUND } else { exit::OK })
}

fn report(out: &Output, args: &DrainArgs, results: &[(&Worker, &str)]) -> Exit {
    let json = |(worker, result): &(&Worker, &str)| json!({ "id": worker.id, "host": worker.host, "result": result });
    let workers: Vec<_> = results.iter().map(json).collect();
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
    if args.dry_run.is_set() {
        lines.push("dry run: nothing was changed".to_owned());
    }
    let document = json!({ "dry_run": args.dry_run, "workers": workers });
    out.shown(&document, || lines.join("\n"))
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
