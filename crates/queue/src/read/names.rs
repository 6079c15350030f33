//! Names for the completion of a command line.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::rows;

/// A kind of object that has a name or an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// Queues with settings, a limit or pending tasks.
    Queue,
    /// Jobs.
    Job,
    /// Declared schedules.
    Schedule,
    /// Groups.
    Group,
    /// Profiles.
    Profile,
    /// Subscriptions.
    Subscription,
    /// Concurrency keys with a limit.
    LimitKey,
    /// Ids of runs, the newest first.
    Run,
    /// Ids of workers.
    Worker,
    /// Hosts of workers.
    Host,
}

/// A statement that returns at most a hundred names that begin with the prefix: `$column` of `$from`.
macro_rules! names {
    ($name:literal, $column:literal, $from:literal) => {
        names!($name, $column, $from, "n.name")
    };
    ($name:literal, $column:literal, $from:literal, $order:literal) => {
        concat!(
            "SELECT /* ",
            $name,
            " */ n.name FROM (SELECT ",
            $column,
            " ",
            $from,
            ") AS n (name) WHERE starts_with(n.name, $1) ORDER BY ",
            $order,
            " LIMIT 100"
        )
    };
}

/// Finds the queues of pending tasks with one probe of the index per queue.
const QUEUES: &str = names!(
    "queue.queue_names",
    "q.name",
    "FROM (
    WITH RECURSIVE pending AS (
        (SELECT t.queue FROM mill.visible_tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT next.queue FROM pending CROSS JOIN LATERAL (
            SELECT t.queue FROM mill.visible_tasks t WHERE t.state = 'pending' AND t.queue > pending.queue
            ORDER BY t.queue LIMIT 1) AS next
    )
    SELECT p.queue FROM pending p UNION SELECT q.name FROM mill.queues q
    UNION SELECT l.name FROM mill.effective_limits l WHERE l.kind = 'queue') AS q (name)"
);
const JOBS: &str = names!("queue.job_names", "j.name", "FROM mill.jobs j");
const SCHEDULES: &str =
    names!("queue.schedule_names", "s.name", "FROM mill.schedules s WHERE s.removed_at IS NULL");
const GROUPS: &str = names!("queue.group_names", "g.name", "FROM mill.groups g");
const SUBSCRIPTIONS: &str =
    names!("queue.subscription_names", "s.name", "FROM mill.subscriptions s");
const PROFILES: &str = names!("queue.profile_names", "p.name", "FROM mill.profiles p");
const LIMIT_KEYS: &str =
    names!("queue.limit_key_names", "l.name", "FROM mill.effective_limits l WHERE l.kind = 'key'");
const RUNS: &str = names!(
    "queue.run_ids",
    "r.id::text",
    "FROM (SELECT x.id FROM mill.runs x ORDER BY x.id DESC LIMIT 1000) AS r",
    "n.name::bigint DESC"
);
const WORKERS: &str = names!("queue.worker_ids", "w.id::text", "FROM mill.workers w");
const HOSTS: &str = names!(
    "queue.worker_hosts",
    "DISTINCT s.host",
    "FROM mill.workers w JOIN mill.worker_starts s ON s.id = w.id"
);

/// Returns at most a hundred names of this kind that begin with the prefix.
///
/// # Errors
/// Fails if the role may not read them.
pub async fn names(
    client: &impl GenericClient,
    kind: NameKind,
    prefix: &str,
) -> Result<Vec<String>, QueueError> {
    let statement = match kind {
        NameKind::Queue => QUEUES,
        NameKind::Job => JOBS,
        NameKind::Schedule => SCHEDULES,
        NameKind::Group => GROUPS,
        NameKind::Profile => PROFILES,
        NameKind::Subscription => SUBSCRIPTIONS,
        NameKind::LimitKey => LIMIT_KEYS,
        NameKind::Run => RUNS,
        NameKind::Worker => WORKERS,
        NameKind::Host => HOSTS,
    };
    rows(client, statement, &[&prefix]).await
}
