//! A malformed answer of the server ends a session, and nothing else: the worker neither panics nor
//! waits longer than its time limits, and every task has its effect once.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use proxy::{Damage, DamageKind, FaultAction, MessageMatch, Proxy};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::harness::{Database, Worker, amount, eventually};

const LEAVES_A_MARK: &str =
    "/* marks */ INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";

/// Maximum time until a session sends the request whose answer is damaged: after a damaged length,
/// it waits for the rest of an answer up to 75 s.
const REQUEST: Duration = Duration::from_secs(120);

/// Maximum of the resident memory of a worker in kB. A length of 2 GB must not be allocated.
const MAX_MEMORY: u64 = 300_000;

/// Number of bytes at the beginning of each message that the sweep damages.
const SWEPT_BYTES: usize = 64;
/// Number of messages that the sweep damages at the same time, each with a worker of its own.
const SWEPT_AT_ONCE: usize = 16;

/// An answer in the life of a session.
#[derive(Clone, Copy, Debug)]
struct Answer {
    name: &'static str,
    /// Whether a session for tasks receives the answer.
    for_tasks: bool,
    /// Text of the request, or none for the startup and for an execution of the claim.
    request: &'static str,
    mode: &'static str,
    /// Sessions to terminate, so that a new one sends the request.
    ended: Option<&'static str>,
}

const READER: Option<&str> = Some("pgmill reader %");
const CONTROL: Option<&str> = Some("pgmill control %");
const CLAIMER: Option<&str> = Some("pgmill claimer %");
const LISTENER: Option<&str> = Some("pgmill listener %");
const STARTUP: &str = "";
const CLAIM: &str = "claim";

#[rustfmt::skip]
const ANSWERS: [Answer; 15] = [
    Answer { name: "startup of a reader", for_tasks: true, request: STARTUP, mode: "transaction", ended: READER },
    Answer { name: "identity of a reader", for_tasks: true, request: "worker.identity", mode: "transaction", ended: READER },
    Answer { name: "BEGIN", for_tasks: true, request: "worker.begin", mode: "transaction", ended: None },
    Answer { name: "statement", for_tasks: true, request: "/* marks */", mode: "transaction", ended: None },
    Answer { name: "COMMIT", for_tasks: true, request: "worker.commit", mode: "transaction", ended: None },
    Answer { name: "settings, autocommit", for_tasks: true, request: "worker.set_task_settings", mode: "autocommit", ended: None },
    Answer { name: "statement, autocommit", for_tasks: true, request: "/* marks */", mode: "autocommit", ended: None },
    Answer { name: "completion", for_tasks: false, request: "queue.complete", mode: "autocommit", ended: None },
    Answer { name: "heartbeat", for_tasks: false, request: "queue.heartbeat", mode: "transaction", ended: None },
    Answer { name: "poll", for_tasks: false, request: "queue.poll", mode: "transaction", ended: None },
    Answer { name: "claim", for_tasks: false, request: CLAIM, mode: "transaction", ended: None },
    Answer { name: "preparation of the claim", for_tasks: false, request: "queue.claim", mode: "transaction", ended: CLAIMER },
    Answer { name: "startup of a control session", for_tasks: false, request: STARTUP, mode: "transaction", ended: CONTROL },
    Answer { name: "registration", for_tasks: false, request: "queue.register", mode: "transaction", ended: CONTROL },
    Answer { name: "LISTEN", for_tasks: false, request: "LISTEN", mode: "transaction", ended: LISTENER },
];

/// Requests whose answers have a varying number of rows, so that only their first message surely exists.
const VARYING: [&str; 2] = [CLAIM, "queue.poll"];

/// A worker, and the proxies between the worker and the server.
struct Environment {
    database: Database,
    tasks: Proxy,
    control: Proxy,
    worker: Worker,
    answer: Answer,
}

impl Environment {
    async fn new(answer: Answer) -> Self {
        let database = Database::new().await;
        database.execute("CREATE TABLE effect (task bigint NOT NULL)").await;
        let tasks = Proxy::start(&database.url()).await.unwrap();
        let control = Proxy::start(&database.url()).await.unwrap();
        let flags = ["--readers", "1", "--poll-interval", "200ms", "--heartbeat-interval", "1s"];
        let url = tasks.url(&database.task_url());
        let flags = [&flags[..], &["--orphan-timeout", "3s", "--task-url", &url]].concat();
        let worker = Worker::start_at(&control.url(&database.worker_url()), &flags);
        worker.until_logged("ready").await;
        Self { database, tasks, control, worker, answer }
    }

    fn proxy(&self) -> &Proxy {
        if self.answer.for_tasks { &self.tasks } else { &self.control }
    }

