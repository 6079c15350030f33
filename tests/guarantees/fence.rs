//! A lost claim changes nothing, not even while several statements wait for the lock of the task's
//! row.

use std::time::Duration;

use futures_util::future::join;
use jiff::Timestamp;
use queue::claim::{ClaimSession, Lane, LaneRange, SessionIdentity};
use queue::complete::{LOST, Success, TRANSACTION_ENDED, complete};
use queue::fail::{Report, fail};
use queue::reclaim::{DeadWorker, reclaim};
use queue::release::release;
use queue::retry::RetryDecision;
use queue::{Claim, Disposition, Outcome, Priority, TaskId, WorkerId};
use tokio_postgres::Client;

use crate::harness::{Database, PrivateDatabase, amount, eventually};

const AGAIN: RetryDecision = RetryDecision::Failure { retry_in: Duration::from_secs(3600) };

/// Claims the only pending task for a worker without a backend.
async fn claim(database: &Database) -> (WorkerId, Claim) {
    let worker = WorkerId::random();
    let claimer = ClaimSession::new(database.connect().await, worker, None).await.unwrap();
    let lane =
        Lane { queue: "default".to_owned(), priority: Priority::Normal, run_as: String::new() };
    let session = SessionIdentity { pid: 1, started_at: Timestamp::UNIX_EPOCH };
    let mut claimed = claimer.claim(&[LaneRange::whole(lane)], &[session]).await.unwrap();
    (worker, claimed.pop().expect("a pending task").claim)
}

/// Creates a database with a table for effects and one claimed task.
async fn claimed() -> (Database, i64, WorkerId, Claim) {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint)").await;
    let id = database.enqueue("SELECT 1", "").await;
    let (worker, claim) = claim(&database).await;
    (database, id, worker, claim)
}

/// Opens the task's transaction on `client`, with an effect and its completion.
async fn finish(client: &Client, claim: &Claim) -> Result<(), String> {
    client.batch_execute("BEGIN; INSERT INTO effect VALUES (1)").await.unwrap();
    let xact: String =
        client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    complete(client, &[Success::now(claim, &Report::default())], Some(&xact))
        .await
        .map_err(|error| error.code().unwrap().code().to_owned())
}

/// As [`finish`], but with the function that completes the tasks of a shared commit.
async fn finish_together(client: &Client, claims: &[&Claim]) -> Result<(), String> {
    client.batch_execute("BEGIN; INSERT INTO effect VALUES (1)").await.unwrap();
    let xact: String =
        client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    let (report, ran_until) = (Report::default(), Some(Duration::ZERO));
    let successes: Vec<Success<'_>> =
        claims.iter().map(|claim| Success { claim, ran_until, report: &report }).collect();
    complete(client, &successes, Some(&xact))
        .await
        .map_err(|error| error.code().unwrap().code().to_owned())
}

async fn effects(database: &Database) -> i64 {
    database.value("SELECT count(*) FROM effect").await
}

/// Returns the task's whole row, including its physical position.
async fn row(database: &Database) -> String {
    database
        .value("SELECT coalesce(string_agg(t.ctid::text || t.xmin || t::text, ' '), 'gone') FROM mill.tasks t")
        .await
}

/// Returns the dead worker for a claim whose worker has no row.
fn unregistered(worker: WorkerId) -> DeadWorker {
    DeadWorker { worker, last_heartbeat: None }
}

#[tokio::test]
async fn a_worker_that_comes_back_while_it_is_being_reclaimed_keeps_its_claims() {
    let (database, id, worker, claim) = claimed().await;
    let here = format!(
        "INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout)
         VALUES ('{worker}', 1, now(), 1, '5 s', '30 s') RETURNING heartbeat_at"
    );
    let found_dead = DeadWorker { worker, last_heartbeat: Some(database.value(&here).await) };
    database.execute("UPDATE mill.workers SET heartbeat_at = clock_timestamp()").await;
    let reclaimed = reclaim(database.client(), found_dead).await.unwrap();
    assert_eq!((reclaimed.released, reclaimed.ended, reclaimed.remaining), (vec![], vec![], 0));
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.workers").await, 1);
    let session = database.connect().await;
    finish(&session, &claim).await.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.attempts(id).await, "succeeded");
}

