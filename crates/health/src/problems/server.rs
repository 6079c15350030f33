//! Problems of the server that interrupt tasks.

use jiff::Timestamp;
use queue::insight::problems::ServerState;
use terminal::counted;

use crate::problems::{Problem, ProblemSubject, Severity, age};

/// Reports the attempts that the server interrupted in the last ten minutes.
pub(super) fn interruptions(server: &ServerState, now: Timestamp) -> Option<Problem> {
    let since = server.since?;
    let message = server.message.as_deref().map_or_else(String::new, |text| format!(": {text}"));
    let sqlstate =
        server.sqlstate.as_deref().map_or_else(String::new, |code| format!(" (SQLSTATE {code})"));
    let message = format!(
        "the server interrupted {} of {} in the last ten minutes, which do not count{message}{sqlstate}",
        counted(server.attempts, "attempt"),
        counted(server.tasks, "task"),
    );
    Some(Problem::warning(age(now, since), message, ProblemSubject::Interruptions))
}

/// Reports the tasks that run one at a time since a crash of the server, and the one that probably causes
/// the crashes.
pub(super) fn suspects(server: &ServerState, now: Timestamp) -> Option<Problem> {
    let (accused, crashed_at) = (server.accused?, server.crashed_at?);
    let waiting = server.suspects - i64::from(server.running.is_some());
    let mut message = format!(
        "the server crashed, and the tasks that ran then run one at a time: {} to go",
        counted(waiting, "task")
    );
    if let Some(running) = server.running {
        message += &format!(", task {running} is running");
    }
    if server.crashes > 0 {
        let times = counted(i64::from(server.crashes), "crash");
        message += &format!(". Task {accused} was the only one of them that ran in {times}");
    }
    let severity = if server.crashes > 0 { Severity::Critical } else { Severity::Warning };
    let about = ProblemSubject::Task(accused);
    Some(Problem { severity, age_seconds: age(now, crashed_at), message, about })
}
