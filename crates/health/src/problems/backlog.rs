//! Tasks that wait: in a queue that is paused or has too few readers, or for a limit.

use jiff::Timestamp;
use queue::LimitKind;
use queue::insight::problems::WaitingLimit;
use queue::workers::Worker;
use terminal::{counted, span};

use super::{FleetFacts, Problem, ProblemSubject, Severity, age};

/// Pending tasks of a queue.
#[derive(Clone, Debug)]
pub struct QueueBacklog<'a> {
    /// Name of the queue.
    pub queue: &'a str,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Which condition of the queue does not hold.
    pub held_back: Option<&'a str>,
    /// Number of pending tasks, formatted: `3 pending tasks`.
    pub pending: String,
    /// Wait of the oldest pending task, in seconds.
    pub oldest_seconds: f64,
}

/// Reports pending tasks that no worker will claim, or that have waited too long.
pub(super) fn queue(
    queue: &QueueBacklog<'_>,
    workers: &[Worker],
    backlog_wait: f64,
) -> Option<Problem> {
    let (name, pending) = (queue.queue, &queue.pending);
    let serving: Vec<&Worker> = workers.iter().filter(|worker| worker.serves(name)).collect();
    let (severity, message, about) = if queue.paused {
        let message = format!("queue {name} is paused, with {pending}");
        (Severity::Info, message, ProblemSubject::Paused(name.to_owned()))
    } else if let Some(reason) = queue.held_back {
        let message = format!("queue {name} is held back, with {pending}: {reason}");
        (Severity::Info, message, ProblemSubject::HeldBack(name.to_owned()))
    } else if serving.is_empty() {
        let message = format!("queue {name} has no live worker, with {pending}");
        (Severity::Critical, message, ProblemSubject::Unserved(name.to_owned()))
    } else if serving.iter().all(|worker| worker.draining) {
        let message = format!("queue {name} has only draining workers, with {pending}");
        (Severity::Critical, message, ProblemSubject::Unserved(name.to_owned()))
    } else if queue.oldest_seconds >= backlog_wait {
        let (waited, readers) = (span(queue.oldest_seconds), Readers::of(&serving));
        let message = format!(
            "queue {name}: {pending}, the oldest has waited for {waited}; {}",
            readers.describe()
        );
        let about = match readers.busy == readers.all {
            true => ProblemSubject::BusyReaders(name.to_owned()),
            false => ProblemSubject::Backlog(name.to_owned()),
        };
        (Severity::Warning, message, about)
    } else {
        return None;
    };
    Some(Problem { severity, age_seconds: queue.oldest_seconds, message, about })
}

/// Returns what holds the tasks of a queue back at this moment, however short their wait: a pause, a
/// limit, or workers that are absent, draining or busy.
#[must_use]
pub fn queue_blockers(
    backlog: &QueueBacklog<'_>,
    workers: &[Worker],
    limits: &[WaitingLimit],
    now: Timestamp,
) -> Vec<String> {
    let claims = |worker: &&Worker| worker.serves(backlog.queue) && !worker.draining;
    let is_idle = |worker: &Worker| worker.running < i64::from(worker.readers - worker.reserved);
    let are_readers_busy =
        backlog.oldest_seconds > 0.0 && !workers.iter().filter(claims).any(is_idle);
    let wait_seconds = if are_readers_busy { 0.0 } else { f64::INFINITY };
    let queue = queue(backlog, workers, wait_seconds).map(|problem| problem.message);
    let held = limits.iter().filter(|it| it.kind == LimitKind::Queue && it.name == backlog.queue);
    let limits = held.map(|it| format!("{}, and {}", describe_limit(it, now), waiting_tasks(it)));
    queue.into_iter().chain(limits).collect()
}