#[tokio::test]
async fn all_claims_of_a_dead_worker_are_reclaimed_in_transactions_of_limited_size() {
    let database = Database::new().await;
    let worker = WorkerId(database.value("SELECT gen_random_uuid()").await);
    database
        .execute(&format!(
            "SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[150]));
             UPDATE mill.tasks SET state = 'running', attempt = 1, token = gen_random_uuid(),
                 claimed_at = now(), claimed_by = '{worker}', session_pid = 0, session_started_at = now()"
        ))
        .await;
    let reclaimed = reclaim(database.client(), unregistered(worker)).await.unwrap();
    assert_eq!((reclaimed.released.len(), reclaimed.remaining), (150, 0));
    let transactions = "SELECT string_agg(tasks::text, ' ' ORDER BY tasks DESC)
        FROM (SELECT count(*) AS tasks FROM mill.attempts GROUP BY xmin) AS t";
    assert_eq!(database.value::<String>(transactions).await, "30 30 30 30 30");
}

#[tokio::test]
async fn a_claim_that_was_reclaimed_changes_nothing() {
    for way in ["complete", "fail", "release"] {
        let (database, id, worker, stale) = claimed().await;
        let reclaimed = reclaim(database.client(), unregistered(worker)).await.unwrap();
        assert_eq!(reclaimed.released, [TaskId(id)]);
        let (_, good) = claim(&database).await;
        assert_eq!(good.attempt(), 2);
        assert_ne!(good.token(), stale.token());
        let before = row(&database).await;
        let session = database.connect().await;
        match way {
            "complete" => {
                assert_eq!(finish(&session, &stale).await, Err(LOST.to_owned()));
                session.batch_execute("COMMIT").await.unwrap();
            }
            "fail" => {
                let report = Report::default();
                let failed = fail(&session, &stale, Outcome::Failed, AGAIN, &report).await.unwrap();
                assert_eq!(failed, Disposition::Lost);
            }
            _ => {
                let released = release(&session, &stale, Duration::ZERO).await.unwrap();
                assert_eq!(released, Disposition::Lost);
            }
        }
        // A reclaimed worker can be reclaimed again.
        let again = reclaim(database.client(), unregistered(worker)).await.unwrap();
        assert!(again.released.is_empty() && again.ended.is_empty());
        assert_eq!(row(&database).await, before, "{way}");
        assert_eq!(effects(&database).await, 0, "{way}");
        assert_eq!(database.attempts(id).await, "lost", "{way}");
        finish(&session, &good).await.unwrap();
        session.batch_execute("COMMIT").await.unwrap();
        assert_eq!(
            (effects(&database).await, database.attempts(id).await.as_str()),
            (1, "lost succeeded")
        );
    }
}

#[tokio::test]
async fn a_shared_commit_with_one_lost_claim_commits_nothing() {
    let (database, reclaimed, worker, stale) = claimed().await;
    reclaim(database.client(), unregistered(worker)).await.unwrap();
    let (_, again) = claim(&database).await;
    let other = database.enqueue("SELECT 1", "").await;
    let (_, good) = claim(&database).await;
    let session = database.connect().await;
    let finished = finish_together(&session, &[&stale, &good]).await;
    assert_eq!(finished, Err(LOST.to_owned()));
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!((effects(&database).await, database.attempts(other).await.as_str()), (0, ""));
    finish_together(&session, &[&again, &good]).await.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.attempts(reclaimed).await, "lost succeeded");
    assert_eq!(
        (effects(&database).await, database.attempts(other).await.as_str()),
        (1, "succeeded")
    );
}

#[tokio::test]
async fn tasks_of_a_shared_commit_give_their_keys_and_permits_back() {
    let database = Database::new().await;
    database.execute("CREATE TABLE effect (task bigint)").await;
    let options = ", key => 'k', concurrency_key => 'c'";
    database.enqueue("SELECT 1", options).await;
    database.execute("SELECT mill.grant_waiting_permits()").await;
    let (_, claim) = claim(&database).await;
    let held = "SELECT concat_ws(' ', (SELECT count(*) FROM mill.permits), (SELECT count(*) FROM mill.dedup_keys))";
    assert_eq!(database.value::<String>(held).await, "1 1");
    let session = database.connect().await;
    finish_together(&session, &[&claim]).await.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.value::<String>(held).await, "0 0");
}

