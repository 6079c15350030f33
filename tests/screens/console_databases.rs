//! A console with several databases.

use serde_json::json;

use crate::commands::contexts::{DOWN, contexts};
use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::http::Answer;
use crate::harness::login::Login;
use crate::harness::{Database, Program, eventually};

async fn start(database: &Database, databases: &[(&str, &str)], flags: &[&str]) -> Console {
    let folder = contexts(databases);
    let file = format!("{}/contexts.toml", folder.path());
    Console::start(database, &[&["--all-contexts", "--contexts", &file], flags].concat()).await
}

/// Returns the front page, after each database has answered. On a busy machine, a row may reach its time
/// limit.
async fn front_page(console: &Console, path: &str) -> String {
    let mut page = String::new();
    eventually("each database answers", async || {
        page = console.get(path).await.body;
        !page.contains("no answer within")
    })
    .await;
    page
}

/// Returns the row of a database on the front page.
fn row<'a>(page: &'a str, name: &str) -> &'a str {
    let rows = page.split("<tr>").find(|row| row.contains(&format!(">{name}</a>")));
    rows.unwrap_or_else(|| panic!("no row {name}: {page}")).split("</tr>").next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_front_page_has_a_row_for_each_database_and_links_to_its_pages() {
    let (one, other) = (Database::new().await, Database::new().await);
    one.enqueue_many(3, "SELECT 1").await;
    other.enqueue("SELECT 1", ", queue => 'etl', name => '<b>'").await;
    other.execute("SELECT mill.pause('etl')").await;
    let (first, second) = (one.operator_url(), other.operator_url());
    let databases = [("one", first), ("eu.2", second), ("gone", DOWN.to_owned())];
    let databases = databases.each_ref().map(|(name, url)| (*name, url.as_str()));
    for base in ["", "/ops"] {
        let console = start(&one, &databases, &["--base-path", base]).await;
        let page = front_page(&console, &format!("{base}/")).await;
        assert!(row(&page, "one").contains("<td class=\"n\">3</td>"), "{page}");
        assert!(row(&page, "one").contains("severity-critical"), "no worker: {page}");
        let down = row(&page, "gone");
        assert!(down.contains(">down<") && down.contains("Connection refused"), "{down}");
        assert!(
            page.contains("<th scope=\"row\">total</th>")
                && page.contains("<td class=\"n\">4</td>")
        );

        // All links of a database's pages stay below its path, except those to the front page.
        let path = format!("{base}/db/eu.2");
        for screen in ["/", "/tasks", "/queues", "/workers", "/nope", "/tasks/1"] {
            let Answer { body, .. } = console.get(&format!("{path}{screen}")).await;
            assert!(body.contains("/ <strong>eu.2</strong>"), "{screen}: {body}");
            let links = body.split("href=\"/").skip(1).chain(body.split("action=\"/").skip(1));
            for link in links.map(|link| link.split('"').next().unwrap()) {
                let link = format!("/{link}");
                let front = link == format!("{base}/");
                assert!(front || link.starts_with(&format!("{path}/")), "{screen}: {link}");
            }
        }
        let tasks = console.get(&format!("{path}/api/v1/tasks")).await;
        assert!(tasks.body.contains("\"name\":\"<b>\""), "{tasks:?}");
        assert_eq!(console.get(&format!("{path}/static/console.css")).await.status, 200);
        assert_eq!(console.get(&format!("{base}/static/console.css")).await.status, 200);
        assert_eq!(console.get(&format!("{base}/livez")).await.status, 200);

        // A database that is down has pages with navigation, and disturbs no other.
        let page = console.get(&format!("{base}/db/gone/tasks")).await;
        assert_eq!(page.status, 503, "{page:?}");
        assert!(page.body.contains(&format!("href=\"{base}/db/gone/workers\"")), "{page:?}");
        assert!(page.body.contains(&format!("href=\"{base}/\"")), "{page:?}");
        let api = console.get(&format!("{base}/db/gone/api/v1/tasks")).await;
        assert!(api.status == 503 && api.body.starts_with("{\"error\":"), "{api:?}");

        for unknown in
            ["/db/x/", "/db/", "/db", "/tasks", "/api/v1/tasks", "/db/one/../gone/", "/x"]
        {
            let path = format!("{base}{unknown}");
            assert_eq!(console.get(&path).await.status, 404, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_comes_back_is_checked_and_shown() {
    let (one, late) = (Database::new().await, Database::empty().await);
    let urls = (one.operator_url(), late.operator_url());
    let console = start(&one, &[("one", &urls.0), ("late", &urls.1)], &[]).await;
    let page = front_page(&console, "/").await;
    assert!(row(&page, "late").contains("pgmill init"), "{page}");
    assert_eq!(console.get("/db/one/tasks").await.status, 200);
    Program::init(&late).succeeds().await;
    eventually("the database is shown", async || {
        row(&console.get("/").await.body, "late").contains("no problems")
    })
    .await;
    assert_eq!(console.get("/db/late/tasks").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_sign_in_once_and_act_with_their_role_in_each_database() {
    let (one, other) = (Database::new().await, Database::new().await);
    for database in [&one, &other] {
        database.execute("SELECT mill.set_shared_commit('etl', NULL)").await;
    }
    let grants = "mill_viewer, mill_operator";
    let login = Login::new(&one, "console", grants).await;
    let urls = [login.url(), other.url_as(&login.name, crate::harness::login::PASSWORD)];
    let file = TokenFile::new(
        "[[token]]\nname = \"ann\"\ntoken = \"token-of-the-operator\"\nrole = \"mill_operator\"\n\
         [[token]]\nname = \"bob\"\ntoken = \"token-of-the-viewer\"\nrole = \"mill_viewer\"\n",
    );
    let databases = [("one", urls[0].as_str()), ("other", urls[1].as_str())];
    let mut console = start(&one, &databases, &["--access-file", file.path()]).await;
    for path in ["/", "/db/one/", "/db/other/tasks", "/db/x/"] {
        let answer = console.get(path).await;
        assert!(answer.status == 303 && answer.headers.contains("location: /login"), "{answer:?}");
    }
    let refused = console.get("/db/one/api/v1/tasks").await;
    assert_eq!(refused.status, 401, "{refused:?}");
    let host = console.address.clone();
    for (token, person, status) in
        [("token-of-the-operator", "ann", 303), ("token-of-the-viewer", "bob", 403)]
    {
        let cookie = console.sign_in(token, "").await;
        let headers = [("Host", host.as_str()), ("Cookie", cookie.as_str())];
        let front = console.request("GET", "/", &headers, "").await;
        assert!(front.body.contains(&format!("sign out {person}")), "{front:?}");
        // The token in the forms is that of the session, whatever the database.
        let secret = csrf(&front.body).to_owned();
        let cookie = [("Cookie", cookie.as_str())];
        for (database, path) in [(&one, "/db/one"), (&other, "/db/other")] {
            let form = format!("paused=true&csrf={secret}");
            let pause = format!("{path}/queues/etl/pause");
            let forged = console.post_with(&pause, "paused=true&csrf=x", &cookie).await;
            assert_eq!(forged.status, 403, "{forged:?}");
            let answer = console.post_with(&pause, &form, &cookie).await;
            assert_eq!(answer.status, status, "{answer:?}");
            let audited =
                "SELECT count(*) FROM mill.audit WHERE action = 'pause' AND actor = 'console: ann'";
            assert_eq!(database.value::<i64>(audited).await, 1);
        }
        // A console signs out everywhere.
        let forged = console.post_with("/logout", "csrf=x", &cookie).await;
        assert_eq!(forged.status, 403, "{forged:?}");
        let out = console.post_with("/logout", &format!("csrf={secret}"), &cookie).await;
        assert!(out.status == 303 && out.headers.contains("pgmill=; Path=/;"), "{out:?}");
        assert_eq!(console.request("GET", "/db/other/", &headers, "").await.status, 303);
    }
    let bearer = [("Authorization", "Bearer token-of-the-operator")];
    let body = json!({ "queue": "etl", "paused": false });
    let answer = console.post_json("/db/other/api/v1/queues/pause", &body, &bearer).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let paused = "SELECT paused FROM mill.queues WHERE name = 'etl'";
    assert!(one.value::<bool>(paused).await && !other.value::<bool>(paused).await);
    console.terminate().await;
    other.execute(&format!("DROP OWNED BY {}", login.name)).await;
    login.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_database_has_its_environment() {
    let database = Database::new().await;
    let folder = contexts(&[("one", &database.operator_url()), ("two", &database.operator_url())]);
    let url = database.operator_url();
    folder.write(
        "contexts.toml",
        &format!(
            "[contexts.one]\nurl = '{url}'\nenvironment = 'prod'\nenvironment_color = 'red'\n\
             [contexts.two]\nurl = '{url}'\n"
        ),
    );
    let file = format!("{}/contexts.toml", folder.path());
    let flags = ["--all-contexts", "--contexts", &file, "--environment", "all"];
    let console = Console::start(&database, &flags).await;
    let prod = "class=\"environment env-red\"";
    assert!(console.get("/db/one/tasks").await.body.contains(prod));
    assert!(console.get("/db/one/nope").await.body.contains(prod));
    let two = console.get("/db/two/tasks").await.body;
    assert!(two.contains("<title>all: ") && !two.contains(prod), "{two}");
    let front = console.get("/").await.body;
    assert!(front.contains("<title>all: ") && row(&front, "one").contains(prod), "{front}");
    let single = ["--context", "one", "--contexts", &file];
    let console =
        Console::start_with(&database, "", &[&["--listen", "127.0.0.1:0"], &single[..]].concat())
            .await;
    assert!(console.get("/tasks").await.body.contains(prod));
}
