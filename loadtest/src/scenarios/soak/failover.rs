//! A standby of the private server, and the failover to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use jiff::Timestamp;
use parking_lot::Mutex;
use queue::enqueue::database_now;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::result::Check;

const WAIT_FOR_STANDBY: &str =
    "ALTER /* loadtest.wait_for_standby */ SYSTEM SET synchronous_standby_names = 'standby'";

const RELOAD: &str = "SELECT /* loadtest.reload */ pg_reload_conf()";

const IN_SYNC: &str = "SELECT /* loadtest.in_sync */ count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";

/// Seconds from a point in time until the next success of an attempt that began after it.
const FIRST_SUCCESS: &str = "SELECT /* loadtest.first_success */ extract(epoch FROM min(a.finished_at) - $1)::float8 FROM mill.attempts a
WHERE a.started_at > $1 AND a.outcome = 'succeeded'";

const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time from the promotion to the next success, in seconds.
const GOAL: f64 = 5.0;

/// The private server, and its standby, for which every commit waits.
pub(super) struct Pair {
    primary: Arc<Mutex<Cluster>>,
    standby: Option<Cluster>,
    /// Database time after the promotion.
    promoted_at: Option<Timestamp>,
}

impl Pair {
    /// Creates a standby. Returns the database as it is reached on both servers.
    pub(super) async fn start(
        context: &RunContext,
        primary: &Arc<Mutex<Cluster>>,
        database: &Database,
    ) -> Result<(Self, Database)> {
        let primary = Arc::clone(primary);
        let copied = Arc::clone(&primary);
        let standby = spawn_blocking(move || copied.lock().standby()).await??;
        let session = &database.session;
        session.batch_execute(WAIT_FOR_STANDBY).await?;
        session.batch_execute(RELOAD).await?;
        let begun = Instant::now();
        while session.query_typed(IN_SYNC, &[]).await?[0].get::<_, i64>(0) == 0 {
            ensure!(begun.elapsed() < TIMEOUT, "the standby does not catch up");
            sleep(Duration::from_millis(50)).await;
        }
        let url = primary.lock().url_with_standby(&standby, database.name());
        let session = context.connect(&url).await?;
        let database = database.reached_by(url, session);
        Ok((Self { primary, standby: Some(standby), promoted_at: None }, database))
    }

    /// Kills the primary with all its processes, and promotes the standby. The primary's files are
    /// removed. Returns the database with a session to the new primary.
    pub(super) async fn fail_over(
        &mut self,
        context: &RunContext,
        database: &Database,
    ) -> Result<Database> {
        let standby = self.standby.take().context("there is no standby")?;
        let primary = Arc::clone(&self.primary);
        spawn_blocking(move || {
            let mut primary = primary.lock();
            primary.crash()?;
            standby.promote()?;
            *primary = standby;
            anyhow::Ok(())
        })
        .await??;
        let session = context.connect(database.url()).await?;
        let database = database.reached_by(database.url().to_owned(), session);
        self.promoted_at = Some(database_now(&*database.session).await?);
        Ok(database)
    }

    /// Checks that the fleet worked again soon after the promotion.
    pub(super) async fn check(&self, database: &Database) -> Result<Check> {
        let promoted_at = self.promoted_at.context("there was no failover")?;
        let row = database.session.query_one(FIRST_SUCCESS, &[&promoted_at]).await?;
        let seconds: Option<f64> = row.get(0);
        Ok(Check {
            what: format!("a task succeeds within {GOAL} s of the promotion of the standby"),
            passed: seconds.is_some_and(|seconds| seconds <= GOAL),
            detail: match seconds {
                Some(seconds) => format!("after {seconds:.1} s"),
                None => "no task succeeded".to_owned(),
            },
        })
    }
}