#[tokio::test]
async fn maintenance_forgets_only_cancel_requests_of_tasks_that_have_ended() {
    let (database, id, _, claim) = claimed().await;
    assert_eq!(database.value::<String>(&format!("SELECT mill.cancel({id})")).await, "requested");
    database
        .execute("INSERT INTO mill.cancel_requests (task_id) VALUES (-1); SELECT mill.prune()")
        .await;
    let requests = "SELECT array_agg(task_id) FROM mill.cancel_requests";
    assert_eq!(database.value::<Vec<i64>>(requests).await, [id]);
    let failed = fail(database.client(), &claim, Outcome::Lost, AGAIN, &Report::default()).await;
    assert_eq!(failed.unwrap(), Disposition::Finished(Outcome::Cancelled));
}

#[tokio::test]
async fn a_claim_whose_task_has_ended_changes_nothing() {
    let (database, id, _, claim) = claimed().await;
    let session = database.connect().await;
    finish(&session, &claim).await.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(finish(&session, &claim).await, Err(LOST.to_owned()));
    session.batch_execute("COMMIT").await.unwrap();
    let failed =
        fail(&session, &claim, Outcome::Failed, RetryDecision::Final, &Report::default()).await;
    assert_eq!(failed.unwrap(), Disposition::Lost);
    assert_eq!((effects(&database).await, database.attempts(id).await.as_str()), (1, "succeeded"));
}

#[tokio::test]
async fn a_completion_belongs_to_the_transaction_that_was_begun_for_the_task() {
    let (database, id, _, claim) = claimed().await;
    let before = row(&database).await;
    let session = database.connect().await;
    session.batch_execute("BEGIN").await.unwrap();
    let xact: String =
        session.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    session.batch_execute("COMMIT; BEGIN; INSERT INTO effect VALUES (1)").await.unwrap();
    let error = complete(&session, &[Success::now(&claim, &Report::default())], Some(&xact))
        .await
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), TRANSACTION_ENDED);
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(row(&database).await, before);
    assert_eq!((effects(&database).await, database.attempts(id).await.as_str()), (0, ""));
}

#[tokio::test]
async fn a_reclaim_leaves_a_finish_that_is_about_to_commit_alone() {
    for end in ["COMMIT", "ROLLBACK"] {
        let (database, id, worker, claim) = claimed().await;
        let session = database.connect().await;
        finish(&session, &claim).await.unwrap();
        let during = reclaim(database.client(), unregistered(worker)).await.unwrap();
        assert!(during.released.is_empty() && during.ended.is_empty(), "{during:?}");
        assert_eq!(during.remaining, 1);
        session.batch_execute(end).await.unwrap();
        let after = reclaim(database.client(), unregistered(worker)).await.unwrap();
        if end == "COMMIT" {
            assert!(after.released.is_empty(), "{after:?}");
            assert_eq!(database.attempts(id).await, "succeeded");
        } else {
            assert_eq!(after.released, [TaskId(id)]);
            assert_eq!(finish(&session, &claim).await, Err(LOST.to_owned()));
            assert_eq!(database.attempts(id).await, "lost");
        }
        assert_eq!(effects(&database).await, i64::from(end == "COMMIT"));
    }
}

#[tokio::test]
async fn a_reclaim_leaves_a_task_alone_while_its_backend_lives() {
    let (database, id, worker, _) = claimed().await;
    let session = database.connect().await;
    let of_session =
        "UPDATE mill.tasks SET session_pid = a.pid, session_started_at = a.backend_start
        FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()";
    session.batch_execute(of_session).await.unwrap();
    let during = reclaim(database.client(), unregistered(worker)).await.unwrap();
    assert_eq!((during.released, during.ended, during.remaining), (vec![], vec![], 1));
    drop(session);
    eventually("the backend ends, and its task is reclaimed", async || {
        let after = reclaim(database.client(), unregistered(worker)).await.unwrap();
        after.released == [TaskId(id)]
    })
    .await;
}

#[tokio::test]
async fn a_reclaimed_at_most_once_task_ends_as_unknown() {
    let database = Database::new().await;
    let id = database.enqueue("SELECT 1", ", mode => 'autocommit', at_most_once => true").await;
    let (worker, _) = claim(&database).await;
    let reclaimed = reclaim(database.client(), unregistered(worker)).await.unwrap();
    assert_eq!((reclaimed.released, reclaimed.ended), (vec![], vec![TaskId(id)]));
    assert_eq!(database.attempts(id).await, "unknown");
}

