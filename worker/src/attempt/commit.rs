//! Commits the effects of an attempt with its completion.

use std::sync::Arc;
use std::time::Instant;

use futures_util::{TryStreamExt, future};
use queue::complete::{LOST, Success, TRANSACTION_ENDED, complete, completion_statement};
use queue::receipt::{DONE, FENCED, write_receipt};
use queue::resolve_commit::CommitResolution;
use queue::retry;
use queue::{Claim, Condition, QueueError};
use tokio::time::sleep;
use tokio_postgres::Error;

use crate::attempt::chain::chain_budget;
use crate::attempt::error::ExecutionError;
use crate::attempt::session::{
    BEGIN, OpenedTransaction, RESET_SESSION, Session, UNLOCK, XACT, task_settings,
};
use crate::attempt::supervise::{StopReason, Supervised, Supervisor};
use crate::control::{Control, answered};

/// SQLSTATE read_only_sql_transaction.
const READ_ONLY: &str = "25006";

/// SQLSTATEs of a statement that waited for a lock longer than `lock_timeout` or `statement_timeout` allow.
const LOCK_NOT_AVAILABLE: &str = "55P03";
const QUERY_CANCELED: &str = "57014";

/// SQLSTATE internal_error.
const INTERNAL_ERROR: &str = "XX000";

/// Start of the message with which a coordinator of Citus reports that a data node has not confirmed
/// its commit. The error has the general SQLSTATE `XX000`.
const NODE_UNCONFIRMED: &str = "could not commit transaction for shard ";

/// Result of a transaction that contains the completions of one or more tasks.
pub(crate) enum Completion {
    /// Effects and completions are committed.
    Committed,
    /// The completion statement found that a claim can no longer complete its task; nothing is
    /// committed.
    Lost(ExecutionError),
    /// Nothing is committed, because of this error.
    Refused(ExecutionError),
    /// The answer to COMMIT did not arrive; the rows of the tasks show whether the transaction was
    /// committed.
    InDoubt(Option<ExecutionError>),
}

impl Completion {
    /// Returns the result for the answer to the completion statement, which runs no code of the task.
    /// So its SQLSTATEs are those of the queue.
    fn of_completion(answer: Result<(), Error>) -> Self {
        let Err(error) = answer else { return Self::Committed };
        let error = ExecutionError::from(error);
        match error.database_error().sqlstate.as_deref() {
            Some(LOST | DONE | FENCED) => Self::Lost(error),
            Some(TRANSACTION_ENDED) => {
                let message = error.database_error().message.clone();
                let hint = "Leave out COMMIT and ROLLBACK, or enqueue with --mode autocommit. \
                            Changes that the task committed itself are kept.";
                Self::Refused(ExecutionError::refused(retry::FATAL, &message, hint))
            }
            Some(READ_ONLY) => Self::Refused(ExecutionError::refused(
                READ_ONLY,
                "the task's transaction is read-only, so its completion cannot be recorded",
                "Leave out SET TRANSACTION READ ONLY.",
            )),
            Some(LOCK_NOT_AVAILABLE | QUERY_CANCELED) => {
                let mut error = error;
                error.set_condition(Condition::CompletionDelayed);
                Self::Refused(error)
            }
            _ => Self::of_error(error),
        }
    }

    /// Returns the result for the answer to COMMIT. The SQLSTATE of its error may come from a deferred
    /// trigger of the task.
    fn of_commit(answer: Result<(), Error>) -> Self {
        answer.map_or_else(|error| Self::of_error(error.into()), |()| Self::Committed)
    }

    fn of_error(error: ExecutionError) -> Self {
        match error {
            ExecutionError::Database(database_error)
                if database_error.sqlstate.as_deref() == Some(INTERNAL_ERROR)
                    && database_error.message.starts_with(NODE_UNCONFIRMED) =>
            {
                Self::InDoubt(Some(ExecutionError::ConnectionLost(database_error)))
            }
            ExecutionError::Database(_) => Self::Refused(error),
            ExecutionError::ConnectionLost(_) | ExecutionError::Protocol(_) => {
                Self::InDoubt(Some(error))
            }
        }
    }
}

/// Result of a COMMIT.
struct CommitResult {
    completion: Completion,
    /// Whether the session has been reset, or is reset before the statement of the next task.
    clean: bool,
    /// The transaction of the next task, if the message also contained it and the transaction
    /// before it has ended.
    next: Option<OpenedTransaction>,
}

/// Result of [`commit`].
pub(crate) struct Ended {
    pub(crate) completion: Completion,
    pub(crate) stopped: Option<StopReason>,
    /// When the result was known.
    pub(crate) at: Instant,
    /// The transaction of the next task, which runs already.
    pub(crate) next: Option<OpenedTransaction>,
}

