//! Results and notices of any size pass through the worker in bounded memory.

use crate::harness::{Database, Worker, amount};

/// A column that makes the rows of a result larger than the memory that the worker may use.
const PADDING: &str = "repeat('x', 200)";

/// Returns the peak resident memory of a process in kB.
fn peak_kb(worker: &Worker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns by how many kB the peak is above an earlier one. The kernel takes the peak from
/// approximate counters, so a process that has not grown can have a lower one than before.
fn grown_kb(worker: &Worker, before: u64) -> u64 {
    peak_kb(worker).saturating_sub(before)
}

async fn warm(database: &Database) -> (Worker, u64) {
    let worker = Worker::start(database, &["--readers", "1"]);
    let warmed = database
        .run("DO $$ BEGIN RAISE NOTICE 'warm'; END $$; SELECT generate_series(1, 1000)", "")
        .await;
    assert_eq!(warmed.rows, Some(1000));
    let peak = peak_kb(&worker);
    (worker, peak)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_are_counted_and_the_first_are_kept_in_sixteen_megabytes() {
    let database = Database::new().await;
    let (worker, before) = warm(&database).await;
    let rows: i64 = amount(200_000, 2_000_000);
    let select = format!("SELECT n, {PADDING} FROM generate_series(1, {rows}) AS n");
    let ran = database.run(&select, "").await;
    let grown = grown_kb(&worker, before);
    println!("{rows} rows: peak {before} kB, grew by {grown} kB");
    assert_eq!((ran.outcome.as_str(), ran.rows), ("succeeded", Some(rows)), "{ran:?}");
    assert_eq!((&ran.result["truncated"], ran.row(0)[0]), (&true.into(), "1"));
    assert_eq!(ran.result["rows"].as_array().unwrap().len(), 100);
    assert!(grown <= 16 * 1024, "grew by {grown} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_extended_protocol_are_bounded_too() {
    let database = Database::new().await;
    let (worker, before) = warm(&database).await;
    let rows: i64 = amount(200_000, 1_000_000);
    let select = format!("SELECT n, {PADDING} FROM generate_series(1, $1::int) AS n");
    let ran = database.run(&select, &format!(", params => '[{rows}]'")).await;
    let grown = grown_kb(&worker, before);
    println!("{rows} rows with parameters: peak {before} kB, grew by {grown} kB");
    assert_eq!((ran.rows, &ran.result["truncated"]), (Some(rows), &true.into()));
    assert!(grown <= 16 * 1024, "grew by {grown} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_notices_are_counted_and_the_first_are_kept() {
    let database = Database::new().await;
    let (worker, before) = warm(&database).await;
    let count: i32 = amount(40_000, 100_000);
    let raise = format!(
        "DO $$ BEGIN FOR i IN 1..{count} LOOP RAISE NOTICE 'notice %', i; END LOOP; END $$"
    );
    let ran = database.run(&raise, "").await;
    let grown = grown_kb(&worker, before);
    println!("{count} notices: peak {before} kB, grew by {grown} kB");
    let notices = ran.notices.as_array().unwrap();
    assert_eq!(notices.len(), 101);
    assert_eq!(notices[0]["message"], "notice 1");
    assert_eq!(notices[100]["dropped"], count - 100);
    assert!(grown <= 16 * 1024, "grew by {grown} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_huge_value_costs_a_small_multiple_of_its_size_while_it_passes() {
    let database = Database::new().await;
    let (worker, before) = warm(&database).await;
    let ran = database.run("SELECT repeat('x', 50 << 20), 'after'", "").await;
    let grown = grown_kb(&worker, before);
    println!("one value of 50 MB: peak {before} kB, grew by {grown} kB");
    assert_eq!((ran.outcome.as_str(), ran.rows), ("succeeded", Some(1)), "{ran:?}");
    let kept = ran.row(0);
    assert_eq!((kept[0].chars().count(), kept[1]), (4097, "after"));
    assert!(grown <= 4 * 50 * 1024, "grew by {grown} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_many_large_values_is_cut_to_what_history_keeps() {
    let database = Database::new().await;
    let (_worker, _) = warm(&database).await;
    let columns = vec!["repeat('x', 10000)"; 1000].join(", ");
    let ran = database.run(&format!("SELECT {columns}"), "").await;
    assert_eq!((ran.outcome.as_str(), ran.rows), ("succeeded", Some(1)), "{ran:?}");
    let bytes: i32 =
        database.value("SELECT max(octet_length((result->'rows')::text)) FROM mill.attempts").await;
    assert!(bytes <= 64 * 1024, "{bytes} bytes of one row in history");
    assert_eq!(ran.result["truncated"], true);
}