/// Returns whether a problem is a backlog of a queue whose limit is reported as well. The wait of a
/// pending task counts from its due time and so includes the time for which the limit blocked the
/// task. If the limit allows more tasks than there are readers, the readers cause the backlog.
pub(super) fn is_caused_by_limit(problem: &Problem, facts: &FleetFacts<'_>) -> bool {
    let (ProblemSubject::Backlog(queue) | ProblemSubject::BusyReaders(queue)) = &problem.about
    else {
        return false;
    };
    let serving = facts.workers.iter().filter(|worker| worker.serves(queue) && !worker.draining);
    let readers: i32 = serving.map(|worker| worker.readers).sum();
    facts.sources.limits.iter().any(|it| {
        it.kind == LimitKind::Queue
            && it.name == *queue
            && it.max_running.is_none_or(|max| max <= readers)
            && limit(it, facts.now, facts.sources.backlog_wait_seconds).is_some()
    })
}

/// Readers of the workers that serve a queue and claim tasks.
struct Readers {
    busy: i64,
    all: i64,
    reserved: i64,
}

impl Readers {
    fn of(workers: &[&Worker]) -> Self {
        let mut sum = Self { busy: 0, all: 0, reserved: 0 };
        for worker in workers.iter().filter(|worker| !worker.draining) {
            let readers = i64::from(worker.readers);
            sum.busy += worker.running.min(readers);
            sum.all += readers;
            sum.reserved += i64::from(worker.reserved);
        }
        sum
    }

    fn describe(&self) -> String {
        let Self { busy, all, reserved } = *self;
        let kept = if reserved > 0 { format!(", {reserved} reserved") } else { String::new() };
        match (busy, all) {
            (1, 1) => "the only reader is busy".to_owned(),
            _ if busy == all => format!("all {} are busy", counted(all, "reader")),
            _ => format!("busy readers: {busy} of {all}{kept}"),
        }
    }
}

/// Reports a limit that lets no task start, or for which tasks have waited too long. A closed active
/// period is intended, so it is not a problem.
pub(super) fn limit(limit: &WaitingLimit, now: Timestamp, backlog_wait: f64) -> Option<Problem> {
    let age_seconds = age(now, limit.since);
    let about = ProblemSubject::Limit(limit.kind);
    (limit.paused || limit.open && age_seconds >= backlog_wait).then(|| Problem {
        severity: if limit.paused { Severity::Info } else { Severity::Warning },
        age_seconds,
        message: format!("{}, and {}", describe_limit(limit, now), waiting_tasks(limit)),
        about,
    })
}

fn waiting_tasks(limit: &WaitingLimit) -> String {
    match (limit.more, limit.tasks) {
        (true, tasks) => format!("at least {} wait", counted(tasks, "task")),
        (false, 1) => "1 task waits".to_owned(),
        (false, tasks) => format!("{} wait", counted(tasks, "task")),
    }
}

/// Describes a limit by its values, or by the end of its closed active period.
#[must_use]
pub fn describe_limit(limit: &WaitingLimit, now: Timestamp) -> String {
    let kind = match limit.kind {
        LimitKind::Group => "group",
        LimitKind::Key => "concurrency key",
        LimitKind::Crash => "crash",
        LimitKind::Queue => "queue",
    };
    let name = &limit.name;
    if limit.paused {
        return format!("{kind} {name} has max_running 0");
    }
    if let Some(period) = limit.active_period.as_ref().filter(|_| !limit.open) {
        let time = |at: jiff::civil::Time| at.strftime("%H:%M").to_string();
        let opens = limit.until.map_or_else(String::new, |until| {
            format!(", opens in {}", span(until.duration_since(now).as_secs_f64()))
        });
        return format!(
            "{kind} {name} starts tasks from {} to {} {} only{opens}",
            time(period.opens),
            time(period.closes),
            period.zone
        );
    }
    let running = limit.max_running.map(|max| {
        let per_run = if limit.kind == LimitKind::Group { " in each run" } else { "" };
        format!("{} at once{per_run}", counted(u64::from(max.unsigned_abs()), "task"))
    });
    let rate = limit.rate.map(|rate| {
        let starts = counted(u64::from(rate.starts.unsigned_abs()), "start");
        format!("{starts} in {}", span(rate.period.as_secs_f64()))
    });
    let values: Vec<String> = running.into_iter().chain(rate).collect();
    format!("{kind} {name} allows {}", values.join(" and "))
}