/// Sends completions and COMMIT in the open transaction `xact`, and begins `next` with the same
/// message. COMMIT runs deferred triggers and materializes held cursors, which takes unlimited
/// time, so deadline and stop signals apply here too. Afterwards the session runs the next task, or
/// is clean or retired.
pub(crate) async fn commit(
    session: &mut Session,
    supervisor: Supervisor<'_>,
    successes: &[Success<'_>],
    xact: &str,
    next: Option<&Claim>,
) -> Ended {
    let (host, begun_next) = (Arc::clone(&supervisor.host), next.is_some());
    let sent = session.complete_and_commit(&host, successes, xact, next);
    let (commit_result, stopped) = match supervisor.run(sent).await {
        Supervised::Done(commit_result) => (Some(commit_result), None),
        Supervised::Stopped(reason, commit_result) => (commit_result, Some(reason)),
    };
    let at = Instant::now();
    let clean = commit_result.as_ref().is_some_and(|commit_result| commit_result.clean);
    let (completion, mut next) = match commit_result {
        Some(commit_result) => (commit_result.completion, commit_result.next),
        None => (Completion::InDoubt(None), None),
    };
    let in_doubt = matches!(completion, Completion::InDoubt(_));
    if stopped.is_some() || in_doubt {
        session.retire();
        // A cancel may hit the statement of the next task.
        if begun_next {
            // It may run already. Its transaction can no longer commit, but may hold locks for a long
            // time.
            session.host.terminate(session.identity()).await;
        } else if in_doubt {
            session.host.end_transaction(session.identity()).await;
        }
        next = None;
    } else if !clean {
        session.reset().await;
    }
    if matches!(&completion, Completion::Refused(error) if error.outdated_plan()) {
        session.retire();
    }
    Ended { completion, stopped, at, next }
}

impl Session {
    /// Sends the completions, COMMIT and the reset, in one message if possible and otherwise in one
    /// pipeline. The answers to a pipeline arrive in parts, each of which wakes the worker. If a
    /// completion fails, it aborts the transaction, and nothing is committed.
    ///
    /// With `next`, the message also begins that task, and the call returns when the transaction has
    /// ended.
    async fn complete_and_commit(
        &self,
        control: &Control,
        successes: &[Success<'_>],
        xact: &str,
        next: Option<&Claim>,
    ) -> CommitResult {
        let inlined = match successes {
            [success] if success.claim.receipt().is_none() => completion_statement(success, xact),
            _ => None,
        };
        let (message, offset) = commit_message(inlined.as_deref(), next);
        let until_commit = 1 + usize::from(inlined.is_some());
        let completed = async {
            match successes {
                _ if inlined.is_some() => Ok(()),
                [Success { claim, report, .. }] if let Some(receipt) = claim.receipt() => {
                    let result = report.result.as_ref().filter(|_| claim.run().is_some());
                    write_receipt(self.client(), receipt, xact, report.rows, result).await
                }
                _ => complete(self.client(), successes, Some(xact)).await,
            }
        };
        let (completed, answers) =
            future::join(completed, self.client().simple_query_raw(&message)).await;
        let incomplete = completed.is_err();
        let completion = |ended, until_commit| match completed {
            Err(_) => Completion::of_completion(completed),
            Ok(()) if until_commit > 1 => Completion::of_completion(ended),
            Ok(()) => Completion::of_commit(ended),
        };
        let mut opened = match answers {
            Ok(answers) => OpenedTransaction { answers: Box::pin(answers), until_commit, offset },
            Err(error) => {
                let completion = completion(Err(error), until_commit);
                return CommitResult { completion, clean: false, next: None };
            }
        };
        let ended = match next {
            // COMMIT rolls back, and the next task begins.
            Some(_) if incomplete => Ok(()),
            Some(_) => tokio::select! {
                biased;
                ended = opened.read_commit() => ended,
                () = committed(control, successes) => Ok(()),
            },
            None => opened.read_commit().await,
        };
        if ended.is_err() || next.is_some() {
            let (clean, until_commit) = (ended.is_ok(), opened.until_commit);
            let next = next.filter(|_| clean).map(|_| opened);
            return CommitResult { completion: completion(ended, until_commit), clean, next };
        }
        let mut rest = opened.answers;
        let clean = loop {
            match rest.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        CommitResult { completion: completion(Ok(()), 0), clean, next: None }
    }
}

/// Returns the message with the completion, COMMIT and the reset, and the number of its characters
/// before the statement of `next`.
///
/// If COMMIT fails, the server skips the rest of the message. So the statement of `next` never runs
/// outside of its transaction. Before it, the reset has a transaction of its own: otherwise the next
/// task would begin with the isolation level that the task before set as the default.
fn commit_message(completion: Option<&str>, next: Option<&Claim>) -> (String, usize) {
    let before = completion.map(|completion| format!("{completion}; ")).unwrap_or_default();
    let commit = format!("{before}/* worker.commit */ COMMIT; ");
    let Some(next) = next else {
        return (format!("{commit}{RESET_SESSION}; SELECT {UNLOCK}"), 0);
    };
    let opening = format!(
        "{commit}BEGIN; {RESET_SESSION}; COMMIT; {BEGIN}; SELECT {UNLOCK}, {}, {XACT};\n",
        task_settings(next, true)
    );
    (format!("{opening}{}", next.with_comment(next.statement())), opening.chars().count())
}

/// Resolves when the completion is visible to other sessions. Asks only if the answer takes longer
/// than tasks of a chain do, because the server does not send it before the next task's answer.
async fn committed(control: &Control, successes: &[Success<'_>]) {
    let mut backoff = control.backoff();
    let claim = successes[0].claim;
    sleep(chain_budget(claim)).await;
    while !control.committed(claim).await.unwrap_or(false) {
        backoff.wait().await;
    }
}

/// Completes a task whose effects are already committed, on a control session. Retries without
/// limit. Returns `false` if the claim was lost.
pub(crate) async fn complete_committed(control: &Control, success: Success<'_>) -> bool {
    let claim = success.claim;
    let mut repeated = control.repeated("completion", claim.id());
    let mut backoff = control.backoff();
    loop {
        let completed = answered(async {
            let client = control.get().await?;
            Ok(complete(&client, &[success], None).await)
        });
        let completion = match completed.await {
            Ok(completed) => Completion::of_completion(completed),
            Err(QueueError::NoAnswer { .. }) => Completion::InDoubt(None),
            Err(error) => {
                repeated.failed(&error);
                backoff.wait().await;
                continue;
            }
        };
        match completion {
            Completion::Committed => return true,
            Completion::Lost(_) => return false,
            Completion::Refused(error) => {
                repeated.failed(&error.database_error().message);
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
