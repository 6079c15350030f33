//! `pgmill top` on a real terminal: shows the fleet, performs its key commands, and restores the
//! terminal.

use cluster::Mode;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::terminal::Terminal;
use crate::harness::{Database, PrivateDatabase, Program, Worker, eventually};

fn top(database: &Database) -> Terminal {
    Terminal::start(Program::pgmill(database, &["top", "--interval", "200ms"]).into_command())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_who_blocks_a_task_and_cancels_it() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "2"]);
    database.execute("SELECT pg_advisory_lock(1)").await;
    let id = database.enqueue("SELECT pg_advisory_xact_lock(1)", ", name => 'stuck'").await;
    let mut top = top(&database);
    top.until_shown("[running tasks: 1]").await;
    let pid: i32 = database.value("SELECT pg_backend_pid()").await;
    top.until_shown(&format!("blocked by {pid}")).await;
    assert!(top.in_alternate_screen() && top.coloured());

    top.type_keys("\r");
    top.until_shown("SELECT pg_advisory_xact_lock(1)").await;
    top.type_keys("c");
    top.until_shown(&format!("cancel task {id}? [y/N]")).await;
    // Any key except y answers no.
    top.type_keys("n");
    top.until_shown("esc back").await;
    let asked = "SELECT count(*) FROM mill.cancel_requests";
    assert_eq!(database.value::<i64>(asked).await, 0);
    top.type_keys("cy");
    top.until_shown(&format!("task {id}: cancellation requested")).await;
    assert_eq!(database.outcome(id).await, "cancelled");
    top.until_shown("cancelled on request").await;

    top.type_keys("\u{1b}");
    top.until_shown("[running tasks: 0]").await;
    top.type_keys("q");
    assert!(top.ended().await.success());
    assert!(!top.in_alternate_screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_paused_and_workers_drained_from_top() {
    let database = Database::new().await;
    let _worker = Worker::start(&database, &["--readers", "2", "--heartbeat-interval", "200ms"]);
    database.enqueue("SELECT 1", ", queue => 'etl', due_at => now() + interval '1 day'").await;
    let mut top = top(&database);
    top.until_shown("etl").await;
    top.until_shown("1 worker alive").await;
    top.type_keys("\tdy");
    top.until_shown("draining").await;
    top.type_keys("\tpy");
    top.until_shown("queue etl paused; running tasks continue").await;
    let paused = "SELECT paused FROM mill.queues WHERE name = 'etl'";
    eventually("the queue is paused", async || database.value(paused).await).await;
    // After a signal, the program ends as after the key.
    let pid = Pid::from_raw(i32::try_from(top.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(top.ended().await.success());
    assert!(!top.in_alternate_screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn during_an_outage_top_reports_it_and_recovers() {
    let mut own = PrivateDatabase::new(&[]).await;
    let top = top(&own.database);
    top.until_shown("no problem").await;
    own.cluster.stop(Mode::Fast).unwrap();
    top.until_shown("retrying").await;
    top.until_shown("no problem").await;
    own.cluster.start_again().unwrap();
    top.until_shown("? help").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_colours_top_shows_the_same_and_without_a_terminal_it_refuses() {
    let database = Database::new().await;
    let mut command = Program::pgmill(&database, &["top", "--no-color"]).into_command();
    command.env("COLUMNS", "80");
    let top = Terminal::start(command);
    top.until_shown("no problem").await;
    assert!(!top.coloured());
    let (code, _, stderr) = Program::pgmill(&database, &["top"]).run().await;
    assert_eq!(code, 2);
    assert!(
        stderr.contains("top requires a terminal") && stderr.contains("pgmill status"),
        "{stderr}"
    );
}