    /// Damages the next answer, while a task needs the session. Returns whether the damage
    /// occurred, and the task.
    async fn damage(&self, damage: Damage) -> (bool, i64) {
        let at = match self.answer.request {
            STARTUP => MessageMatch::Startup,
            CLAIM => MessageMatch::Prepared,
            text => MessageMatch::Text(text.to_owned()),
        };
        self.proxy().arm(at, FaultAction::DamageAnswer(damage));
        if let Some(sessions) = self.answer.ended {
            let sql = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
                       WHERE datname = current_database() AND application_name LIKE $1";
            self.database.rows(sql, &[&sessions]).await;
        }
        let options = format!(", max_attempts => 1, mode => '{}'", self.answer.mode);
        let id = self.database.enqueue(LEAVES_A_MARK, &options).await;
        let fired = timeout(REQUEST, self.proxy().fired()).await.is_ok();
        self.proxy().disarm();
        (fired, id)
    }

    /// Returns the messages of the answer: their types and sizes.
    async fn record(&self) -> Vec<(char, usize)> {
        let (fired, id) = self.damage(Damage { message: 0, byte: 0, kind: DamageKind::None }).await;
        assert!(fired, "no answer to {}", self.answer.name);
        assert_eq!(self.database.outcome(id).await, "succeeded");
        self.proxy().recorded()
    }

    /// Returns the damages of the answer, and whether each of them makes the answer unreadable.
    async fn damages(&self) -> Vec<(Damage, bool)> {
        let messages = self.record().await;
        // The first and the last message.
        let mut chosen = vec![0];
        if !VARYING.contains(&self.answer.request) && messages.len() > 1 {
            chosen.push(messages.len() - 1);
        }
        let mut damages = Vec::new();
        for message in chosen {
            let unreadable = unreadable(message, messages[message].1);
            damages.extend(unreadable.into_iter().map(|damage| (damage, true)));
        }
        // The last byte of a value, which then is no text.
        if let Some(message) = messages.iter().position(|(kind, _)| *kind == 'D') {
            let (byte, kind) = (messages[message].1 - 1, DamageKind::Flip(0x80));
            damages.push((Damage { message, byte, kind }, false));
        }
        damages
    }

    /// Damages an answer and checks what happens to its task and to the next one. With `strict`, the
    /// damage makes the answer unreadable; otherwise it may change a value in the answer. Returns
    /// whether the damage occurred.
    async fn check(&mut self, damage: Damage, strict: bool) -> bool {
        let what = format!("{}, {damage:?}", self.answer.name);
        let (fired, id) = self.damage(damage).await;
        assert!(fired || !strict, "{what}: no such byte");
        let outcome = self.database.outcome(id).await;
        let counts = format!(
            "SELECT (SELECT count(*) FROM mill.attempts WHERE task_id = {id}) || ' '
                 || (SELECT count(*) FROM effect WHERE task = {id})"
        );
        let counts: String = self.database.value(&counts).await;
        let (attempts, effects) = counts.split_once(' ').unwrap();
        let (attempts, effects): (i64, i64) = (attempts.parse().unwrap(), effects.parse().unwrap());
        if strict {
            let all = self.database.attempts(id).await;
            assert_eq!(outcome, "succeeded", "{what}: {all}");
            assert!(effects >= 1, "{what}: no effect");
        }
        let max_effects = if self.answer.mode == "transaction" { 1 } else { attempts };
        assert!(effects <= max_effects, "{what}: {effects} effects, {attempts} attempts");
        let next = self.database.enqueue(LEAVES_A_MARK, ", max_attempts => 1").await;
        assert_eq!(self.database.outcome(next).await, "succeeded", "{what}: the next task");
        assert_eq!(self.worker.ended_already(), None, "{what}: {}", self.worker.log());
        assert!(!self.worker.log().contains("panicked"), "{what}");
        fired
    }

    /// Checks the memory of the worker and its shutdown.
    async fn close(mut self) {
        let status = format!("/proc/{}/status", self.worker.pid());
        let status = fs::read_to_string(status).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak: u64 = peak.map_or(0, |peak| peak.trim_end_matches("kB").trim().parse().unwrap());
        assert!(peak < MAX_MEMORY, "{} kB after a damaged {}", peak, self.answer.name);
        assert!(self.worker.terminate().await.success(), "{}", self.answer.name);
        // DROP DATABASE waits for sessions that are being opened, also by this thread.
        spawn_blocking(|| drop(self.database)).await.unwrap();
    }
}

