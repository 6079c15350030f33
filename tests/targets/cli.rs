//! `pgmill target`, `enqueue --target`, and what the fleet says about targets.

use serde_json::Value;

use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker, amount};
use crate::targets::target::{Configuration, EFFECT, EFFECTS, as_flags, effects};

/// Why `target init` is started as the superuser.
const OWNER: &str = "prepares the database of a target";

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_set_up_used_checked_and_removed_by_commands() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    dwh.execute(EFFECTS).await;
    let etl = Login::new(&dwh, "etl", "").await;
    dwh.execute(&format!("GRANT INSERT, SELECT ON effect TO {}", etl.name)).await;
    let pgmill = async |arguments: &[&str]| Program::pgmill_as_owner(&queue, arguments).run().await;

    let (code, _, stderr) =
        pgmill(&["target", "check", "dwh", "--target-url-file", "/nowhere"]).await;
    assert!(code == 4 && stderr.contains("there is no target dwh"), "{stderr}");
    let enqueue = ["--target", "dwh", EFFECT];
    let (code, _, stderr) = Program::enqueue(&queue, &enqueue).run().await;
    assert!(code == 5 && stderr.contains("pgmill target set dwh"), "{code} {stderr}");

    let set = ["target", "set", "dwh", "--allow", "mill_producer", "--keep", "30d"];
    let set = [&set[..], &["--description", "sales"]].concat();
    let (code, stdout, stderr) = pgmill(&set).await;
    assert_eq!((code, stdout.trim()), (0, "target dwh is open to members of mill_producer"));
    assert!(stderr.contains("no live worker has [targets.dwh]"), "{stderr}");
    let init = ["target", "init", "--login", &etl.name];
    for _ in 0..2 {
        Program::pgmill(&dwh, &init).by_superuser(&dwh, OWNER).succeeds().await;
    }
    let unknown = Program::pgmill(&dwh, &["target", "init", "--login", "nobody-at-all"]);
    let (_, _, stderr) = unknown.by_superuser(&dwh, OWNER).run().await;
    assert!(stderr.contains("nobody-at-all"), "{stderr}");

    let configuration = Configuration::of(&queue, &[("dwh", etl.url())]);
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    Program::enqueue(&queue, &["--target", "dwh", "--wait", EFFECT]).succeeds().await;
    assert_eq!(effects(&dwh).await, (1, 1));
    let listed = Program::pgmill(&queue, &["target", "list", "--json"]).succeeds().await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["readers"]), (&"dwh".into(), &4.into()));
    assert_eq!(listed[0]["receipts_kept_seconds"], 30.0 * 86400.0);

    let file = configuration.file("dwh");
    let check = ["target", "check", "dwh", "--target-url-file", &file];
    let (code, stdout, stderr) = pgmill(&check).await;
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    dwh.execute("DELETE FROM mill_target.receipts").await;
    let (code, stdout, stderr) = pgmill(&check).await;
    assert!(code == 1 && stdout.contains('1'), "{stdout}{stderr}");
    let (code, _, stderr) = pgmill(&["target", "accept", "dwh"]).await;
    assert!(code == 5 && stderr.contains("was not restored"), "{stderr}");

    let waits = queue.enqueue(
        "SELECT pg_advisory_lock(1)",
        ", run_as => 'dwh', due_at => now() + interval '1 hour'",
    );
    let id = waits.await;
    let (code, _, stderr) = pgmill(&["target", "remove", "dwh"]).await;
    assert!(code == 5 && stderr.contains(&format!("is used by task {id}")), "{stderr}");
    queue.execute(&format!("SELECT mill.cancel({id})")).await;
    drop(worker);
    assert_eq!(pgmill(&["target", "remove", "dwh"]).await.0, 0);
    assert_eq!(queue.value::<i64>("SELECT count(*) FROM mill.targets").await, 0);
    etl.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_target_is_not_ready_says_what_to_do() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    queue.execute("SELECT mill.set_target('dwh', allowed => ARRAY[current_user])").await;
    let configuration = Configuration::of(&queue, &[("dwh", dwh.url())]);
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    worker.until_logged("the target has no schema for receipts").await;
    worker.until_logged("ready").await;
    // The readers of other tasks work.
    let id = queue.enqueue("SELECT 1", "").await;
    assert_eq!(queue.outcome(id).await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_a_worker_takes_for_a_profile_gets_no_effect_in_the_wrong_database() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, queue.url())]).await;
    queue.execute(EFFECTS).await;
    queue.execute("SELECT mill.set_shared_commit('shared', '100 ms')").await;
    let url_file = configuration.file("dwh");
    let profile = format!("[run_as.dwh]\nurl_file = {url_file:?}\nreaders = 1\n");
    std::fs::write(configuration.path(), profile).unwrap();
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let tasks: i32 = amount(25, 100);
    for name in ["shared", "alone"] {
        let many = "SELECT mill.enqueue($1, queue => $2, run_as => 'dwh', max_attempts => 1)
            FROM generate_series(1, $3::integer)";
        queue.rows(many, &[&EFFECT, &name, &tasks]).await;
        queue.until_empty().await;
    }
    let ends = "SELECT string_agg(DISTINCT outcome || ': ' || message, ', ') || ' ' || count(*)
        FROM mill.attempts";
    let expected = format!("failed: the task has a target {}", 2 * tasks);
    assert_eq!(queue.value::<String>(ends).await, expected);
    assert_eq!(effects(&queue).await, (0, 0));
}
