//! What the worker's two logins may do, looked at once at the start.

use anyhow::anyhow;
use queue::QueueError;
use queue::connect::Target;
use queue::operate::{LoginRights, login_rights};
use tokio_postgres::Client;
use tokio_util::task::TaskTracker;

use crate::session::Session;

/// Warns of rights that are missing or too many; opens one task session to look at its login.
///
/// # Errors
/// No task session to be had; the control login may not work on the queue.
pub(crate) async fn check(
    control: &Client,
    task_target: &Target,
    tracker: &TaskTracker,
) -> anyhow::Result<()> {
    let rights = login_rights(control).await?;
    if !rights.worker {
        return Err(QueueError::Refused {
            message: format!("the login \"{}\" may not work on the queue", rights.login),
            hint: Some(format!("GRANT mill_worker TO \"{}\";", rights.login)),
        }
        .into());
    }
    if !rights.sees_backends {
        tracing::warn!(
            login = rights.login,
            "no right to see and end other logins' backends: tasks of dead workers wait until their \
             backends are gone. As superuser: GRANT pg_read_all_stats, pg_signal_backend TO mill_worker;"
        );
    }
    let session = Session::open(task_target, tracker)
        .await
        .map_err(|error| anyhow::Error::from(QueueError::from(error)))
        .map_err(|error| error.context(anyhow!("no session for tasks")))?;
    let tasks = login_rights(session.client()).await?;
    if let Some(power) = too_much(&tasks) {
        tracing::warn!(
            login = tasks.login,
            "task SQL runs as {power} and could change or drop the queue. To separate them: \
             (1) CREATE ROLE mill_tasks LOGIN PASSWORD '…'; \
             (2) GRANT … ON your own tables TO mill_tasks; \
             (3) worker --task-url 'postgres://mill_tasks@…/{}'",
            task_target.dbname()
        );
    }
    Ok(())
}

fn too_much(rights: &LoginRights) -> Option<&'static str> {
    if rights.superuser {
        Some("superuser")
    } else if rights.owner {
        Some("the owner of the queue")
    } else if rights.worker {
        Some("a login that may write the queue's tables")
    } else {
        None
    }
}
