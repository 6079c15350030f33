//! No password from any source appears in a log, a metric, an error, a process list or a row, also
//! after failures.

use std::path::Path;

use crate::harness::http::{free_address, get};
use crate::harness::login::Login;
use crate::harness::{Database, Program, Worker};

const SECRET: &str = "Xyzzy-4711";

/// Returns connection strings with the secret, each of which leads to a different error.
fn broken(good: &str) -> Vec<String> {
    let (_, place) = good.rsplit_once('@').unwrap();
    vec![
        format!("postgres://somebody:{SECRET}@{place}"),
        format!("postgres://postgres:{SECRET}@{place}?no_such_option={SECRET}"),
        format!("postgres://postgres:{SECRET}@127.0.0.1:1/none"),
        format!("postgres://postgres:{SECRET}@127.0.0.1:port/none"),
        format!("postgres://postgres:{SECRET}@[127.0.0.1/none"),
        format!("postgres://postgres:{SECRET}%zz@127.0.0.1/none"),
        format!("host=127.0.0.1 port=1 user=postgres password={SECRET}"),
        format!("host=127.0.0.1 password='{SECRET}"),
        format!("host=127.0.0.1 password={SECRET} port=none"),
        format!("host=127.0.0.1 password={SECRET} sslmode=sometimes"),
        format!("host=no.such.host.invalid connect_timeout=1 password={SECRET}"),
    ]
}