/// Returns the damages that make a message unreadable: an unknown type, a negative length, and the
/// end of the connection in the header and in the content.
fn unreadable(message: usize, size: usize) -> Vec<Damage> {
    let damage = |byte, kind| Damage { message, byte, kind };
    let mut damages = vec![
        damage(0, DamageKind::Flip(0x80)),
        damage(1, DamageKind::Flip(0x80)),
        damage(0, DamageKind::Truncate),
        damage(3, DamageKind::Truncate),
    ];
    damages.extend((size > 5).then(|| damage(size - 1, DamageKind::Truncate)));
    damages
}

/// The length of the first message is 2 GB: the session waits for bytes that never arrive.
const ENDLESS: Damage = Damage { message: 0, byte: 1, kind: DamageKind::Flip(0x7f) };

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_answer_ends_a_session_and_the_task_has_its_effect() {
    // In the short form, four answers share a worker, and an answer has every fifth of its damages,
    // which are of another kind than those of the next answer.
    let (answers_of_worker, step): (usize, usize) = amount((4, 5), (1, 1));
    let answers: Vec<(usize, Answer)> = ANSWERS.into_iter().enumerate().collect();
    let each = answers.chunks(answers_of_worker).map(async |answers| {
        let mut environment = Environment::new(answers[0].1).await;
        for &(n, answer) in answers {
            environment.answer = answer;
            let damages = environment.damages().await;
            for (damage, strict) in damages.into_iter().skip(n % step).step_by(step) {
                environment.check(damage, strict).await;
            }
        }
        environment.close().await;
    });
    join_all(each).await;
}

/// The claim is prepared once for each session. With wrong types, no claim of the session succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_prepared_the_claim_with_wrong_types_is_replaced() {
    // The types of the first parameter, text[], and of the first column, bigint, become others.
    let each = [('t', 10), ('T', 18)].map(async |(kind, byte)| {
        let preparation = ANSWERS.into_iter().find(|it| it.name == "preparation of the claim");
        let mut environment = Environment::new(preparation.unwrap()).await;
        let messages = environment.record().await;
        let message = messages.iter().position(|(it, _)| *it == kind).unwrap();
        let damage = Damage { message, byte, kind: DamageKind::Flip(0x01) };
        assert!(environment.check(damage, false).await);
        environment.close().await;
    });
    join_all(each).await;
}

/// Damages a byte of a message in each way, byte by byte, and returns the number of damages.
async fn damage_each_byte(answer: Answer, message: usize, size: usize) -> usize {
    let mut environment = Environment::new(answer).await;
    let mut damages = 0;
    'message: for byte in 0..size.min(SWEPT_BYTES) {
        let kinds = [0x01, 0x10, 0x7f, 0x80].map(DamageKind::Flip);
        for kind in kinds.into_iter().chain([DamageKind::Truncate]) {
            // The next answers may have fewer messages, or shorter ones.
            if !environment.check(Damage { message, byte, kind }, false).await {
                break 'message;
            }
            damages += 1;
        }
    }
    environment.close().await;
    damages
}

/// Flips bits in the first bytes of each message, also of values, and ends the connection there: a
/// task may then fail, but has no second effect, and the worker serves the next task. Most of the
/// time goes to damaged lengths, because of which a session waits until its time limit.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour: `cargo test -p tests -- --ignored every_damaged_byte --nocapture`"]
async fn every_damaged_byte_leaves_a_worker_that_works() {
    let workers = &Semaphore::new(SWEPT_AT_ONCE);
    let each = ANSWERS.map(async |answer| {
        let recorder = Environment::new(answer).await;
        let messages = recorder.record().await;
        recorder.close().await;
        let each = messages.into_iter().enumerate().map(async |(message, (kind, size))| {
            let _permit = workers.acquire().await.unwrap();
            let damages = damage_each_byte(answer, message, size).await;
            println!(
                "{}: message {message} ({kind}), {size} bytes, {damages} damages",
                answer.name
            );
        });
        join_all(each).await;
    });
    join_all(each).await;
}

/// The session waits for bytes that never arrive, until its time limit.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_is_given_up() {
    let waited_for = |answer: &Answer| {
        // The time limit of other control statements is 75 s: see the test of every byte.
        answer.for_tasks && answer.ended.is_none() || answer.name == "heartbeat"
    };
    let each = ANSWERS.into_iter().filter(waited_for).map(async |answer| {
        let mut environment = Environment::new(answer).await;
        environment.check(ENDLESS, true).await;
        let open = "SELECT count(*) = 0 FROM pg_stat_activity
            WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        let database = &environment.database;
        eventually("no transaction is left open", async || database.value(open).await).await;
        environment.close().await;
    });
    join_all(each).await;
}
