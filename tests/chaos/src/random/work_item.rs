//! One item of the load as SQL: a task, several tasks at once, or a run.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

/// Concurrency keys, each with its highest limit.
pub(crate) const KEYS: [(&str, i32); 5] = [("k0", 1), ("k1", 1), ("k2", 2), ("k3", 3), ("k4", 8)];
/// The queue with a limit, and the highest value of this limit.
pub(crate) const LIMITED_QUEUE: (&str, i32) = ("limited", 3);
/// The group with a limit, and the highest value of this limit outside runs.
pub(crate) const GROUP: (&str, i32) = ("few", 4);
/// The queue whose tasks share commits.
pub(crate) const SHARED: &str = "shared";
/// The target, a database on another server.
pub(crate) const TARGET: &str = "elsewhere";
/// Number of rows that conflicting tasks write in any order.
pub(crate) const ROWS: u32 = 6;

/// Number of tasks per call of `mill.enqueue_many`.
const MANY: usize = 50;

/// Number of tasks of [`JOB`].
pub(crate) const JOB_TASKS: usize = 6;
/// The job of the runs: a diamond, and a failing task with a task that compensates the failure.
pub(crate) const JOB: &str = r#"[
{"name": "top", "statement": "SELECT chaos.work() WHERE $1::text IS NOT NULL",
    "params": [{"$param": "op"}], "max_attempts": 9},
{"name": "left", "statement": "SELECT chaos.work(0.01)", "after": ["top"], "max_attempts": 9},
{"name": "right", "statement": "SELECT chaos.work(0.02)", "after": ["top"], "max_attempts": 9},
{"name": "bottom", "statement": "SELECT chaos.work()", "after": ["left", "right"], "max_attempts": 9},
{"name": "shaky", "statement": "SELECT chaos.work(); SELECT 1/0", "after": ["top"], "max_attempts": 1,
    "ignore_failure": true},
{"name": "amends", "statement": "SELECT chaos.work()", "max_attempts": 9,
    "after": [{"task": "shaky", "expected": "failed"}]}]"#;

/// Kind of a task's SQL.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Several short tasks in one call.
    Many(usize),
    /// Transaction mode, with a duration in milliseconds.
    Plain(u32),
    Autocommit(u32),
    AtMostOnce(u32),
    /// In the target, in transaction mode.
    InTarget(u32),
    /// In the target, in autocommit mode.
    AutocommitInTarget(u32),
    /// With a concurrency key, given by index.
    Keyed(usize),
    /// In the queue with a limit, with or without a key.
    LimitedQueue(Option<usize>),
    InGroup,
    /// Fails on every permitted attempt.
    Fails(u32),
    /// Fails on the first attempts.
    FailsFirst(u32),
    /// Writes two rows in this order. Concurrent tasks with another order deadlock.
    Deadlocks(u32, u32),
    /// With a deduplication key, enqueued twice.
    Duplicate,
    Run,
}

/// An item of the load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkItem {
    /// Number from 0, part of the name.
    pub(crate) n: usize,
    pub(crate) kind: Kind,
    shared: bool,
    priority: &'static str,
    /// Milliseconds until the task is due; 0 means at once.
    delay: u32,
}

impl WorkItem {
    /// Draws the next item.
    pub(crate) fn draw(n: usize, random: &mut StdRng) -> Self {
        let key = random.random_range(0..KEYS.len());
        let kind = match random.random_range(0..100) {
            0..=1 => Kind::Many(MANY),
            2..=27 => Kind::Plain(0),
            28..=36 => Kind::InTarget(random.random_range(0..100)),
            37..=39 => Kind::AutocommitInTarget(random.random_range(0..200)),
            40..=43 => Kind::Plain(random.random_range(200..1500)),
            44..=51 => Kind::Autocommit(random.random_range(0..200)),
            52..=57 => Kind::AtMostOnce(random.random_range(0..200)),
            58..=65 => Kind::Keyed(key),
            66..=71 => Kind::LimitedQueue((key > 1).then_some(key)),
            72..=75 => Kind::InGroup,
            76..=80 => Kind::Fails(random.random_range(1..=3)),
            81..=86 => Kind::FailsFirst(random.random_range(1..=2)),
            87..=89 => {
                let first = random.random_range(0..ROWS);
                Kind::Deadlocks(first, (first + random.random_range(1..ROWS)) % ROWS)
            }
            90..=95 => Kind::Duplicate,
            _ => Kind::Run,
        };
        let late = random.random_range(0..100) < 15;
        let delay = if late { random.random_range(100..4000) } else { 0 };
        Self { n, kind, shared: random.random(), priority: priority(random), delay }
    }

