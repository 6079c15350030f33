//! A table of acts that are beyond the rights of each role. Each act is refused with the stated SQLSTATE, or succeeds and
//! changes nothing that belongs to others.

mod acts_of_roles;
mod acts_of_sessions;
mod acts_of_tasks;
pub(crate) mod matrix;
mod world;

use acts_of_roles::{OF_OPERATOR, OF_PRODUCER, OF_VIEWER, OF_WORKER};
use acts_of_sessions::{OF_TASK_LOGIN, ON_OBJECTS};
use acts_of_tasks::OF_TASKS;
use world::{OF_WORKERS, OwnRows, Protected, World, differences};

use crate::harness::login::{PASSWORD, answer};
use crate::harness::{amount, open_url};

/// Acts by their result: an SQLSTATE, or `ok`. Several results are separated by `|`, if servers differ.
type Acts = &'static [(&'static str, &'static [&'static str])];

fn count(acts: Acts) -> usize {
    acts.iter().map(|(_, acts)| acts.len()).sum()
}

/// Tries the acts in a session of a login. Returns what is wrong.
async fn try_in_session(
    world: &World,
    login: &str,
    acts: [Acts; 2],
    own: OwnRows,
    before: &mut Protected,
) -> Vec<String> {
    let client = open_url(&world.database().url_as(login, PASSWORD)).await;
    let mut wrong = Vec::new();
    for (expected, acts) in acts.into_iter().flatten() {
        for act in *acts {
            let statement = world.statement(act);
            let answer = answer(&client, &statement).await;
            if !expected.split('|').any(|it| it == answer) {
                wrong.push(format!("{login}: {answer} instead of {expected}: {statement}"));
            }
            client.batch_execute("ROLLBACK").await.unwrap();
            // Nothing is left of an act that fails.
            if answer == "ok" {
                client.batch_execute("DISCARD ALL").await.unwrap();
            }
        }
    }
    let after = world.protected().await;
    let changed = differences(before, &after, own, &[]);
    wrong.extend(changed.into_iter().map(|line| format!("{login} has changed: {line}")));
    *before = after;
    wrong
}

/// Tries the acts as tasks. Returns what is wrong.
async fn try_as_tasks(world: &World, acts: Acts) -> Vec<String> {
    let database = world.database();
    let mut worker = world.worker().await;
    let before = world.protected().await;
    let mut wrong = Vec::new();
    for (expected, acts) in acts {
        for (n, act) in acts.iter().enumerate() {
            let statement = world.statement(act);
            let ran = database.run(&statement, ", max_attempts => 1").await;
            let answer = if ran.outcome == "succeeded" { "ok" } else { ran.sqlstate.as_str() };
            if !expected.split('|').any(|it| it == answer) {
                wrong.push(format!("task: {answer} instead of {expected}: {statement}: {ran:?}"));
            }
            // No state reaches the next task. The short form asks after a fourth of the failures.
            if *expected != "ok" && n % amount(4, 1) != 0 {
                continue;
            }
            let next = "SELECT session_user, current_user, current_setting('search_path'),
                current_setting('transaction_read_only'), to_regclass('pg_temp.tasks')::text";
            let next = database.run(next, "").await;
            assert_eq!(next.row(0), ["etl", "etl", "\"$user\", public", "off", ""], "{statement}");
        }
    }
    let changed = differences(&before, &world.protected().await, &["attempts"], OF_WORKERS);
    wrong.extend(changed.into_iter().map(|line| format!("a task has changed: {line}")));
    assert!(worker.terminate().await.success());
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn no_act_reaches_beyond_the_rights_of_its_role() {
    let world = World::new().await;
    let mut before = world.protected().await;
    let mut wrong = Vec::new();
    for (login, acts, own, least) in [
        ("etl", OF_TASK_LOGIN, &[][..], 150),
        ("producer", OF_PRODUCER, &["tasks"][..], 50),
        ("viewer", OF_VIEWER, &[][..], 50),
        ("operator", OF_OPERATOR, &[][..], 50),
        ("worker", OF_WORKER, &[][..], 50),
    ] {
        let acts = [acts, ON_OBJECTS];
        let tried: usize = acts.into_iter().map(count).sum();
        assert!(tried >= least, "{login}: {tried} acts");
        wrong.extend(try_in_session(&world, login, acts, own, &mut before).await);
    }
    wrong.extend(try_as_tasks(&world, OF_TASKS).await);
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