#[tokio::test]
async fn a_task_whose_workers_die_ends_at_the_bound() {
    let database = Database::new().await;
    database.execute("UPDATE mill.settings SET max_crashes = 3").await;
    let id = database.enqueue("SELECT 1", "").await;
    for crash in 1..=3 {
        let (worker, _) = claim(&database).await;
        let reclaimed = reclaim(database.client(), unregistered(worker)).await.unwrap();
        let ended = if crash == 3 { vec![TaskId(id)] } else { vec![] };
        assert_eq!(reclaimed.ended, ended, "{crash}");
    }
    assert_eq!(database.attempts(id).await, "lost lost lost");
}

#[tokio::test]
async fn a_finish_waits_for_a_reclaim_and_respects_it() {
    for (end, finished) in [("COMMIT", Err(LOST.to_owned())), ("ROLLBACK", Ok(()))] {
        let (database, id, worker, claim) = claimed().await;
        let (session, reclaimer) = (database.connect().await, database.connect().await);
        reclaimer.batch_execute("BEGIN").await.unwrap();
        assert_eq!(reclaim(&reclaimer, unregistered(worker)).await.unwrap().released, [TaskId(id)]);
        let (answer, ()) = join(finish(&session, &claim), async {
            database.until_a_session_waits_or("false").await;
            reclaimer.batch_execute(end).await.unwrap();
        })
        .await;
        assert_eq!(answer, finished, "{end}");
        session.batch_execute("COMMIT").await.unwrap();
        let (outcome, count) = if end == "COMMIT" { ("lost", 0) } else { ("succeeded", 1) };
        assert_eq!(
            (database.attempts(id).await.as_str(), effects(&database).await),
            (outcome, count)
        );
    }
}

#[tokio::test]
async fn a_cancel_waits_for_a_finish_and_reports_the_actual_outcome() {
    for (end, reported) in [("COMMIT", "finished"), ("ROLLBACK", "requested")] {
        let (database, id, _, claim) = claimed().await;
        let (session, canceller) = (database.connect().await, database.connect().await);
        finish(&session, &claim).await.unwrap();
        let (answer, ()) = join(queue::cancel::cancel(&canceller, TaskId(id)), async {
            database.until_a_session_waits_or("false").await;
            session.batch_execute(end).await.unwrap();
        })
        .await;
        assert_eq!(answer.unwrap(), reported);
        assert_eq!(effects(&database).await, i64::from(end == "COMMIT"));
    }
}

#[tokio::test]
async fn a_cancel_that_met_a_failure_ends_the_retry_it_left() {
    let (database, id, _, claim) = claimed().await;
    let (session, canceller) = (database.connect().await, database.connect().await);
    session.batch_execute("BEGIN").await.unwrap();
    let failed = fail(&session, &claim, Outcome::Failed, AGAIN, &Report::default()).await;
    assert_eq!(failed.unwrap(), Disposition::Retried(Outcome::Failed));
    let (answer, ()) = join(queue::cancel::cancel(&canceller, TaskId(id)), async {
        database.until_a_session_waits_or("false").await;
        session.batch_execute("COMMIT").await.unwrap();
    })
    .await;
    assert_eq!(answer.unwrap(), "cancelled");
    assert_eq!(database.attempts(id).await, "failed cancelled");
    assert_eq!(row(&database).await, "gone");
}

#[tokio::test]
async fn a_failure_of_a_task_with_a_cancel_request_ends_it_and_says_so() {
    // A failure of its own remains the outcome.
    for outcome in [Outcome::Failed, Outcome::Cancelled, Outcome::Lost] {
        let (database, id, _, claim) = claimed().await;
        let cancelled = queue::cancel::cancel(database.client(), TaskId(id)).await;
        assert_eq!(cancelled.unwrap(), "requested");
        let failed = fail(database.client(), &claim, outcome, AGAIN, &Report::default()).await;
        let ends = if outcome == Outcome::Failed { outcome } else { Outcome::Cancelled };
        assert_eq!(failed.unwrap(), Disposition::Finished(ends));
        assert_eq!(database.attempts(id).await, ends.as_str());
        assert_eq!(row(&database).await, "gone");
    }
}

