//! A task is claimed by one reader at a time, by a statement whose cost does not grow.

use std::collections::HashSet;

use futures_util::future::join_all;
use jiff::Timestamp;
use queue::claim::{Claimer, Lane, SessionIdentity};
use queue::{Priority, TaskId, WorkerId};

use crate::harness::Database;

fn lanes(queues: &[&str]) -> Vec<(Lane, TaskId)> {
    queues
        .iter()
        .map(|queue| Lane { queue: (*queue).to_owned(), priority: Priority::Normal })
        .map(|lane| (lane, TaskId(0)))
        .collect()
}

fn sessions(count: i32) -> Vec<SessionIdentity> {
    (1..=count).map(|pid| SessionIdentity { pid, started_at: Timestamp::UNIX_EPOCH }).collect()
}

async fn claimer(database: &Database) -> Claimer {
    Claimer::new(database.connect().await, WorkerId::random()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_claimers_never_hold_one_task_twice() {
    let database = Database::new().await;
    database.enqueue_many(5000, "SELECT 1").await;
    let claimers = join_all((0..64).map(|_| claimer(&database))).await;
    let (lanes, sessions) = (lanes(&["default"]), sessions(7));
    let rounds = claimers.iter().map(async |claimer| {
        let mut ids = Vec::new();
        loop {
            let claimed = claimer.claim(&lanes, &sessions).await.unwrap();
            if claimed.is_empty() {
                return ids;
            }
            ids.extend(claimed.into_iter().map(|claimed| claimed.claim.id()));
        }
    });
    let ids: Vec<TaskId> = join_all(rounds).await.into_iter().flatten().collect();
    let distinct: HashSet<TaskId> = ids.iter().copied().collect();
    assert_eq!((ids.len(), distinct.len()), (5000, 5000));
}

#[tokio::test]
async fn stale_statistics_do_not_make_it_take_more_than_it_asked_for() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", "").await;
    database.execute("ANALYZE mill.tasks").await;
    database.enqueue_many(40, "SELECT 1").await;
    let claimer = claimer(&database).await;
    assert_eq!(claimer.claim(&lanes(&["default"]), &sessions(2)).await.unwrap().len(), 2);
    let running: i64 =
        database.value("SELECT count(*) FROM mill.tasks WHERE state = 'running'").await;
    assert_eq!(running, 2);
}

#[tokio::test]
async fn tasks_come_in_the_order_of_their_ids_from_the_first_lane_that_has_any() {
    let database = Database::new().await;
    let first = database.enqueue("SELECT 1", ", queue => 'b'").await;
    let second = database.enqueue("SELECT 1", ", queue => 'a'").await;
    let third = database.enqueue("SELECT 1", ", queue => 'a'").await;
    let claimer = claimer(&database).await;
    let mut claimed = claimer.claim(&lanes(&["a", "b"]), &sessions(3)).await.unwrap();
    claimed.sort_by_key(|claimed| claimed.session);
    let ids: Vec<i64> = claimed.iter().map(|claimed| claimed.claim.id().0).collect();
    assert_eq!(ids, [second, third, first]);
}

#[tokio::test]
async fn a_paused_queue_is_not_claimed_from() {
    let database = Database::new().await;
    database.enqueue("SELECT 1", ", queue => 'a'").await;
    database.execute("SELECT mill.pause('a')").await;
    let claimer = claimer(&database).await;
    assert!(claimer.claim(&lanes(&["a"]), &sessions(1)).await.unwrap().is_empty());
    database.execute("SELECT mill.resume('a')").await;
    assert_eq!(claimer.claim(&lanes(&["a"]), &sessions(1)).await.unwrap().len(), 1);
}
