//! Refuses to start behind a connection pooler.
//!
//! Two promises need direct connections. A claim names a backend, so that the fleet can end the
//! statements of a dead worker. A lock of the control session shows that the worker is alive.
//! Behind a pooler in transaction mode, each transaction may run on another backend, so claim and
//! lock would refer to the backend of another client. Some poolers also drop the `options` of the
//! startup packet. Behind such a pooler, tasks and queue statements would run without their
//! settings.

use conninfo::{ConnectError, ConnectionTarget, open};
use fleet_decisions::timing::POOLER_CHECK_TIMEOUT;
use queue::QueueError;
use queue::row::only;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::shutdown::Tasks;

/// Setting in the startup packet that shows whether a pooler drops `options`.
const MARKER: (&str, &str) = ("mill.pooler_check", "yes");

const BACKEND: &str = "SELECT /* worker.backend */ pg_backend_pid(), current_setting('mill.pooler_check', true) IS NOT DISTINCT FROM 'yes'";

/// Number of rounds. In each round, a second session has a transaction open while the first runs a
/// statement.
const ROUNDS: usize = 3;

const HINT: &str = "Connect the worker to PostgreSQL directly. enqueue, pgmill and applications \
                    may use a pooler; see docs/worker.md.";

/// Checks that `target` is not a pooler. `what` is the name of the setting that `target` comes
/// from.
///
/// # Errors
/// `target` is a pooler, or the server is unreachable.
pub(crate) async fn check(
    target: &ConnectionTarget,
    what: &str,
    tasks: &Tasks,
) -> Result<(), QueueError> {
    let refused = |reason: &str| QueueError::Refused {
        message: format!("{what} connects through a connection pooler: {reason}"),
        hint: Some(HINT.to_owned()),
    };
    let target = target.with_application_name("pgmill start").with_option(MARKER.0, MARKER.1);
    let sessions = async {
        Ok::<_, ConnectError>((session(&target, tasks).await?, session(&target, tasks).await?))
    };
    let (client, other) = match sessions.await {
        Ok(sessions) => sessions,
        // PostgreSQL itself accepts the parameter.
        Err(error) if error.sqlstate() == Some(&SqlState::PROTOCOL_VIOLATION) => {
            return Err(refused("the pooler refuses settings in the startup packet"));
        }
        Err(error) => return Err(error.into()),
    };
    match timeout(POOLER_CHECK_TIMEOUT, detect_routing(&client, &other)).await {
        Ok(Ok(Routing::Direct)) => Ok(()),
        Ok(Ok(Routing::SettingsDropped)) => {
            Err(refused("the pooler drops settings in the startup packet"))
        }
        Ok(Ok(Routing::SharedBackend)) => {
            Err(refused("the session changes its backend between transactions"))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(refused("the pooler gave the second of two sessions no server connection")),
    }
}

async fn session(target: &ConnectionTarget, tasks: &Tasks) -> Result<Client, ConnectError> {
    let (client, connection) = open(target).await?;
    tasks.spawn(async move {
        // The client reports the error.
        let _ = connection.await;
    });
    Ok(client)
}

enum Routing {
    Direct,
    SettingsDropped,
    SharedBackend,
}

/// Detects a shared backend. While `other` has a transaction open, a pooler has either given it the
/// backend of `client`, or has to give `client` another backend.
async fn detect_routing(client: &Client, other: &Client) -> Result<Routing, QueueError> {
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

/// Returns the backend's process id and whether the marker setting arrived.
async fn backend(client: &Client) -> Result<(i32, bool), QueueError> {
    let row = only(client, BACKEND, &[]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