    /// Returns the number of tasks that the item creates.
    pub(crate) fn tasks(&self) -> usize {
        match self.kind {
            Kind::Many(count) => count,
            Kind::Run => JOB_TASKS,
            _ => 1,
        }
    }

    /// Returns the name, which is the task's name or its prefix.
    pub(crate) fn name(&self) -> String {
        format!("t{}", self.n)
    }

    /// Returns the deduplication key.
    pub(crate) fn key(&self) -> Option<String> {
        (self.kind == Kind::Duplicate).then(|| format!("duplicate {}", self.n))
    }

    /// Returns the SQL of the task.
    fn statement(&self) -> String {
        let seconds = |ms: u32| f64::from(ms) / 1000.0;
        let apart = |ms| {
            let seconds = seconds(ms);
            format!(
                "SELECT chaos.begin_work(); SELECT pg_sleep({seconds}); SELECT chaos.end_work()"
            )
        };
        let limited = |limits: &str| format!("SELECT chaos.work(0.005, '{{{limits}}}')");
        match self.kind {
            Kind::Many(_) | Kind::Run | Kind::Duplicate | Kind::Plain(0) => {
                "SELECT chaos.work()".to_owned()
            }
            Kind::Plain(ms) | Kind::InTarget(ms) => format!("SELECT chaos.work({})", seconds(ms)),
            Kind::Autocommit(ms) | Kind::AtMostOnce(ms) | Kind::AutocommitInTarget(ms) => apart(ms),
            Kind::Keyed(key) => limited(KEYS[key].0),
            Kind::LimitedQueue(None) => limited(LIMITED_QUEUE.0),
            Kind::LimitedQueue(Some(key)) => {
                limited(&format!("{},{}", LIMITED_QUEUE.0, KEYS[key].0))
            }
            Kind::InGroup => limited(GROUP.0),
            Kind::Fails(_) => "SELECT chaos.work(); SELECT 1/0".to_owned(),
            Kind::FailsFirst(times) => format!(
                "SELECT chaos.work(); SELECT 1 / greatest(0, \
                 current_setting('mill.attempt')::integer - {times})"
            ),
            Kind::Deadlocks(first, second) => format!(
                "UPDATE chaos.quarrel SET n = n + 1 WHERE id = {first}; SELECT chaos.work(0.005); \
                 UPDATE chaos.quarrel SET n = n + 1 WHERE id = {second}"
            ),
        }
    }

    /// Returns the call, which returns the ids of the tasks, or of the run.
    pub(crate) fn call(&self) -> String {
        let (name, statement) = (self.name(), self.statement().replace('\'', "''"));
        let queue = match self.kind {
            Kind::LimitedQueue(_) => LIMITED_QUEUE.0,
            _ if self.shared => SHARED,
            _ => "default",
        };
        let due = match self.delay {
            0 => "NULL".to_owned(),
            delay => format!("clock_timestamp() + interval '{delay} ms'"),
        };
        let mut options = format!(
            ", queue => '{queue}', priority => '{}', due_at => {due}, retry_interval => '200 ms'",
            self.priority
        );
        options += &match self.kind {
            Kind::Autocommit(_) => ", mode => 'autocommit', max_attempts => 5".to_owned(),
            Kind::AtMostOnce(_) => ", mode => 'autocommit', at_most_once => true".to_owned(),
            Kind::InTarget(_) => format!(", run_as => '{TARGET}', max_attempts => 5"),
            Kind::AutocommitInTarget(_) => {
                format!(", run_as => '{TARGET}', mode => 'autocommit', max_attempts => 5")
            }
            Kind::Keyed(key) | Kind::LimitedQueue(Some(key)) => {
                format!(", concurrency_key => '{}', max_attempts => 5", KEYS[key].0)
            }
            Kind::InGroup => format!(", group_name => '{}'", GROUP.0),
            Kind::Fails(times) => format!(", max_attempts => {times}"),
            Kind::Duplicate => format!(", key => '{}'", self.key().unwrap_or_default()),
            _ => String::new(),
        };
        match self.kind {
            Kind::Many(count) => format!(
                "SELECT mill.enqueue_many(array_fill('{statement}'::text, ARRAY[{count}]), \
                 names => ARRAY(SELECT '{name}.' || i FROM generate_series(1, {count}) AS i), \
                 queue => '{queue}', priority => '{}', due_at => {due}, retry_interval => '200 ms')",
                self.priority
            ),
            Kind::Run => {
                format!("SELECT run_id FROM mill.start_run('{{graph}}', '{{\"op\": \"{name}\"}}')")
            }
            _ => format!("SELECT mill.enqueue('{statement}', name => '{name}'{options})"),
        }
    }
}

fn priority(random: &mut impl Rng) -> &'static str {
    ["low", "normal", "normal", "normal", "high", "critical", "reserved"][random.random_range(0..7)]
}
