//! The console's pages of schedules: they escape every name, explain whether a schedule would fire, and
//! offer the actions on schedules.

use serde_json::{Value, json};

use crate::harness::console::Console;
use crate::harness::login::Login;
use crate::harness::{Database, Worker};
use crate::schedules::schedule::{FLAGS, planned, schedule};

const HOSTILE: &str = "<script>x</script>\"'&../%2F?";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_described_with_their_next_fires_and_last_runs() {
    let database = Database::new().await;
    let timing = "daily(03:15, zone: Europe/Berlin)";
    let set = "SELECT mill.set_schedule($1, $2, 'SELECT ''<script>''')";
    database.rows(set, &[&HOSTILE, &timing]).await;
    schedule(&database, "b", "manual", "SELECT 1", "").await;
    for _ in 0..2 {
        database.rows("SELECT mill.run_now($1, true)", &[&HOSTILE]).await;
    }
    database.execute("SELECT mill.enable_schedule('b', false)").await;
    let console = Console::start(&database, &[]).await;
    let name = encoded(HOSTILE);
    for path in ["/schedules".to_owned(), format!("/schedules/detail?name={name}")] {
        let answer = console.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let scripts = answer.body.matches("<script").count();
        assert_eq!(scripts, answer.body.matches("<script src=\"/static/").count(), "{path}");
        assert!(answer.body.contains("every day at 03:15 Europe/Berlin"), "{}", answer.body);
        assert_eq!(answer.body.matches("class=\"mark running\"").count(), 2, "{path}");
        assert!(!answer.body.contains(" style="), "{path} has an inline style");
    }
    let list = console.get("/schedules").await.body;
    assert!(list.contains(">disabled</span>") && list.contains("only on demand"), "{list}");
    let page = console.get(&format!("/schedules/detail?name={name}")).await.body;
    for text in
        ["03:15:00 CE", "the schedule would not fire now", "by function call", "manual", "fired"]
    {
        assert!(page.contains(text), "{text} in {page}");
    }
    let known = console.get(&format!("/api/v1/schedules/detail?name={name}")).await.body;
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!(known["fires"].as_array().unwrap().len(), 5);
    assert_eq!(known["schedule"]["recent"].as_array().unwrap().len(), 2);
    assert_eq!(known["history"][0]["run_id"], 2);
    assert_eq!(known["schedule"]["timing_description"], json!("every day at 03:15 Europe/Berlin"));
    for path in
        ["/schedules/detail?name=nobody", "/schedules/detail", "/api/v1/schedules/detail?name=x"]
    {
        assert_eq!(console.get(path).await.status, 404, "{path}");
    }
    let nowhere = console.get(&format!("/schedules/detail?name={name}&run=nowhere")).await;
    assert_eq!(nowhere.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_listed_page_by_page() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_schedule('s' || to_char(n, 'FM000'), 'manual', 'SELECT 1')
             FROM generate_series(1, 120) n",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let page = console.get(&format!("/api/v1/schedules?after={after}")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        let names = page["schedules"].as_array().unwrap().iter();
        seen.extend(names.map(|it| it["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    let all: Vec<String> = (1..=120).map(|n| format!("s{n:03}")).collect();
    assert_eq!(seen, all, "each schedule once");
}

#[tokio::test]
async fn the_calendar_shows_past_and_coming_fires_in_the_zone_of_the_user() {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.set_schedule('daily', 'daily(03:15, zone: UTC)', 'SELECT 1'),
                mill.set_schedule('often', 'every(5 minutes)', 'SELECT 1'), mill.set_schedule('never', 'manual', 'SELECT 1');
             SELECT mill.run_now('daily'), mill.run_now('often') FROM generate_series(1, 1);
             UPDATE mill.runs SET fire_at = '2026-03-25 23:15Z', state = 'failed', finished_at = now(), failed = 1
                WHERE id = 1",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let week = console.get("/schedules/calendar?date=2026-03-26").await.body;
    for text in [
        "week of 2026-03-23",
        "class=\"fire failed\" href=\"/runs/1\" title=\"23:15: run 1 failed\"",
    ] {
        assert!(week.contains(text), "{text}: {week}");
    }
    assert!(week.contains("2 more schedules without a fire"), "{week}");
    let cookie = [("Host", console.address.as_str()), ("Cookie", "pgmill_zone=Europe/Berlin")];
    let of = async |path: &str| console.request("GET", path, &cookie, "").await.body;
    let day = of("/schedules/calendar?view=day&date=2026-03-26").await;
    assert!(day.contains("title=\"00:15: run 1 failed\"") && day.contains("zone=UTC"), "{day}");
    let other = of("/schedules/calendar?view=day&date=2026-03-26&zone=UTC").await;
    assert!(!other.contains("run 1 failed") && other.contains(">Europe/Berlin</a>"), "{other}");

    let tomorrow = "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 day', 'YYYY-MM-DD')";
    let tomorrow: String = database.value(tomorrow).await;
    let day = console.get(&format!("/schedules/calendar?view=day&date={tomorrow}")).await.body;
    assert!(day.contains("title=\"03:15: coming\""), "{day}");
    assert_eq!(
        day.matches("+9 more").count(),
        24,
        "twelve fires an hour, of which three are listed"
    );
    database.execute("SELECT mill.enable_schedule('daily', false)").await;
    let day = console.get(&format!("/schedules/calendar?view=day&date={tomorrow}")).await.body;
    assert!(!day.contains("03:15: coming"), "{day}");
    for path in ["/schedules/calendar?date=soon", "/schedules/calendar?date=-009999-01-01"] {
        assert_eq!(console.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_tests_a_trigger_and_a_test_fires_nothing() {
    let database = Database::new().await;
    let viewer = Login::new(&database, "schedules_viewer", "mill_viewer").await;
    let inbox = "CREATE TABLE inbox AS SELECT 1 AS id; GRANT SELECT ON inbox TO mill_test_operator";
    database.execute(inbox).await;
    schedule(&database, "s", "trigger(table: public.inbox, rows: 100)", "SELECT 1", "").await;
    let worker = Worker::start(&database, &FLAGS);
    planned(&database, "s").await;
    drop(worker);
    let console = Console::start(&database, &[]).await;
    let viewer_console = Console::start_at(&database, &viewer.url(), &[]).await;
    let page = console.get("/schedules/detail?name=s").await.body;
    assert!(page.contains("Dry run") && !page.contains("fire now"), "{page}");
    let body = viewer_console.get("/schedules/detail?name=s").await.body;
    assert!(!body.contains("method=\"post\""), "the page offers a viewer an action: {body}");
    let tested = console.post("/schedules/test", "name=s").await.body;
    for text in ["the schedule would not fire now", "pending rows 1 &#60; 100", "1 pending row"] {
        assert!(tested.contains(text), "{text} in {tested}");
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.runs").await, 0);

    assert_eq!(console.post("/schedules/enable", "name=s&enabled=false").await.status, 303);
    assert!(console.get("/schedules/detail?name=s").await.body.contains(">Enable</button>"));
    assert_eq!(console.post("/schedules/enable", "name=s&enabled=true").await.status, 303);
    let started = console.post("/schedules/run-now", "name=s").await;
    assert!(started.headers.contains("location: /runs/1"), "{}", started.body);
    let refused = console.post("/schedules/run-now", "name=s").await;
    assert_eq!(refused.status, 422, "a run is in progress: {}", refused.body);
    assert_eq!(console.post("/schedules/run-now", "name=s&force=true").await.status, 303);
    for path in ["/schedules/run-now", "/schedules/test"] {
        assert_eq!(console.post(path, "name=nobody").await.status, 404, "{path}");
    }
    assert_eq!(console.post("/schedules/enable", "name=nobody&enabled=true").await.status, 404);
    let acts: i64 = database.value("SELECT count(*) FROM mill.audit WHERE actor = 'console'").await;
    assert_eq!(acts, 4);
    drop((console, viewer_console));
    viewer.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_tried_started_and_controlled_on_the_page_of_its_schedule() {
    let database = Database::new().await;
    schedule(&database, "s", "daily(03:00, zone: Europe/Berlin)", "SELECT 1", "").await;
    schedule(&database, "m", "manual", "SELECT 1", "").await;
    let console = Console::start(&database, &[]).await;
    assert!(!console.get("/schedules/detail?name=m").await.body.contains("Backfill"));
    let form = "name=s&from=2026-01-01T03:00&to=2026-01-10T02:59:59&max_running=2";
    let tried = console.post("/schedules/backfill", &format!("{form}&dry_run=true")).await.body;
    assert!(tried.contains("the backfill has 9 instants"), "{tried}");
    assert!(
        tried.contains("Thu 2026-01-01 03:00:00 CET to Fri 2026-01-09 03:00:00 CET"),
        "{tried}"
    );
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.backfills").await, 0);
    assert_eq!(console.post("/schedules/backfill", form).await.status, 303);
    let kept = "SELECT concat_ws(' ', from_at AT TIME ZONE 'UTC', to_at AT TIME ZONE 'UTC', max_running, state)
        FROM mill.backfills";
    let wanted = "2026-01-01 02:00:00 2026-01-10 01:59:59 2 ";
    assert_eq!(database.value::<String>(kept).await, format!("{wanted}running"));
    let id: i64 = database.value("SELECT id FROM mill.backfills").await;
    for (action, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let page = console.get("/schedules/detail?name=s").await.body;
        assert!(page.contains(&format!("value=\"{action}\"")), "{page}");
        let form = format!("id={id}&action={action}");
        assert_eq!(console.post("/schedules/change-backfill", &form).await.status, 303);
        assert_eq!(database.value::<String>(kept).await, format!("{wanted}{state}"));
    }
    let page = console.get("/api/v1/schedules/detail?name=s").await.body;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["backfills"][0]["state"], "cancelled");
    let refused =
        console.post("/schedules/change-backfill", &format!("id={id}&action=pause")).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let empty = "name=s&from=2026-01-01T04:00&to=2026-01-01T05:00";
    assert_eq!(console.post("/schedules/backfill", empty).await.status, 400);
    let nobody = console.post("/schedules/change-backfill", "id=7&action=pause").await;
    assert_eq!(nobody.status, 404);
}
