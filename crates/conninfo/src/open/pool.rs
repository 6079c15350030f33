//! A deadpool pool whose connections are opened by the rules of this crate.

use crate::connection_target::ConnectionTarget;
use crate::error::ConnectError;
use crate::open::attempt::from_driver;
use crate::open::connection::Connection;
use crate::open::open;
use deadpool_postgres::{Manager, ManagerConfig, PoolError, RecyclingMethod, TimeoutType};
use futures_util::stream;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{join, sink};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

/// Returns the manager of a pool whose connections go to `target`.
///
/// The caller builds the pool, and chooses its size and its time limits. Time limits need
/// `.runtime(Runtime::Tokio1)`.
pub fn pool_manager(target: &ConnectionTarget, recycling_method: RecyclingMethod) -> Manager {
    pool_manager_until(target, recycling_method, CancellationToken::new)
}

/// As [`pool_manager`], but with a way to close connections. Calls `end` for each connection. When
/// the token that `end` returned is cancelled, the connection is closed, even while it is in use.
pub fn pool_manager_until(
    target: &ConnectionTarget,
    recycling_method: RecyclingMethod,
    end: impl Fn() -> CancellationToken + Send + Sync + 'static,
) -> Manager {
    let connect = PoolConnect { target: target.clone(), end: Arc::new(end) };
    // Deadpool requires this configuration, but `PoolConnect` ignores it.
    Manager::from_connect(Config::new(), connect, ManagerConfig { recycling_method })
}

/// Opens the connections of a pool with [`open`], and drives each connection in a spawned task.
#[derive(Clone)]
pub struct PoolConnect {
    target: ConnectionTarget,
    end: Arc<dyn Fn() -> CancellationToken + Send + Sync>,
}

type Connected = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl deadpool_postgres::Connect for PoolConnect {
    fn connect(&self, _: &Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        Box::pin(async {
            // Takes the token before the connection opens, so that a cancellation in the meantime
            // closes it.
            let end = (self.end)();
            match open(&self.target).await {
                Ok((client, connection)) => Ok((client, drive(connection, end))),
                Err(ConnectError::Refused { source, .. }) => Err(*source),
                Err(error) => Err(into_driver_error(error).await),
            }
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "the pool aborts the task with its connection")]
fn drive(connection: Connection, end: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        end.run_until_cancelled(messages(connection)).await;
    })
}

async fn messages(mut connection: Connection) {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notice(notice)) => {
                tracing::debug!(sqlstate = notice.code().code(), "{}", notice.message());
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("pooled connection ended: {}", reason(&error));
                return;
            }
        }
    }
}

/// Returns the error message, in place of the driver's "db error".
fn reason(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => format!("{} (SQLSTATE {})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// Returns the error of [`open`] that a pool's error contains.
pub fn pool_error(error: PoolError) -> ConnectError {
    let unreachable = |reason: String| ConnectError::Unreachable {
        server: "the pool's target".to_owned(),
        reason,
    };
    match error {
        PoolError::Backend(error) if error.as_db_error().is_none() => {
            let shown = reason(&error);
            let smuggled = error
                .into_source()
                .and_then(|source| source.downcast::<io::Error>().ok())
                .and_then(|error| error.into_inner())
                .and_then(|inner| inner.downcast::<ConnectError>().ok());
            smuggled.map_or_else(|| unreachable(shown), |error| *error)
        }
        PoolError::Backend(error) => from_driver("the pool's target", error),
        PoolError::Timeout(waited_for) => ConnectError::NoSession {
            reason: match waited_for {
                TimeoutType::Wait => "all sessions of this program are in use",
                TimeoutType::Create => "the server has not accepted a new session",
                TimeoutType::Recycle => "the server has not answered in a session",
            },
        },
        other => unreachable(other.to_string().to_lowercase()),
    }
}

/// Wraps a [`ConnectError`] in the driver's error type, the only type that a pool accepts. Only the
/// driver can create this type. Therefore this function starts a connection over a stream that
/// fails with the error.
async fn into_driver_error(error: ConnectError) -> tokio_postgres::Error {
    let answer = StreamReader::new(stream::iter([Err::<&[u8], _>(io::Error::other(error))]));
    let stream = join(answer, sink());
    match Config::new().user("nobody").ssl_mode(SslMode::Disable).connect_raw(stream, NoTls).await {
        Err(error) => error,
        Ok(_) => unreachable!("no start-up completes over a stream that fails"),
    }
}
