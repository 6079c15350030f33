//! What is done through the web console stands in the audit, in the name of who did it.

use serde_json::Value;

use crate::harness::Database;
use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::login::Login;

const TOKEN: &str = "another-token-of-enough-characters";

#[tokio::test(flavor = "multi_thread")]
async fn every_act_of_the_console_is_on_record_with_login_and_person() {
    let database = Database::new().await;
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let labelled = "labelled-token-of-enough-characters";
    let file = TokenFile::new(&format!("{TOKEN}\n{labelled} night shift"));
    let console =
        Console::start_at(&database, &operator.url(), &["--token-file", file.path()]).await;
    let cookie = console.sign_in(TOKEN, "ann%20%3Cb%3E").await;
    let own = [("Host", console.address.as_str()), ("Cookie", cookie.as_str())];
    let page = console.request("GET", "/queues", &own, "").await.body;
    let csrf_token = csrf(&page);
    database.execute("SELECT mill.set_group('g')").await;
    let id = database.enqueue("SELECT 1", ", queue => 'etl'").await;
    let acts = [
        (format!("/tasks/{id}/cancel"), "", "cancel"),
        (format!("/tasks/{id}/retry"), "", "retry"),
        ("/tasks/all".to_owned(), "q=queue:etl", "cancel"),
        ("/queues/etl/pause".to_owned(), "paused=true", "pause"),
        ("/queues/etl/limit".to_owned(), "max_running=3", "set_max_running"),
        ("/priorities/weights".to_owned(), "low=7", "set_weights"),
        ("/priorities/reserve".to_owned(), "capacity=high", "update_settings"),
        ("/groups/g/concurrency".to_owned(), "max_concurrency=2", "set_group"),
        ("/queues/etl/commits".to_owned(), "milliseconds=20", "share_commits"),
        ("/groups/g/active".to_owned(), "opens=22:00&closes=06:00", "set_active_period"),
        ("/groups/make".to_owned(), "name=h", "set_group"),
        ("/groups/h/remove".to_owned(), "", "drop_group"),
    ];
    let mut seen: i64 = database.value("SELECT coalesce(max(id), 0) FROM mill.audit").await;
    for (path, form, act) in acts {
        let answer =
            console.post_with(&path, &format!("{form}&csrf={csrf_token}"), &own[1..]).await;
        assert!(matches!(answer.status, 200 | 303), "{path}: {}", answer.body);
        let rows = "SELECT login, coalesce(actor, ''), act, id FROM mill.audit WHERE id > $1";
        let rows = database.rows(rows, &[&seen]).await;
        assert!(!rows.is_empty(), "{path} is not on record");
        for row in &rows {
            let who = (row.get::<_, String>(0), row.get::<_, String>(1));
            assert_eq!(who, (operator.name.clone(), "console: ann <b>".to_owned()), "{path}");
            seen = seen.max(row.get(3));
        }
        assert!(rows.iter().any(|row| row.get::<_, String>(2) == act), "{path} is no {act}");
    }
    // Whose token it is counts more than what they call themselves.
    let cookie = console.sign_in(labelled, "eve").await;
    let own = [own[0], ("Cookie", cookie.as_str())];
    let page = console.request("GET", "/queues", &own, "").await.body;
    let form = format!("paused=false&csrf={}", csrf(&page));
    assert_eq!(console.post_with("/queues/etl/pause", &form, &own[1..]).await.status, 303);
    let actor = "SELECT actor FROM mill.audit ORDER BY id DESC LIMIT 1";
    assert_eq!(database.value::<String>(actor).await, "console: night shift");
    let shown = console.request("GET", "/audit?since=1h&act=pause", &own, "").await.body;
    assert!(shown.contains("console: ann &#60;b&#62;") && shown.contains("queue etl"), "{shown}");
    assert!(!shown.contains("set_weights"), "{shown}");
    drop(console);
    operator.gone(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_pages_and_filters_and_nothing_foreign_becomes_markup() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let console = Console::start_at(&database, &viewer.url(), &[]).await;
    let acts = "SELECT mill.pause('q' || n) FROM generate_series(1, 120) AS n;
        SET mill.actor = '<script>a'; SET application_name = '<script>b';
        SELECT mill.set_group('<script>g')";
    database.execute(acts).await;
    let (mut before, mut seen) = (String::new(), Vec::new());
    loop {
        let page = console.get(&format!("/api/v1/audit?before={before}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        seen.extend(page["acts"].as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()));
        let Some(next) = page["next"].as_i64() else { break };
        before = next.to_string();
    }
    assert_eq!(seen.len(), 121, "each once");
    assert!(seen.is_sorted_by(|a, b| a > b), "the last first");
    for (asked, found) in [
        ("subject=queue+q7", 1),
        ("login=%3Cscript%3Ea", 1),
        ("act=pause&since=1h&subject=queue+q9", 1),
        ("act=cancel", 0),
    ] {
        let page = console.get(&format!("/api/v1/audit?{asked}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(page["acts"].as_array().unwrap().len(), found, "{asked}");
    }
    let page = console.get("/audit").await.body;
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    assert!(page.contains("before=") && page.contains("group &#60;script&#62;g"), "{page}");
    let page = console.get("/audit?since=soon").await;
    assert!(page.status == 200 && page.body.contains("is no span of time"), "{}", page.body);
    assert_eq!(console.get("/api/v1/audit?before=x").await.status, 400);
    drop(console);
    viewer.gone(&database).await;
}
