//! Messages of problems, from made-up facts.

use std::sync::LazyLock;

use queue::LimitKind;
use queue::WorkerId;
use queue::group::ActivePeriod;
use queue::insight::problems::{ServerState, WaitingLimit};
use queue::limit::Rate;

use super::*;

fn at(time: &str) -> Timestamp {
    format!("2026-12-01T{time}Z").parse().unwrap()
}

/// No problems, and a bound of five minutes for backlogs.
static SOURCES: LazyLock<ProblemSources> =
    LazyLock::new(|| ProblemSources { backlog_wait_seconds: 300.0, ..ProblemSources::default() });

fn facts() -> FleetFacts<'static> {
    FleetFacts {
        now: at("03:00:00"),
        waiting: Vec::new(),
        workers: &[],
        running: &[],
        failing: Vec::new(),
        finished: &[],
        sources: &SOURCES,
    }
}

fn found(facts: &FleetFacts<'_>) -> Vec<(String, ProblemSubject)> {
    find_problems(facts).into_iter().map(|it| (it.message, it.about)).collect()
}

fn failed(runs: i64, in_progress: bool, time: &str) -> FailedRuns {
    let jobs = vec!["nightly".to_owned(), "sunday".to_owned()];
    FailedRuns { jobs, runs, run: RunId(12), in_progress, failed: 1, tasks: 5, at: at(time) }
}

#[test]
fn the_most_severe_problem_is_first_and_then_the_oldest() {
    let waiting = |queue, paused, oldest_seconds| QueueBacklog {
        queue,
        paused,
        held_back: None,
        pending: "3 pending tasks".to_owned(),
        oldest_seconds,
    };
    let finished = [OutcomeCount {
        outcome: Outcome::Failed,
        tasks: 1,
        first_at: at("02:58:00"),
        last_at: at("02:59:00"),
        duration_p95_seconds: None,
    }];
    let facts = FleetFacts {
        waiting: vec![
            waiting("etl", true, 60.0),
            waiting("idle", false, 1.0),
            waiting("mail", false, 600.0),
        ],
        finished: &finished,
        ..facts()
    };
    let unserved = "queue mail has no live worker, with 3 pending tasks".to_owned();
    assert_eq!(
        found(&facts),
        [
            (unserved, ProblemSubject::Unserved("mail".to_owned())),
            (
                "queue idle has no live worker, with 3 pending tasks".to_owned(),
                ProblemSubject::Unserved("idle".to_owned())
            ),
            (
                "1 task failed in the last hour".to_owned(),
                ProblemSubject::Finished(Outcome::Failed)
            ),
            (
                "queue etl is paused, with 3 pending tasks".to_owned(),
                ProblemSubject::Paused("etl".to_owned())
            ),
        ]
    );
}

#[test]
fn one_failed_run_several_and_one_in_progress_have_different_messages() {
    let runs =
        [failed(1, false, "02:00:00"), failed(3, false, "02:10:00"), failed(1, true, "02:20:00")];
    let sources = ProblemSources { runs: runs.into(), ..SOURCES.clone() };
    let facts = FleetFacts { sources: &sources, ..facts() };
    let (one, job) = (ProblemSubject::Run(RunId(12)), ProblemSubject::Runs("nightly".to_owned()));
    assert_eq!(
        found(&facts),
        [
            (
                "run 12 of nightly, sunday has failed, with 1 failed task of 5".to_owned(),
                one.clone()
            ),
            (
                "3 runs of nightly, sunday have failed within a day, the latest is run 12"
                    .to_owned(),
                job
            ),
            ("run 12 of nightly, sunday is in progress, with 1 failed task of 5".to_owned(), one),
        ]
    );
}

#[test]
fn a_blocker_is_described_by_its_task_or_its_session() {
    let task = serde_json::json!({"pid": 7, "task_id": 4, "name": "load", "user": "etl"});
    assert_eq!(describe_blocker(&task), "backend 7: task 4 (load)");
    let session =
        serde_json::json!({"pid": 7, "application": "psql", "user": "ann", "state": "idle"});
    assert_eq!(describe_blocker(&session), "backend 7: psql, user ann, idle");
    assert_eq!(describe_blocker(&serde_json::json!({"pid": 7})), "backend 7");
}

pub(crate) fn worker(readers: i32, running: i64) -> Worker {
    Worker {
        id: WorkerId::random(),
        host: None,
        pid: None,
        version: None,
        schema_version: None,
        started_at: None,
        heartbeat_at: at("03:00:00"),
        heartbeat_age_seconds: 0.0,
        orphan_timeout_seconds: 30.0,
        alive: true,
        session_alive: true,
        draining: false,
        readers,
        reserved: 1,
        running,
        queues: None,
        error: None,
        error_seconds: None,
        profiles: [(String::new(), readers.unsigned_abs())].into(),
        unconnected: Vec::new(),
    }
}

