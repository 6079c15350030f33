//! Commits the effects of an attempt with its completion.

use queue::QueueError;
use queue::complete::{LOST, Success, TRANSACTION_ENDED, complete};
use queue::resolve_commit::CommitResolution;
use queue::retry;
use tokio_postgres::Error;

use crate::attempt::error::ExecutionError;
use crate::attempt::session::Session;
use crate::attempt::supervise::{StopReason, Supervised, Supervisor};
use crate::control::{Backoff, Control, answered};

/// SQLSTATE read_only_sql_transaction.
const READ_ONLY: &str = "25006";

/// Result of a transaction that contains the completions of one or more tasks.
pub(crate) enum Completion {
    /// Effects and completions are committed.
    Committed,
    /// A claim was lost; nothing is committed.
    Lost,
    /// Nothing is committed, because of this error.
    Refused(ExecutionError),
    /// The answer to COMMIT did not arrive; the rows of the tasks show whether the transaction was
    /// committed.
    InDoubt(Option<ExecutionError>),
}

impl From<Result<(), Error>> for Completion {
    fn from(committed: Result<(), Error>) -> Self {
        let Err(error) = committed else { return Self::Committed };
        let error = ExecutionError::from(error);
        match (&error, error.database_error().sqlstate.as_deref()) {
            (_, Some(LOST)) => Self::Lost,
            (_, Some(TRANSACTION_ENDED)) => {
                let message = error.database_error().message.clone();
                let hint = "Leave out COMMIT and ROLLBACK, or enqueue with --mode autocommit. \
                            Changes that the task committed itself are kept.";
                Self::Refused(ExecutionError::refused(retry::FATAL, &message, hint))
            }
            (_, Some(READ_ONLY)) => Self::Refused(ExecutionError::refused(
                READ_ONLY,
                "the task's transaction is read-only, so its completion cannot be recorded",
                "Leave out SET TRANSACTION READ ONLY.",
            )),
            (ExecutionError::Database(_), _) => Self::Refused(error),
            (ExecutionError::ConnectionLost(_) | ExecutionError::Protocol(_), _) => {
                Self::InDoubt(Some(error))
            }
        }
    }
}

/// Sends completions and COMMIT in the open transaction `xact`. COMMIT runs deferred triggers and
/// materializes held cursors, which takes unlimited time, so deadline and stop signals apply here
/// too. Afterwards the session is clean or retired.
pub(crate) async fn commit(
    session: &mut Session,
    supervisor: Supervisor<'_>,
    successes: &[Success<'_>],
    xact: &str,
) -> (Completion, Option<StopReason>) {
    let (commit_result, stopped) =
        match supervisor.run(session.complete_and_commit(successes, xact)).await {
            Supervised::Done(commit_result) => (Some(commit_result), None),
            Supervised::Stopped(reason, commit_result) => (commit_result, Some(reason)),
        };
    let clean = commit_result.as_ref().is_some_and(|commit_result| commit_result.clean);
    let completion = match commit_result {
        Some(commit_result) => commit_result.committed.into(),
        None => Completion::InDoubt(None),
    };
    if stopped.is_some() || matches!(completion, Completion::InDoubt(_)) {
        session.retire();
    } else if !clean {
        session.reset().await;
    }
    (completion, stopped)
}

/// Completes a task whose effects are already committed, on a control session. Retries without
/// limit. Returns `false` if the claim was lost.
pub(crate) async fn complete_committed(control: &Control, success: Success<'_>) -> bool {
    let claim = success.claim;
    let mut backoff = Backoff::default();
    loop {
        let completed = answered(async {
            let client = control.get().await?;
            Ok(complete(&client, &[success], None).await)
        });
        let completion = match completed.await {
            Ok(completed) => completed.into(),
            Err(QueueError::NoAnswer { .. }) => Completion::InDoubt(None),
            Err(error) => {
                control.log_retry("completion", claim.id(), &error);
                backoff.wait().await;
                continue;
            }
        };
        match completion {
            Completion::Committed => return true,
            Completion::Lost => return false,
            Completion::Refused(error) => {
                control.log_retry("completion", claim.id(), &error.database_error().message);
            }
            Completion::InDoubt(_) => match control.resolve_commit(claim).await {
                CommitResolution::Committed => return true,
                CommitResolution::Lost => return false,
                CommitResolution::RolledBack => {}
            },
        }
        backoff.wait().await;
    }
}
