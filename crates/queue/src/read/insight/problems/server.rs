//! Problems of the server that tasks notice: attempts that it interrupts, and the tasks that ran when it crashed.

use jiff::Timestamp;
use pgmill_client::TaskId;
use serde::Serialize;

use crate::row::from_row;

/// The state of the server, as far as it concerns tasks.
pub(super) const SERVER: &str = "SELECT /* queue.insight_server */ s.crashed_at, c.suspects, c.running, c.accused, c.crashes, i.attempts, i.tasks, i.sqlstate,
    i.message, i.since
FROM mill.server s
    CROSS JOIN (SELECT count(*) AS suspects, min(u.id) FILTER (WHERE u.state = 'running') AS running,
        (array_agg(u.id ORDER BY u.crashes DESC, u.id))[1] AS accused, coalesce(max(u.crashes), 0) AS crashes
        FROM mill.crash_suspects u) AS c
    CROSS JOIN mill.interruptions() AS i";

/// Attempts that the server interrupted in the last ten minutes, up to 1000, and the suspects of its last
/// crash.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerState {
    /// Time at which the fleet noticed the last crash.
    pub crashed_at: Option<Timestamp>,
    /// Tasks that ran when the server crashed, and now run one at a time.
    pub suspects: i64,
    /// The suspect that runs.
    pub running: Option<TaskId>,
    /// The suspect with the highest number of crashes.
    pub accused: Option<TaskId>,
    /// How often the server has crashed while only this task could be the cause.
    pub crashes: i32,
    /// Number of interrupted attempts.
    pub attempts: i64,
    /// Number of their tasks.
    pub tasks: i64,
    /// SQLSTATE of the last interrupted attempt.
    pub sqlstate: Option<String>,
    /// Its message; `None` for a role that may not see messages.
    pub message: Option<String>,
    /// End of the first of these attempts.
    pub since: Option<Timestamp>,
}

from_row! {
    ServerState {
        crashed_at, suspects, running, accused, crashes, attempts, tasks, sqlstate, message, since,
    }
}
