//! Reports that a command waits for a lock, and cancels the command after a timeout.
//!
//! For example, a task that commits while its synchronous standby is unreachable keeps the task's row
//! locked until the standby is back. A second session polls which lock the command waits for, and
//! cancels the command on timeout.

use std::time::Duration;

use cli::{Exit, Failure, exit};
use queue::lock_wait::{LockWait, backend_pid, lock_wait};
use terminal::print_stderr;
use tokio::time::{Instant, sleep};

use crate::session::Session;

/// Delay before the second session is opened: most commands finish earlier.
const MONITOR_DELAY: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum duration of one lock wait.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(15);

/// Monitors one session from a second session.
pub(crate) struct LockWaitMonitor {
    target: conninfo::ConnectionTarget,
    backend: i32,
    cancel: tokio_postgres::CancelToken,
}

impl LockWaitMonitor {
    /// Prepares the monitor of a session.
    pub(crate) async fn with(session: &Session) -> Result<Self, Failure> {
        Ok(Self {
            target: session.target().clone(),
            backend: backend_pid(&session.client).await?,
            cancel: session.client.cancel_token(),
        })
    }

    /// Runs the command; reports the lock that it waits for, and cancels it on timeout.
    ///
    /// # Errors
    /// Returns the errors of the command, and an error for a lock wait that is too long.
    pub(crate) async fn run(self, command: impl Future<Output = Exit>) -> Exit {
        let mut command = std::pin::pin!(command);
        let gave_up = tokio::select! {
            done = &mut command => return done,
            wait = self.cancel_on_timeout() => wait,
        };
        // The error of the cancelled command carries no further information.
        match tokio::time::timeout(MONITOR_DELAY, command).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) | Err(_) => Err(Failure::new(
                exit::TEMPORARY,
                format!("lock wait timed out after {}s: {gave_up}", MAX_LOCK_WAIT.as_secs()),
            )
            .hint(
                "The waiting statement was cancelled. Try again later, or end that session with \
                 SELECT pg_terminate_backend(PID).",
            )),
        }
    }

    /// Resolves with a description of the wait when it has cancelled the command. Never resolves if
    /// the second session cannot be opened or is lost.
    async fn cancel_on_timeout(&self) -> String {
        sleep(MONITOR_DELAY).await;
        let Ok((client, connection)) = conninfo::open_client(&self.target).await else {
            return std::future::pending().await;
        };
        let polls = async {
            let mut since: Option<Instant> = None;
            loop {
                let wait = lock_wait(&client, self.backend).await.ok().flatten();
                match (wait, since) {
                    (None, _) => since = None,
                    (Some(wait), None) => {
                        since = Some(Instant::now());
                        print_stderr(format_args!("{}", describe(&wait)));
                    }
                    (Some(wait), Some(since)) if since.elapsed() >= MAX_LOCK_WAIT => {
                        let _ = conninfo::cancel(&self.cancel, &self.target).await;
                        return describe(&wait);
                    }
                    (Some(_), Some(_)) => {}
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            gave_up = polls => gave_up,
            _ = connection => std::future::pending().await,
        }
    }
}

fn describe(wait: &LockWait) -> String {
    match wait {
        LockWait::Standby => "waiting for a synchronous standby to confirm the commit".to_owned(),
        LockWait::Session { pid, login, for_standby, seconds } => {
            let whose = login.as_ref().map(|login| format!(" of \"{login}\"")).unwrap_or_default();
            let age = seconds.map(|age| format!(", open for {age:.0} s")).unwrap_or_default();
            let why = if *for_standby { ", which waits for a synchronous standby" } else { "" };
            match pid {
                Some(pid) => format!("waiting for a lock of session {pid}{whose}{age}{why}"),
                None => "waiting for a lock".to_owned(),
            }
        }
    }
}
