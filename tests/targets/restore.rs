//! A queue or a target that is restored to an earlier time runs no task twice, and is noticed.

use crate::guarantees::server::restore::dumped_and_restored;
use crate::harness::login::{Login, PASSWORD, answer};
use crate::harness::{Database, PrivateDatabase, Worker, eventually, open_url};
use crate::operation::problems::problems;
use crate::targets::target::{Configuration, EFFECT, as_flags, effects};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_restored_to_an_earlier_time_records_the_receipts_of_what_has_run_since() {
    let mut queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let done = queue.enqueue(EFFECT, ", run_as => 'dwh'").await;
    // The backup is from before the first claim.
    let restored = queue.copy().await;
    queue.reconnect().await;
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    assert_eq!(queue.outcome(done).await, "succeeded");
    // The target has resolved an attempt of a task that the backup does not know as claimed.
    drop(worker);
    queue.execute("SELECT nextval('mill.target_epochs') FROM generate_series(1, 1000)").await;
    let open = restored.enqueue(EFFECT, ", run_as => 'dwh'").await;
    let receipt: String =
        restored.value(&format!("SELECT receipt::text FROM mill.tasks WHERE id = {open}")).await;
    dwh.execute(&format!("SELECT mill_target.resolve('{{{receipt}}}', '{{900}}')")).await;
    let _worker = Worker::start(&restored, &as_flags(&flags));
    for id in [done, open] {
        assert_eq!(restored.outcome(id).await, "succeeded");
        assert_eq!(restored.attempts(id).await, "succeeded");
    }
    assert_eq!(effects(&dwh).await, (2, 2));
    let epoch: i64 = restored.value("SELECT last_value FROM mill.target_epochs").await;
    assert!(epoch > 900, "{epoch}");
    // The epoch of another worker is no sign of a restore.
    assert!(!restored.value::<bool>("SELECT mill.raise_target_epoch(900)").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_restored_to_an_earlier_time_is_a_problem_until_it_is_accepted() {
    let queue = Database::new().await;
    let mut dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let restored = dwh.copy().await;
    dwh.reconnect().await;
    let flags = configuration.flags();
    let worker = Worker::start(&queue, &as_flags(&flags));
    let id = queue.enqueue(EFFECT, ", run_as => 'dwh'").await;
    assert_eq!(queue.outcome(id).await, "succeeded");
    let checked = "SELECT checked_at IS NOT NULL AND epoch > 0 FROM mill.targets";
    eventually("the epochs are compared", async || queue.value(checked).await).await;
    drop(worker);
    configuration.point("dwh", &restored.url());
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let problem = "target dwh was restored to an earlier time";
    eventually("the problem is shown", async || {
        problems(&queue).await.iter().any(|it| it.contains(problem))
    })
    .await;
    assert!(queue.value::<bool>("SELECT mill.accept_restored_target('dwh')").await);
    assert!(!problems(&queue).await.iter().any(|it| it.contains(problem)));
    let recorded = "SELECT action || ' ' || subject FROM mill.audit ORDER BY id DESC LIMIT 1";
    assert_eq!(queue.value::<String>(recorded).await, "accept_restored_target target dwh");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_receipts_are_deleted_unless_their_task_is_live() {
    let queue = Database::new().await;
    let dwh = Database::empty().await;
    let configuration = Configuration::new(&queue, &[("dwh", &dwh, dwh.url())]).await;
    let live = ", run_as => 'dwh', due_at => now() + interval '1 day'";
    queue.enqueue("SELECT 1", live).await;
    let receipt: String = queue.value("SELECT receipt::text FROM mill.tasks").await;
    let written = |id: &str, age: &str| {
        format!(
            "INSERT INTO mill_target.receipts (task, epoch, done, written_at)
             VALUES ({id}, 1, true, now() - interval '{age}')"
        )
    };
    for (id, age) in [
        (format!("'{receipt}'"), "8 days"),
        ("gen_random_uuid()".to_owned(), "8 days"),
        ("gen_random_uuid()".to_owned(), "6 days"),
    ] {
        dwh.execute(&written(&id, age)).await;
    }
    let flags = configuration.flags();
    let _worker = Worker::start(&queue, &as_flags(&flags));
    let left = "SELECT count(*) FROM mill_target.receipts";
    eventually("one receipt is deleted", async || dwh.value::<i64>(left).await == 2).await;
    let kept = format!("{left} WHERE task = '{receipt}' OR written_at > now() - interval '7 days'");
    assert_eq!(dwh.value::<i64>(&kept).await, 2);
}

#[tokio::test]
async fn an_epoch_that_a_target_has_seen_is_never_used_again() {
    let queue = Database::new().await;
    assert!(queue.value::<bool>("SELECT mill.raise_target_epoch(900)").await);
    assert_eq!(queue.value::<i64>("SELECT nextval('mill.target_epochs')").await, 901);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_dumped_to_another_server_has_the_receipts_of_the_same_logins() {
    let dwh = Database::empty().await;
    let (one, two) = (Login::new(&dwh, "one", "").await, Login::new(&dwh, "two", "").await);
    let gone = Login::new(&dwh, "gone", "").await;
    let logins = [&one, &two, &gone].map(|login| login.name.clone());
    queue::receipt::init(dwh.client(), &logins).await.unwrap();
    let written = "SELECT mill_target.complete(gen_random_uuid(), 1, pg_current_xact_id(), 1)";
    for login in [&one, &gone] {
        assert_eq!(answer(&login.connect().await, written).await, "ok");
    }
    gone.gone().await;

    let private = PrivateDatabase::new(&[]).await;
    let moved = &private.database;
    // The roles of another server have other numbers.
    for login in [&two, &one] {
        let create = format!("CREATE ROLE {} LOGIN PASSWORD '{PASSWORD}'", login.name);
        moved.execute(&create).await;
    }
    if dumped_and_restored(&dwh, moved) {
        let owners =
            "SELECT string_agg(login::text, ' ' ORDER BY login::text) FROM mill_target.receipts";
        let owners: String = moved.value(owners).await;
        assert!(owners.ends_with(&format!(" {}", one.name)), "{owners}");
        let list = "SELECT * FROM mill_target.old_receipts('-1 h', 10)";
        // A receipt whose role was dropped is open to both.
        for (login, receipts) in [(&one, 2), (&two, 1)] {
            let client = open_url(&moved.url_as(&login.name, PASSWORD)).await;
            assert_eq!(client.query(list, &[]).await.unwrap().len(), receipts, "{}", login.name);
        }
    }
    for login in [one, two] {
        login.gone().await;
    }
}