#[tokio::test]
async fn a_cancel_request_does_not_disturb_the_finish_even_of_a_repeatable_read_task() {
    let (database, id, _, claim) = claimed().await;
    let session = database.connect().await;
    session.batch_execute("SET default_transaction_isolation = 'repeatable read'").await.unwrap();
    session.batch_execute("BEGIN; SELECT count(*) FROM mill.tasks").await.unwrap();
    let canceller = database.connect().await;
    canceller.batch_execute("BEGIN").await.unwrap();
    assert_eq!(queue::cancel::cancel(&canceller, TaskId(id)).await.unwrap(), "requested");
    let (completed, ()) =
        join(complete(&session, &[Success::now(&claim, &Report::default())], None), async {
            database.until_a_session_waits_or("false").await;
            canceller.batch_execute("COMMIT").await.unwrap();
        })
        .await;
    completed.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.attempts(id).await, "succeeded");
}

#[tokio::test]
async fn a_reclaim_skips_a_task_that_is_being_cancelled_and_then_ends_it() {
    let (database, id, worker, stale) = claimed().await;
    let canceller = database.connect().await;
    canceller.batch_execute("BEGIN").await.unwrap();
    assert_eq!(queue::cancel::cancel(&canceller, TaskId(id)).await.unwrap(), "requested");
    assert_eq!(reclaim(database.client(), unregistered(worker)).await.unwrap().remaining, 1);
    canceller.batch_execute("COMMIT").await.unwrap();
    assert_eq!(reclaim(database.client(), unregistered(worker)).await.unwrap().ended, [TaskId(id)]);
    assert_eq!(database.attempts(id).await, "cancelled");
    assert_eq!(finish(&database.connect().await, &stale).await, Err(LOST.to_owned()));
}

#[tokio::test]
async fn a_cancelled_task_that_is_released_has_ended() {
    let (database, id, _, claim) = claimed().await;
    assert_eq!(database.value::<String>(&format!("SELECT mill.cancel({id})")).await, "requested");
    let released = release(database.client(), &claim, Duration::ZERO).await.unwrap();
    assert_eq!(released, Disposition::Released);
    assert_eq!(row(&database).await, "gone");
    assert_eq!(database.attempts(id).await, "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_undone_by_a_server_crash_is_invalid_afterwards() {
    let (mut lost, mut rounds) = (0, 0);
    let mut private = PrivateDatabase::new(&[("wal_writer_delay", "10s")]).await;
    private.database.execute("CREATE TABLE effect (task bigint)").await;
    // On a busy machine, the server may write the claim before the crash.
    while rounds < amount(1, 3) || (lost == 0 && rounds < 20) {
        rounds += 1;
        let id = private.database.enqueue("SELECT 1", "").await;
        let (worker, stale) = claim(&private.database).await;
        private.cluster.crash().unwrap();
        private.cluster.start_again().unwrap();
        private.database.reconnect().await;
        let database = &private.database;
        // Otherwise the task would be a suspect, and the next claims would wait for the disk.
        database.execute("INSERT INTO mill.uptime DEFAULT VALUES").await;
        let attempt: i32 = database.value("SELECT attempt FROM mill.tasks").await;
        lost += i64::from(attempt == 0);
        reclaim(database.client(), unregistered(worker)).await.unwrap();
        let (_, good) = claim(database).await;
        assert_ne!(good.token(), stale.token());
        // A claim that the crash has undone and the next claim have the same attempt number, which
        // would not distinguish them.
        assert_eq!(good.attempt().cast_signed(), attempt + 1);
        let session = database.connect().await;
        assert_eq!(finish(&session, &stale).await, Err(LOST.to_owned()));
        session.batch_execute("COMMIT").await.unwrap();
        let failed = fail(&session, &stale, Outcome::Failed, AGAIN, &Report::default()).await;
        assert_eq!(failed.unwrap(), Disposition::Lost);
        finish(&session, &good).await.unwrap();
        session.batch_execute("COMMIT").await.unwrap();
        assert!(database.attempts(id).await.ends_with("succeeded"));
    }
    assert_eq!(effects(&private.database).await, rounds);
    println!("{lost} of {rounds} claims undone by a crash");
    assert!(lost > 0, "no claim was undone: the test proves nothing");
}