fn assert_silent(what: &str, text: &str) {
    assert!(!text.contains(SECRET), "the secret in {what}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_error_never_contains_the_password() {
    let database = Database::new().await;
    for url in broken(&database.url()) {
        for program in [
            Program::enqueue(&database, &["SELECT 1"]),
            Program::pgmill(&database, &["status"]),
            Program::pgmill(&database, &["doctor", "--json"]),
        ] {
            let (code, stdout, stderr) = program.at(&url).run().await;
            assert_ne!(code, 0, "{url}");
            assert_silent(&url, &(stdout + &stderr));
        }
        // If the database is unreachable, the worker retries or ends. In both cases it logs the
        // error.
        let mut worker = Worker::start_at(&url, &["--log", "trace", "--readers", "1"]);
        worker.until_logged("error: ").await;
        worker.kill();
        assert_silent(&url, &worker.log());
        let mut worker =
            Worker::start_with(&database.url(), &["--readers", "1"], &[("PGMILL_TASK_URL", &url)]);
        worker.until_logged("error: ").await;
        worker.kill();
        assert_silent(&url, &worker.log());
    }
}

/// The name of a database that does not exist is in the error of the server.
#[tokio::test]
async fn a_uri_with_a_misspelled_scheme_is_not_shown_as_the_name_of_a_database() {
    let database = Database::new().await;
    let url = database.url();
    let (login, place) = url.split_once("://").unwrap().1.rsplit_once('@').unwrap();
    let (user, password) = login.split_once(':').unwrap();
    let (host, port) = place.split_once('/').unwrap().0.split_once(':').unwrap();
    let wrong = format!("postgressql://{user}:{SECRET}@{place}");
    for (text, name) in [(wrong.as_str(), ""), ("", wrong.as_str())] {
        for program in [
            Program::enqueue(&database, &["SELECT 1"]),
            Program::pgmill(&database, &["status"]),
            Program::pgmill(&database, &["doctor", "--json"]),
        ] {
            let mut command = program.at(text).into_command();
            command.env("PGHOST", host).env("PGPORT", port).env("PGDATABASE", name);
            let output = command.env("PGUSER", user).env("PGPASSWORD", password).output().unwrap();
            let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_silent(&wrong, &shown);
            assert!(output.status.code() == Some(2) && shown.contains("URI"), "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_at_work_shows_no_password_anywhere() {
    let database = Database::new().await;
    let control = Login::new(&database, "control", "mill_worker, mill_viewer").await;
    let tasks = Login::new(&database, "tasks", "").await;
    let etl = Login::new(&database, "etl", "").await;
    database
        .execute(&format!(
            "ALTER ROLE {} PASSWORD '{SECRET}'; ALTER ROLE {} PASSWORD '{SECRET}'; ALTER ROLE {} PASSWORD '{SECRET}';
             SELECT mill.set_profile('etl', allowed => ARRAY[current_user])",
            control.name, tasks.name, etl.name
        ))
        .await;
    let url = |login: &Login<'_>| database.url_as(&login.name, SECRET);
    let config = std::env::temp_dir().join(format!("pgmill-{}.toml", database.name()));
    std::fs::write(&config, "[run_as.etl]\nurl_env = \"ETL_URL\"\nreaders = 1\n").unwrap();
    let path = config.to_str().unwrap();
    let http = free_address();
    let flags = ["--config", path, "--readers", "1", "--log", "trace", "--http", &http];
    let (task_url, etl_url) = (url(&tasks), url(&etl));
    let variables = [("PGMILL_TASK_URL", task_url.as_str()), ("ETL_URL", etl_url.as_str())];
    let mut worker = Worker::start_with(&url(&control), &flags, &variables);
    worker.until_logged("ready").await;
    for options in ["", ", run_as => 'etl'"] {
        assert_eq!(database.run("SELECT 1", options).await.outcome, "succeeded");
        assert_eq!(
            database.run("SELECT 1/0", &format!("{options}, max_attempts => 1")).await.outcome,
            "failed"
        );
    }
    // Lost sessions and failed reconnects are logged with their errors. Change the password in a
    // transaction of its own: a session that is terminated before the change has committed can
    // reconnect.
    database.execute(&format!("ALTER ROLE {} PASSWORD 'changed'", etl.name)).await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'",
        etl.name
    );
    database.execute(&end).await;
    worker.until_logged("could not open a session for tasks").await;
    assert_silent("the metrics", &get(&http, "/metrics").await.unwrap().body);
    let process = format!("/proc/{}/cmdline", worker.pid());
    if Path::new(&process).exists() {
        assert_silent("the arguments", &String::from_utf8_lossy(&std::fs::read(&process).unwrap()));
    }
    let shown = "SELECT string_agg(a::text, ' ') FROM pg_stat_activity a WHERE application_name LIKE 'pgmill%'";
    assert_silent("the server's sessions", &database.value::<String>(shown).await);
    let tables =
        "SELECT format('SELECT coalesce(string_agg(x::text, '' ''), '''') FROM mill.%I x', relname)
        FROM pg_class WHERE relnamespace = 'mill'::regnamespace AND relkind IN ('r', 'p')";
    for row in database.rows(tables, &[]).await {
        assert_silent(row.get(0), &database.value::<String>(row.get(0)).await);
    }
    assert!(worker.terminate().await.success());
    assert_silent("the log", &worker.log());
    let print = ["--config", path, "--print-config"];
    let mut printed = Worker::start_with(&url(&control), &print, &variables);
    assert!(printed.ended().await.success());
    assert_silent("the configuration", &printed.log());
    std::fs::remove_file(&config).unwrap();
    for login in [control, tasks, etl] {
        login.drop().await;
    }
}

/// A file with a connection string, removed on drop.
struct UrlFile(std::path::PathBuf);

impl UrlFile {
    fn new(database: &Database, name: &str, contents: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pgmill-{}-{name}", database.name()));
        std::fs::write(&path, contents).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for UrlFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_reads_its_connection_string_from_a_file() {
    let database = Database::new().await;
    let tasks = Login::new(&database, "tasks", "").await;
    let file = UrlFile::new(&database, "queue", &format!("{}\n", database.url()));
    let task_file = UrlFile::new(&database, "tasks", &format!("{}\n", tasks.url()));
    let config = UrlFile::new(
        &database,
        "worker.toml",
        &format!("database_url_file = \"{}\"\n", file.path()),
    );
    let variables = [("PGMILL_TASK_URL_FILE", task_file.path())];
    let mut worker =
        Worker::start_with("", &["--config", config.path(), "--readers", "1"], &variables);
    // A flag takes precedence over a variable; this address has no listener.
    let nowhere = "postgres://postgres@127.0.0.1:1/postgres";
    let flags = ["--database-url-file", file.path(), "--wait", "SELECT current_user"];
    let shown = Program::enqueue(&database, &flags).at(nowhere).succeeds().await;
    assert!(shown.contains(&tasks.name), "{shown}");
    let mut history = Program::pgmill(&database, &["history", "--json"]).at("").into_command();
    let output = history.env("PGMILL_DATABASE_URL_FILE", file.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("succeeded"), "{output:?}");
    let flags = ["history", "--json", "--database-url-file", file.path()];
    let shown = Program::pgmill(&database, &flags).at(nowhere).succeeds().await;
    assert!(shown.contains("succeeded"), "{shown}");
    assert!(worker.terminate().await.success());
    tasks.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_and_a_file_from_the_same_place_are_refused_by_name() {
    let database = Database::new().await;
    let file = UrlFile::new(&database, "twice", &database.url());
    let url = database.url();
    let config = format!("task_url = \"{url}\"\ntask_url_file = \"{}\"\n", file.path());
    let config = UrlFile::new(&database, "twice.toml", &config);
    let exclude = |text: &str, file: &str| format!("{text} and {file} cannot be combined");
    let flags = ["--database-url", &url, "--database-url-file", file.path()];
    let variables = [("PGMILL_DATABASE_URL_FILE", file.path())];
    for (mut worker, names) in [
        (Worker::start_at("", &flags), exclude("--database-url", "--database-url-file")),
        (
            Worker::start_with(&url, &[], &variables),
            exclude("DATABASE_URL", "PGMILL_DATABASE_URL_FILE"),
        ),
        (Worker::start_at("", &["--config", config.path()]), exclude("task_url", "task_url_file")),
    ] {
        assert_eq!(worker.ended().await.code(), Some(2));
        assert!(worker.log().contains(&names), "{}", worker.log());
    }
    for program in [
        Program::enqueue(&database, &[&flags[..], &["SELECT 1"]].concat()),
        Program::pgmill(&database, &[&["status"], &flags[..]].concat()),
    ] {
        let (code, _, stderr) = program.at("").run().await;
        assert_eq!(code, 2);
        assert!(stderr.contains(&exclude(flags[0], flags[2])), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_file_is_named_with_a_hint_and_without_its_contents() {
    let database = Database::new().await;
    let word = UrlFile::new(&database, "word", &format!("{SECRET}\n"));
    let missing = word.path().to_owned() + ".none";
    for path in [word.path(), &missing] {
        let flags = ["--database-url-file", path];
        let mut worker = Worker::start_at("", &flags);
        assert_eq!(worker.ended().await.code(), Some(2));
        let task_flags = ["--task-url-file", path];
        let mut of_tasks = Worker::start(&database, &task_flags);
        assert_eq!(of_tasks.ended().await.code(), Some(2));
        let mut reported = vec![worker.log(), of_tasks.log()];
        for program in [
            Program::enqueue(&database, &[&flags[..], &["SELECT 1"]].concat()),
            Program::pgmill(&database, &[&["status"], &flags[..]].concat()),
        ] {
            let (code, stdout, stderr) = program.run().await;
            assert_eq!(code, 2);
            reported.push(stdout + &stderr);
        }
        for text in reported {
            assert!(text.contains(path) && text.contains("hint: "), "{text}");
            assert_silent(path, &text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_configuration_names_the_file_and_keeps_its_contents() {
    let database = Database::new().await;
    let url = format!("postgres://postgres:{SECRET}@127.0.0.1/none");
    let file = UrlFile::new(&database, "shown", &url);
    let worker = Worker::program();
    let output = std::process::Command::new(worker)
        .args(["--print-config", "--database-url-file", file.path()])
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = shown.lines().find(|line| line.starts_with("database_url")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["database_url_file", file.path(), "flag"]
    );
    assert_silent("the configuration", &shown);
}

/// A connection string or a URL in the place of something else: the name of a file, of a variable, of a
/// context, of a subcommand.
#[tokio::test(flavor = "multi_thread")]
async fn no_argument_that_may_contain_a_password_is_repeated() {
    let database = Database::new().await;
    let url = format!("postgres://postgres:{SECRET}@127.0.0.1/none");
    let pairs = format!("host=127.0.0.1 user=postgres password={SECRET}");
    let spaced = format!("postgres://postgres:x {SECRET}@127.0.0.1/none");
    let of_programs = [
        (Program::pgmill as fn(&Database, &[&str]) -> Program, vec!["status"]),
        (Program::enqueue, vec!["SELECT 1"]),
    ];
    for value in [&url, &pairs, &spaced] {
        for (program, arguments) in &of_programs {
            for wrong in [
                vec!["--database-url-file", value],
                vec!["--no-such-flag", value],
                vec!["--timeout", value],
                vec![value, "--wait=soon"],
                vec!["--file", value],
                vec!["--params-file", value],
                vec!["--context", value],
                vec!["--contexts-file", value],
            ] {
                let all = [&arguments[..], &wrong[..]].concat();
                let (code, stdout, stderr) = program(&database, &all).run().await;
                assert_ne!(code, 0, "{all:?}");
                assert_silent(&format!("{all:?}"), &(stdout + &stderr));
            }
        }
        for name in ["PGSERVICE", "PGSERVICEFILE", "PGPASSFILE", "PGSSLROOTCERT", "PGSSLCERT"] {
            let mut command = Program::pgmill(&database, &["status"]).into_command();
            command.env(name, value).env("PGSERVICE", "x").env("PGSSLMODE", "verify-ca");
            let output = command.env(name, value).output().unwrap();
            assert!(!output.status.success(), "{name}");
            assert_silent(
                name,
                &String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
            );
        }
        let (code, stdout, stderr) = Program::pgmill(&database, &[value, "status"]).run().await;
        assert_ne!(code, 0);
        assert_silent("the name of a subcommand", &(stdout + &stderr));
    }
}

/// As [`no_argument_that_may_contain_a_password_is_repeated`], for the settings of a worker.
#[tokio::test(flavor = "multi_thread")]
async fn no_setting_that_may_contain_a_password_is_repeated() {
    let database = Database::new().await;
    let url = format!("postgres://postgres:{SECRET}@127.0.0.1/none");
    let hook = format!("https://hooks.example/{SECRET}");
    let pairs = format!("host=127.0.0.1 user=postgres password={SECRET}");
    let spaced = format!("postgres://postgres:x {SECRET}@127.0.0.1/none");
    let config = std::env::temp_dir().join(format!("pgmill-{}-wrong.toml", database.name()));
    let path = config.to_str().unwrap();
    let webhook = |key: &str, value: &str| {
        format!("[destinations.hook]\nkind = \"webhook\"\n{key} = {value:?}\n")
    };
    for text in [
        format!("[run_as.etl]\nurl_file = {url:?}\n"),
        format!("[run_as.etl]\nurl_env = {url:?}\n"),
        format!("[targets.dwh]\nurl_file = {spaced:?}\n"),
        format!("task_url_file = {url:?}\n"),
        format!("poll_interval = {url:?}\n"),
        format!("queues = [{pairs:?}]\n"),
        format!("otlp_endpoint = {url:?}\n"),
        format!("otlp_headers_file = {hook:?}\notlp_endpoint = \"http://127.0.0.1:1\"\n"),
        webhook("url_file", &hook),
        webhook("url", "https://hooks.example\"\nheaders_file = \"x://u:Xyzzy-4711@h"),
        webhook("ca_file", &hook) + "url = \"https://hooks.example\"\n",
    ] {
        std::fs::write(&config, &text).unwrap();
        let flags = ["--config", path, "--readers", "1"];
        let mut worker = Worker::start_at(&database.worker_url(), &flags);
        assert!(!worker.ended().await.success(), "{text}");
        assert_silent(&text, &worker.log());
    }
    for flags in [
        vec!["--config", &url],
        vec!["--database-url-file", &url],
        vec!["--task-url-file", &pairs],
        vec!["--readers", &url],
        vec!["--http", &spaced],
        vec!["--console", "127.0.0.1:0", "--access-file", &url],
    ] {
        let mut worker = Worker::start_at(&database.worker_url(), &flags);
        assert!(!worker.ended().await.success(), "{flags:?}");
        assert_silent(&format!("{flags:?}"), &worker.log());
    }
    std::fs::write(&config, format!("task_url_file = {url:?}\notlp_headers_file = {hook:?}\n"))
        .unwrap();
    let endpoint = format!("http://user:{SECRET}@127.0.0.1:4318");
    let output = std::process::Command::new(Worker::program())
        .args(["--print-config", "--config", path, "--otlp-endpoint", &endpoint])
        .args(["--database-url-file", &url])
        .output()
        .unwrap();
    assert!(output.status.success());
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_silent("the configuration", &shown);
    assert_eq!(shown.matches("(set)").count(), 4, "{shown}");
    std::fs::remove_file(&config).unwrap();
}