#[test]
fn a_backlog_is_a_problem_once_its_oldest_task_has_waited_too_long() {
    let waiting = |oldest_seconds| QueueBacklog {
        queue: "etl",
        paused: false,
        held_back: None,
        pending: "15000 pending tasks".to_owned(),
        oldest_seconds,
    };
    for (running, oldest_seconds, end) in [
        (8, 480.0, Some("all 8 readers are busy")),
        (6, 480.0, Some("busy readers: 6 of 8, 1 reserved")),
        (8, 299.0, None),
    ] {
        let workers = [worker(8, running)];
        let waiting = vec![waiting(oldest_seconds)];
        let messages = found(&FleetFacts { waiting, workers: &workers, ..facts() });
        let wanted = end.map(|end| {
            let waited = "queue etl: 15000 pending tasks, the oldest has waited for 8m 0s";
            let subject = match running {
                8 => ProblemSubject::BusyReaders("etl".to_owned()),
                _ => ProblemSubject::Backlog("etl".to_owned()),
            };
            (format!("{waited}; {end}"), subject)
        });
        assert_eq!(messages, wanted.into_iter().collect::<Vec<_>>());
    }
}

fn limit(kind: LimitKind, tasks: i64, time: &str) -> WaitingLimit {
    WaitingLimit {
        kind,
        name: "mail".to_owned(),
        since: at(time),
        tasks,
        more: false,
        paused: false,
        max_running: None,
        rate: None,
        active_period: None,
        open: true,
        until: None,
    }
}

#[test]
fn a_limit_is_described_by_its_values_and_is_a_problem_after_a_long_wait() {
    let rate = Some(Rate { starts: 100, period: std::time::Duration::from_secs(60) });
    let period = ActivePeriod {
        opens: "22:00".parse().unwrap(),
        closes: "06:00".parse().unwrap(),
        zone: "UTC".to_owned(),
    };
    let closed = WaitingLimit {
        active_period: Some(period),
        open: false,
        until: Some(at("22:00:00")),
        ..limit(LimitKind::Group, 3, "01:00:00")
    };
    let limits = vec![
        WaitingLimit { max_running: Some(10), rate, ..limit(LimitKind::Queue, 7, "02:50:00") },
        WaitingLimit { max_running: Some(1), ..limit(LimitKind::Key, 1, "02:59:00") },
        WaitingLimit {
            paused: true,
            max_running: Some(0),
            ..limit(LimitKind::Group, 1, "02:59:30")
        },
        closed.clone(),
    ];
    let described: Vec<String> = limits.iter().map(|it| describe_limit(it, facts().now)).collect();
    assert_eq!(
        described,
        [
            "queue mail allows 10 tasks at once and 100 starts in 1m 0s",
            "concurrency key mail allows 1 task at once",
            "group mail has max_running 0",
            "group mail starts tasks from 22:00 to 06:00 UTC only, opens in 19h 0m",
        ]
    );
    let sources = ProblemSources { limits, ..SOURCES.clone() };
    let messages = found(&FleetFacts { sources: &sources, ..facts() });
    assert_eq!(
        messages.iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>(),
        [
            "queue mail allows 10 tasks at once and 100 starts in 1m 0s, and 7 tasks wait",
            "group mail has max_running 0, and 1 task waits",
        ]
    );
}

#[test]
fn a_backlog_is_left_out_while_the_limit_of_its_queue_holds_tasks_back() {
    let workers = [worker(4, 4)];
    let backlog = "queue mail: 3 pending tasks, the oldest has waited for 13m 0s; all 4 readers \
                   are busy";
    let held =
        |max, time| WaitingLimit { max_running: Some(max), ..limit(LimitKind::Queue, 7, time) };
    for (limit, is_backlog) in [
        (held(4, "02:50:00"), false),
        // More tasks may run than there are readers.
        (held(5, "02:50:00"), true),
        // The limit itself is not a problem yet.
        (held(4, "02:59:00"), true),
        (WaitingLimit { name: "etl".to_owned(), ..held(4, "02:50:00") }, true),
        (WaitingLimit { kind: LimitKind::Key, ..held(4, "02:50:00") }, true),
    ] {
        let waiting = vec![QueueBacklog {
            queue: "mail",
            paused: false,
            held_back: None,
            pending: "3 pending tasks".to_owned(),
            oldest_seconds: 780.0,
        }];
        let sources = ProblemSources { limits: vec![limit.clone()], ..SOURCES.clone() };
        let facts = FleetFacts { waiting, workers: &workers, sources: &sources, ..facts() };
        let messages = found(&facts);
        let found = messages.iter().any(|(message, _)| message == backlog);
        assert_eq!(found, is_backlog, "{limit:?}: {messages:?}");
    }
}

