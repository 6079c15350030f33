//! That nothing stands between a session and its backend, looked at once at the start.
//!
//! A claim names a backend, by which the fleet ends what a dead worker left running, and a lock of the
//! control session shows that the worker lives. Behind a pooler in transaction mode each transaction
//! may have another backend: both would say something about somebody else's. Poolers that drop the
//! start-up packet's `options` would run tasks and statements of the queue without their settings.

use std::time::Duration;

use queue::QueueError;
use queue::connect::{ConnectError, Target, open};
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_util::task::TaskTracker;

/// Set in the start-up packet; it comes through or it does not.
const MARKER: (&str, &str) = ("mill.pooler_check", "yes");

const BACKEND: &str = "/* worker.backend */
SELECT pg_backend_pid(), current_setting('mill.pooler_check', true) IS NOT DISTINCT FROM 'yes'";

/// How often a transaction of another session comes in between.
const ROUNDS: usize = 3;

/// A pooler whose only backend is taken does not answer at all.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

const HINT: &str = "connect the worker to PostgreSQL directly; enqueue, pgmill and applications may \
                    use a pooler, see docs/worker.md";

/// Rules out a pooler; `what` names the setting that the target comes from.
///
/// # Errors
/// There is one; the server cannot be reached.
pub(crate) async fn check(
    target: &Target,
    what: &str,
    tracker: &TaskTracker,
) -> Result<(), QueueError> {
    let refused = |reason: &str| QueueError::Refused {
        message: format!("{what} leads through a connection pooler: {reason}"),
        hint: Some(HINT.to_owned()),
    };
    let target = target.with_application_name("pgmill start").with_option(MARKER.0, MARKER.1);
    let sessions = async {
        Ok::<_, ConnectError>((session(&target, tracker).await?, session(&target, tracker).await?))
    };
    let (client, other) = match sessions.await {
        Ok(sessions) => sessions,
        // No server of ours: PostgreSQL takes the parameter.
        Err(error) if error.sqlstate() == Some(&SqlState::PROTOCOL_VIOLATION) => {
            return Err(refused("it refuses the settings that sessions start with"));
        }
        Err(error) => return Err(error.into()),
    };
    match timeout(CHECK_TIMEOUT, detect_routing(&client, &other)).await {
        Ok(Ok(Routing::Direct)) => Ok(()),
        Ok(Ok(Routing::SettingsDropped)) => {
            Err(refused("it drops the settings that sessions start with"))
        }
        Ok(Ok(Routing::SharedBackend)) => {
            Err(refused("a session changes its backend between transactions"))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(refused("no backend was free for a second session")),
    }
}

async fn session(target: &Target, tracker: &TaskTracker) -> Result<Client, ConnectError> {
    let (client, connection) = open(target).await?;
    tracker.spawn(async move {
        // Its error shows in the client.
        let _ = connection.await;
    });
    Ok(client)
}

enum Routing {
    Direct,
    SettingsDropped,
    SharedBackend,
}

/// The other session's open transaction takes the backend away that a pooler got back from the first,
/// or shows itself on it.
async fn detect_routing(client: &Client, other: &Client) -> Result<Routing, tokio_postgres::Error> {
    let (first, marked) = backend(client).await?;
    if !marked {
        return Ok(Routing::SettingsDropped);
    }
    for _ in 0..ROUNDS {
        other.batch_execute("BEGIN").await?;
        let (between, _) = backend(other).await?;
        let (now, _) = backend(client).await?;
        other.batch_execute("ROLLBACK").await?;
        if now != first || between == first {
            return Ok(Routing::SharedBackend);
        }
    }
    Ok(Routing::Direct)
}

/// Its process id, and whether the mark has come through.
async fn backend(client: &Client) -> Result<(i32, bool), tokio_postgres::Error> {
    let row = &client.query_typed(BACKEND, &[]).await?[0];
    Ok((row.try_get(0)?, row.try_get(1)?))
}
