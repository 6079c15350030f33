//! `pgmill why`: the reason why a task is not running, or a schedule does not fire.

use cli::{Failure, exit};
use queue::task_queries;
use serde_json::json;
use terminal::visible;
use tokio_postgres::Client;

use crate::args::Subject;
use crate::output::Output;
use crate::schedules::fires::test_schedule;
use crate::tasks::show::unknown;

/// Prints one sentence that explains the state of a task or a schedule.
///
/// # Errors
/// Fails if there is no such task or schedule.
pub(crate) async fn run(client: &mut Client, out: &Output, task: &Subject) -> Result<u8, Failure> {
    let (sentence, document) = match task {
        Subject::Task(id) => {
            let sentence = task_queries::why(client, *id).await?.ok_or_else(|| unknown(*id))?;
            let document = json!({ "task_id": id, "why": &sentence });
            (sentence, document)
        }
        Subject::RunTask(run, name) => {
            let sentence = queue::run::why(client, *run, name).await?;
            let sentence = sentence.ok_or_else(|| {
                Failure::not_found(format!("no task {name} in run {run}, or no such run"))
                    .hint(format!("pgmill run show {run}"))
            })?;
            let document = json!({ "run_id": run, "task": name, "why": &sentence });
            (sentence, document)
        }
        Subject::Schedule(name) => {
            let sentence = test_schedule(client, name).await?.reason;
            let document = json!({ "schedule": name, "why": &sentence });
            (sentence, document)
        }
    };
    if out.json {
        out.document(&document)?;
    } else {
        out.text(&visible(&sentence))?;
    }
    Ok(exit::OK)
}
