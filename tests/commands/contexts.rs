//! Commands on the databases of a contexts file.

use serde_json::Value;

use crate::harness::login::Login;
use crate::harness::{Database, Program};
use crate::runs::apply::Folder;

/// A server that refuses connections.
pub(crate) const DOWN: &str = "postgres://postgres@127.0.0.1:1/postgres";

/// Returns the folder of a contexts file with these databases.
pub(crate) fn contexts(databases: &[(&str, &str)]) -> Folder {
    let section = |(name, url): &(&str, &str)| format!("[contexts.\"{name}\"]\nurl = \"{url}\"\n");
    Folder::new(&[("contexts.toml", &databases.iter().map(section).collect::<String>())])
}

async fn run(database: &Database, folder: &Folder, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Program::pgmill(database, arguments).into_command();
    command.env_remove("DATABASE_URL").env("NO_COLOR", "1");
    command.env("PGMILL_CONTEXTS", format!("{}/contexts.toml", folder.path()));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// Returns the fields of the line of a table that begins with this field.
fn fields<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.into_iter().find(|line| line.first() == Some(&first)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_names_a_database_by_service_file_or_string() {
    let (one, other) = (Database::new().await, Database::new().await);
    one.enqueue("SELECT 1", ", queue => 'first'").await;
    other.enqueue("SELECT 1", ", queue => 'second'").await;
    let service = format!("[\"it's\" \\x]\n{}\n", key_values(&one));
    let folder = Folder::new(&[("service.conf", &service), ("other.url", &other.url())]);
    let path = folder.path().to_owned();
    folder.write(
        "contexts.toml",
        &format!(
            "[contexts.one]\nservice = '''\"it's\" \\x'''\n\
             [contexts.other]\nurl_file = '{path}/other.url'\nenvironment = 'prod'\n\
             [contexts.lost]\nservice = 'nowhere'\n"
        ),
    );
    let queues = async |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command =
            Program::pgmill(&one, &[arguments, &["queue", "list"]].concat()).into_command();
        command.env_remove("DATABASE_URL").env("PGSERVICEFILE", format!("{path}/service.conf"));
        command.env("PGMILL_CONTEXTS", format!("{path}/contexts.toml"));
        command.envs(variables.iter().copied());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    assert!(queues(&["--context", "one"], &[]).await.contains("first"));
    assert!(queues(&[], &[("PGMILL_CONTEXT", "other")]).await.contains("second"));
    // A flag takes precedence over a variable, and an empty variable counts as not set.
    let (one_url, other_url) = (one.url(), other.url());
    let (url, flag) = (("DATABASE_URL", other_url.as_str()), ["--context", "one"]);
    assert!(queues(&flag, &[url]).await.contains("first"));
    assert!(queues(&[], &[("PGMILL_CONTEXT", ""), url]).await.contains("second"));
    let flag = ["--database-url", one_url.as_str()];
    assert!(queues(&flag, &[("PGMILL_CONTEXT", "other")]).await.contains("first"));
    for (arguments, variables, expected) in [
        (&["--context", "one", "--database-url", "x"][..], &[][..], "cannot be combined"),
        (&[], &[url, ("PGMILL_CONTEXT", "one")], "PGMILL_CONTEXT and DATABASE_URL cannot be"),
        (&["--all-contexts", "--context", "one"], &[], "cannot be combined"),
        (&["--context", "eu\u{1b}[2J"], &[], "no context \"eu\\u{1b}[2J\""),
        (&["--context", "x"], &[], "The file has: one, other, lost."),
        (&["--context", "lost"], &[], "context lost: definition of service \"nowhere\" not found"),
    ] {
        let printed = queues(arguments, variables).await;
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}

/// Returns the connection of a database as lines of a service file.
fn key_values(database: &Database) -> String {
    let url = database.url();
    let (login, place) = url.rsplit_once('@').unwrap();
    let (host, dbname) = place.split_once('/').unwrap();
    let (host, port) = host.split_once(':').unwrap();
    let login = login.trim_start_matches("postgres://").trim_start_matches("postgresql://");
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    format!("host={host}\nport={port}\ndbname={dbname}\nuser={user}\npassword={password}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_contexts_connects_to_no_database_and_shows_no_password() {
    let database = Database::new().await;
    let secret = "host=127.0.0.1 port=1 dbname=d user=u password=hunter2";
    let folder = contexts(&[("down", secret), ("wrong", "hots=hunter2")]);
    let (code, stdout, stderr) = run(&database, &folder, &["context", "list"]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("host=127.0.0.1 port=1 dbname=d user=u"), "{stdout}");
    assert!(stdout.contains("unknown connection option \"hots\""), "{stdout}");
    let (_, json, _) = run(&database, &folder, &["context", "list", "--json"]).await;
    assert!(!(stdout + &stderr + &json).contains("hunter2"));
    let names = run(&database, &folder, &["__complete", "2", "pgmill", "--context", ""]).await;
    assert_eq!(names.1, "down\nwrong\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_on_all_contexts_prints_one_table_with_totals() {
    let (one, other) = (Database::new().await, Database::new().await);
    one.enqueue_many(3, "SELECT 1").await;
    let id = other.enqueue("SELECT 'found'", ", queue => 'etl'").await;
    other.execute("SELECT mill.pause('etl')").await;
    let folder = contexts(&[("b.1", &one.url()), ("a_2", &other.url())]);
    let (code, stdout, stderr) = run(&one, &folder, &["queue", "list", "--all-contexts"]).await;
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert_eq!(fields(&stdout, "DATABASE")[..3], ["DATABASE", "QUEUE", "PENDING"]);
    // The order is that of the file.
    assert_eq!(fields(&stdout, "b.1")[..3], ["b.1", "default", "3"]);
    let last = stdout.lines().last().unwrap();
    assert!(last.starts_with("a_2") && last.contains("etl"), "{stdout}");

    let (code, stdout, _) = run(&one, &folder, &["--all-contexts", "status"]).await;
    assert_eq!(code, 0);
    assert_eq!(fields(&stdout, "total")[4], "4", "{stdout}");
    assert!(stdout.contains("pgmill --context a_2 queue resume etl"), "{stdout}");
    let single = run(&one, &folder, &["--context", "a_2", "status"]).await.1;
    assert!(single.contains("pgmill --context a_2 queue resume etl"), "{single}");

    // An id exists in some of the databases.
    one.execute("TRUNCATE mill.tasks CASCADE").await;
    let id = id.to_string();
    let (code, stdout, stderr) = run(&one, &folder, &["--all-contexts", "why", &id]).await;
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.starts_with("==> a_2 <==\n"), "{stdout}");
    let (code, _, stderr) = run(&one, &folder, &["--all-contexts", "why", "999999"]).await;
    assert_eq!(code, 4, "{stderr}");
    let (_, stdout, stderr) = run(&one, &folder, &["--all-contexts", "limit", "list"]).await;
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", "b.1, a_2: there are no limits\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_database_is_reported_and_hides_no_other() {
    let (one, empty) = (Database::new().await, Database::empty().await);
    let viewer = Login::new(&one, "viewer", "mill_viewer").await;
    one.enqueue("SELECT 1", "").await;
    let folder = contexts(&[("gone", DOWN), ("good", &viewer.url()), ("empty", &empty.url())]);
    for verb in [
        &["queue", "list"][..],
        &["status"],
        &["task", "list"],
        &["history"],
        &["run", "list"],
        &["schedule", "list"],
        &["worker", "list"],
        &["priority", "list"],
        &["audit"],
        &["schedule", "calendar"],
        &["job", "list"],
        &["failures"],
        &["durations"],
    ] {
        let (code, _, stderr) = run(&one, &folder, &[&["--all-contexts"], verb].concat()).await;
        assert_eq!(code, 75, "{verb:?} {stderr}");
        assert!(stderr.contains("error: gone: "), "{verb:?} {stderr}");
        assert!(stderr.contains("error: empty: ") && stderr.contains("pgmill init"), "{stderr}");
        assert!(!stderr.contains("error: good"), "{verb:?} {stderr}");
        let arguments = [&["--all-contexts", "--json"], verb].concat();
        let (code, stdout, _) = run(&one, &folder, &arguments).await;
        assert_eq!(code, 75);
        let documents: Value = serde_json::from_str(&stdout).unwrap();
        let field = |name: &str| [0, 1, 2].map(|n| documents[n][name].clone());
        assert_eq!(field("context"), ["gone", "good", "empty"]);
        assert_eq!(field("exit_code"), [75, 0, 5]);
        assert_eq!([0, 1, 2].map(|n| documents[n]["document"].is_null()), [true, false, true]);
        assert_eq!([0, 1, 2].map(|n| documents[n]["error"].is_null()), [false, true, false]);
    }
    let (code, stdout, _) = run(&one, &folder, &["--all-contexts", "doctor"]).await;
    assert_eq!(code, 75);
    assert_eq!(fields(&stdout, "empty").len(), 5, "{stdout}");
    assert!(stdout.contains("problem"), "the missing schema: {stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_ends_at_the_time_limit_and_its_query_is_cancelled() {
    let (one, locked) = (Database::new().await, Database::new().await);
    let folder = contexts(&[("one", &one.url()), ("locked", &locked.url())]);
    let holder = locked.connect().await;
    holder.batch_execute("BEGIN; LOCK TABLE mill.tasks").await.unwrap();
    let (code, stdout, stderr) = run(&one, &folder, &["--all-contexts", "task", "list"]).await;
    assert_eq!(code, 75, "{stdout}{stderr}");
    assert!(stderr.contains("error: locked: no answer within 20 s"), "{stderr}");
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'pgmill'";
    crate::harness::eventually("the query is cancelled", async || {
        locked.value::<i64>(waiting).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_changes_something_is_refused_on_all_contexts() {
    let database = Database::new().await;
    let folder = contexts(&[("one", &database.url())]);
    for refused in [
        &["task", "cancel", "1"][..],
        &["pause"],
        &["resume"],
        &["init"],
        &["top"],
        &["queue", "purge", "x", "--yes"],
        &["run", "show", "1", "--watch"],
        &["apply", "x"],
        &["health"],
        &["schedule", "run-now", "x"],
        &["worker", "drain", "--host", "x"],
        &["completions", "bash"],
        &["target", "check", "x"],
    ] {
        let arguments = [&["--all-contexts"], refused].concat();
        let (code, stdout, stderr) = run(&database, &folder, &arguments).await;
        assert_eq!((code, stdout.as_str()), (2, ""), "{refused:?}: {stderr}");
        assert!(stderr.contains("--context"), "{refused:?}: {stderr}");
    }
    let windows = "SELECT count(*) FROM mill.maintenance_windows";
    assert_eq!(database.value::<i64>(windows).await, 0);
}
