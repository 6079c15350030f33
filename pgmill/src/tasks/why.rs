//! `pgmill why`: the reason why a task is not running, a run has not ended, a schedule does not fire,
//! or the tasks of a queue wait.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use health::problems::{self, QueueBacklog};
use jiff::Timestamp;
use queue::insight::problems::waiting_limits;
use queue::task_queries::Running;
use queue::{QueueError, maintenance, queue_status, task_queries};
use serde_json::{Value, json};
use terminal::visible;

use crate::args::Subject;
use crate::output::Output;
use crate::output::format::{counted, span};
use crate::schedules::fires::test_schedule;
use crate::session::missing;
use crate::tasks::show::unknown;

/// Prints one sentence that explains the state of a task, a run, a schedule or a queue. For a task that
/// sessions outside the fleet block, also prints how to end the wait.
///
/// # Errors
/// Fails if there is no such task, run, schedule or queue.
pub(crate) async fn run(client: &mut Client, out: &Output, task: &Subject) -> Exit {
    let (sentence, mut document) = match task {
        Subject::Task(id) => {
            let sentence = task_queries::why(client, *id).await?;
            (sentence.ok_or_else(|| unknown(*id))?, json!({ "task_id": id }))
        }
        Subject::Run(run) => {
            let sentence = queue::run::why_run(client, *run).await?;
            (sentence.ok_or_else(|| missing("run", run))?, json!({ "run_id": run }))
        }
        Subject::RunTask(run, name) => {
            let sentence = queue::run::why(client, *run, name).await?;
            let sentence = sentence.ok_or_else(|| {
                Failure::not_found(format!("no task {name} in run {run}, or no such run"))
                    .hint(format!("pgmill run show {run}"))
            })?;
            (sentence, json!({ "run_id": run, "task": name }))
        }
        Subject::Named(name) => match test_schedule(client, name).await? {
            Some(schedule) => (schedule.reason, json!({ "schedule": name })),
            None => {
                let sentence = why_queue(client, name).await?.ok_or_else(|| {
                    let what =
                        format!("there is no schedule \"{name}\", and no such queue is in use");
                    Failure::not_found(what).hint("pgmill schedule list, pgmill status")
                })?;
                (sentence, json!({ "queue": name }))
            }
        },
    };
    document["why"] = sentence.as_str().into();
    if out.json {
        return out.document(&document);
    }
    out.text(&visible(&sentence))?;
    if let Subject::Task(id) = task
        && let Some(running) = task_queries::running(client, Some(*id)).await?.pop()
    {
        let now = task_queries::now(client).await?;
        for line in blocker_lines(&running, now) {
            out.text(&visible(&line))?;
        }
    }
    Ok(exit::OK)
}

/// Returns what holds the tasks of a queue back. `None` if the queue has neither live tasks nor
/// settings.
async fn why_queue(client: &Client, name: &str) -> Result<Option<String>, QueueError> {
    let queues = queue_status::queues(client).await?;
    let Some(queue) = queues.iter().find(|it| it.queue == name) else { return Ok(None) };
    let workers = queue::workers::workers(client).await?;
    let limits = waiting_limits(client).await?;
    let now = task_queries::now(client).await?;
    let backlog = QueueBacklog {
        queue: name,
        paused: queue.paused,
        held_back: queue.held_back.as_deref(),
        pending: counted(queue.pending, "pending task"),
        oldest_seconds: queue.oldest_pending_seconds.unwrap_or_default(),
    };
    let mut reasons = problems::queue_blockers(&backlog, &workers, &limits, now);
    reasons.splice(0..0, maintenance::describe_pause(client).await?);
    if reasons.is_empty() && queue.blocked > 0 {
        reasons.push(format!(
            "queue {name}: {} for permits, see pgmill limit list and pgmill group list",
            match queue.blocked {
                1 => "1 task waits".to_owned(),
                blocked => format!("{} wait", counted(blocked, "task")),
            }
        ));
    }
    if reasons.is_empty() {
        reasons.push(format!("nothing holds the tasks of queue {name} back"));
    }
    Ok(Some(reasons.join("; ")))
}

/// Describes the sessions that block a task and run no task themselves, and how to end the wait.
fn blocker_lines(task: &Running, now: Timestamp) -> Vec<String> {
    let blockers = task.blockers.iter().filter_map(Value::as_array).flatten();
    let mut lines: Vec<String> =
        blockers.filter_map(|it| session_lines(it, now)).flatten().collect();
    if !lines.is_empty() {
        lines.push(format!("pgmill task cancel {} frees the reader", task.id));
    }
    lines
}

/// Describes one such session. Prepared transactions are left out: they have no backend to
/// terminate.
fn session_lines(session: &Value, now: Timestamp) -> Option<[String; 2]> {
    let pid = session["pid"].as_i64().filter(|pid| *pid > 0 && session["task_id"].is_null())?;
    let started = session["transaction_started_at"].as_str();
    let age = started.and_then(|at| at.parse::<Timestamp>().ok()).map_or_else(String::new, |at| {
        format!(", open for {}", span(now.duration_since(at).as_secs_f64()))
    });
    let member = session["user"].as_str().map_or_else(
        || " or".to_owned(),
        |user| format!(", a member of {user} or, unless {user} is a superuser,"),
    );
    Some([
        format!("the owner of session {pid} can end its transaction{age}"),
        format!(
            "SELECT pg_terminate_backend({pid}) ends the session; it requires a superuser{member} \
             a member of pg_signal_backend"
        ),
    ])
}