#[test]
fn failures_are_a_warning_if_they_are_many() {
    let of = Severity::of_failures;
    assert_eq!([of(1, 0), of(9, 0), of(1, 19)], [Severity::Info; 3]);
    assert_eq!([of(10, 0), of(1, 9), of(2, 30)], [Severity::Warning; 3]);
    let count = |outcome, tasks| OutcomeCount {
        outcome,
        tasks,
        first_at: at("02:58:00"),
        last_at: at("02:59:00"),
        duration_p95_seconds: None,
    };
    let severities = |finished: &[OutcomeCount]| -> Vec<Severity> {
        let problems = find_problems(&FleetFacts { finished, ..facts() });
        problems.iter().map(|problem| problem.severity).collect()
    };
    let failed = [count(Outcome::Succeeded, 100), count(Outcome::Failed, 2)];
    assert_eq!(severities(&failed), [Severity::Info]);
    let failed = [count(Outcome::Succeeded, 100), count(Outcome::TimedOut, 20)];
    assert_eq!(severities(&failed), [Severity::Warning]);
    let lost = [count(Outcome::Failed, 1), count(Outcome::Lost, 1), count(Outcome::Unknown, 1)];
    assert_eq!(severities(&lost), [Severity::Critical, Severity::Critical, Severity::Info]);
}

#[test]
fn the_age_of_failures_is_the_time_since_the_first_one() {
    let failing = |queue, failed, time| QueueFailures {
        queue,
        failed,
        succeeded: 7,
        failing_since: Some(at(time)),
    };
    let failing = vec![failing("etl", 1, "02:59:00"), failing("mail", 2, "02:30:00")];
    let problems = find_problems(&FleetFacts { failing, ..facts() });
    let ages: Vec<(&str, f64)> =
        problems.iter().map(|it| (it.message.as_str(), it.age_seconds)).collect();
    let (etl, mail) = (
        "queue etl: 1 attempt failed in the last hour, 7 succeeded",
        "queue mail: 2 attempts failed in the last hour, 7 succeeded",
    );
    assert_eq!(ages, [(mail, 1800.0), (etl, 60.0)]);
}

#[test]
fn a_queue_that_is_held_back_names_its_condition() {
    let reason = "37 sessions are active, above 30";
    let waiting = QueueBacklog {
        queue: "etl",
        paused: false,
        held_back: Some(reason),
        pending: "3 pending tasks".to_owned(),
        oldest_seconds: 60.0,
    };
    let message = format!("queue etl is held back, with 3 pending tasks: {reason}");
    let facts = FleetFacts { waiting: vec![waiting], ..facts() };
    assert_eq!(found(&facts), [(message, ProblemSubject::HeldBack("etl".to_owned()))]);
}

#[test]
fn the_server_that_interrupts_tasks_is_named_and_so_is_the_task_that_crashes_it() {
    let messages = |server: ServerState| {
        let sources = ProblemSources { server, ..SOURCES.clone() };
        let problems = find_problems(&FleetFacts { sources: &sources, ..facts() });
        problems.into_iter().map(|it| (it.severity, it.message)).collect::<Vec<_>>()
    };
    assert!(
        messages(ServerState { crashed_at: Some(at("01:00:00")), ..ServerState::default() })
            .is_empty()
    );
    let full = ServerState {
        attempts: 5,
        tasks: 1,
        sqlstate: Some("53100".to_owned()),
        message: Some("could not extend file".to_owned()),
        since: Some(at("02:55:00")),
        ..ServerState::default()
    };
    let text = "the server interrupted 5 attempts of 1 task in the last ten minutes, which do not count: could not \
                extend file (SQLSTATE 53100)";
    assert_eq!(messages(full), [(Severity::Warning, text.to_owned())]);
    let suspects = |crashes| ServerState {
        crashed_at: Some(at("02:59:00")),
        suspects: 3,
        running: Some(TaskId(7)),
        accused: Some(TaskId(7)),
        crashes,
        ..ServerState::default()
    };
    let text = "the server crashed, and the tasks that ran then run one at a time: 2 tasks to go, task 7 is running";
    assert_eq!(messages(suspects(0)), [(Severity::Warning, text.to_owned())]);
    let named = format!("{text}. Task 7 was the only one of them that ran in 1 crash");
    assert_eq!(messages(suspects(1)), [(Severity::Critical, named)]);
}
