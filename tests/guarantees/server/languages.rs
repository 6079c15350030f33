//! A server whose messages are not English: the outcomes of attempts, and what the tools say about the fleet, do
//! not depend on the language.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::{Cluster, Options};
use futures_util::future::join_all;

use crate::harness::private::server;
use crate::harness::{Database, Program, Worker, eventually};

const LANGUAGES: [&str; 4] = ["de_DE", "ru_RU", "zh_CN", "ja_JP"];

/// A folder with the locales that could be built. Removed on drop.
struct Locales(PathBuf);

impl Locales {
    /// Builds the locales, which need not be installed: their sources suffice.
    fn build() -> Self {
        let folder =
            std::env::temp_dir().join(format!("pgmill-test-locales-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let build = |language: &str| {
            let place = folder.join(format!("{language}.UTF-8"));
            let arguments = ["-c", "-i", language, "-f", "UTF-8"];
            Command::new("localedef").args(arguments).arg(&place).stderr(Stdio::null()).spawn()
        };
        // Without its locale, a language is skipped.
        for built in LANGUAGES.map(build).into_iter().flatten() {
            let _ = built.wait_with_output();
        }
        Self(folder)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Locales {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Tasks that fail or are ended in every way that the worker tells apart: name, statement, options.
const TASKS: [(&str, &str, &str); 9] = [
    (
        "a warning",
        "DO $$BEGIN RAISE WARNING 'w'; RAISE NOTICE 'n'; RAISE EXCEPTION 'x'; END$$",
        "max_attempts => 1",
    ),
    ("a syntax error", "SELEC 1", "max_attempts => 1"),
    ("a transaction block", "VACUUM", "max_attempts => 1"),
    (
        "a race",
        "DO $$BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END$$",
        "max_attempts => 1, retry_interval => '0'",
    ),
    ("a time limit", "SELECT pg_sleep(60)", "max_attempts => 1, timeout => '50 ms'"),
    ("ended", "SELECT pg_sleep(601)", "max_attempts => 1"),
    ("ended in autocommit", "SELECT pg_sleep(602)", "max_attempts => 1, mode => 'autocommit'"),
    ("ended, at most once", "SELECT pg_sleep(603)", "at_most_once => true, mode => 'autocommit'"),
    ("cancelled", "SELECT pg_sleep(604)", "max_attempts => 3"),
];

/// Returns the outcomes of all tasks, without texts.
async fn outcomes(database: &Database) -> String {
    let mut worker = Worker::start(database, &["--readers", "6"]);
    for (name, statement, options) in TASKS {
        database.enqueue(statement, &format!(", name => '{name}', {options}")).await;
    }
    let sleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
        AND query LIKE '%pg_sleep(60_)%' AND pid <> pg_backend_pid()";
    eventually("four tasks sleep", async || database.value::<i64>(sleep).await == 4).await;
    database.execute("SELECT mill.cancel(id) FROM mill.tasks WHERE name = 'cancelled'").await;
    let ended = "SELECT pg_terminate_backend(session_pid) FROM mill.tasks WHERE name LIKE 'ended%'";
    database.execute(ended).await;
    let ends = format!("SELECT count(*) = {} FROM mill.attempts WHERE final", TASKS.len());
    eventually("all tasks have ended", async || database.value(&ends).await).await;
    assert!(worker.terminate().await.success());
    let found = "SELECT string_agg(concat_ws(' ', name, outcome, sqlstate, final,
            (SELECT string_agg(n->>'severity', ',') FROM jsonb_array_elements(notices::jsonb) AS n)), E'\\n'
            ORDER BY name, attempt)
        FROM mill.attempts";
    database.value(found).await
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_do_not_depend_on_the_language_of_the_server() {
    let locales = Locales::build();
    let mut options = Options::new(server());
    options.fsync = false;
    options.variables = vec![("LOCPATH".to_owned(), locales.path().display().to_string())];
    let cluster = Cluster::start(options).unwrap();
    // A copy of a database takes less time than the installation of the schema.
    let empty = Database::new_in(cluster.url("postgres")).await;
    let translated = server_translates(empty.major().await);
    let english = outcomes(&empty.copy().await).await;
    for wanted in
        ["ended failed 57P01 t", "ended in autocommit failed 57P01 t", "unknown", "cancelled"]
    {
        assert!(english.contains(wanted), "{english}");
    }
    let ran = join_all(LANGUAGES.map(|language| in_language(&empty, language, &english))).await;
    assert!(
        !translated || ran.contains(&true),
        "a server with translations has run in one of them"
    );
}

/// Returns whether the server has messages in other languages, and the locales for them can be built.
fn server_translates(major: i32) -> bool {
    let has = |folder: &str, name: &str| Path::new(folder).join(name).exists();
    LANGUAGES.iter().any(|language| {
        let short = language.split('_').next().unwrap_or_default();
        has("/usr/share/i18n/locales", language)
            && [language, short].iter().any(|name| {
                has(
                    &format!("/usr/share/locale/{name}/LC_MESSAGES"),
                    &format!("postgres-{major}.mo"),
                )
            })
    })
}

/// Compares the outcomes with those in English. Returns whether the server has messages in the language.
async fn in_language(empty: &Database, language: &str, english: &str) -> bool {
    let database = empty.copy().await;
    let set = format!("ALTER DATABASE {} SET lc_messages = '{language}.UTF-8'", database.name());
    if let Err(error) = database.client().batch_execute(&set).await {
        println!("{language}: not available: {error:?}");
        return false;
    }
    let session = database.connect().await;
    let error = session.batch_execute("SELECT 1 / 0").await.unwrap_err();
    if error.as_db_error().unwrap().message() == "division by zero" {
        println!("{language}: not available: the server has no translation");
        return false;
    }
    assert_eq!(outcomes(&database).await, english, "{language}");
    for (arguments, code) in
        [(&["status"][..], 0), (&["failures"], 0), (&["task", "show", "999"], 4)]
    {
        let (ended, stdout, stderr) = Program::pgmill(&database, arguments).run().await;
        assert_eq!(ended, code, "{language} {arguments:?}: {stdout}{stderr}");
    }
    let unknown_zone =
        ["group", "set", "night", "--active", "01:00-05:00", "--zone", "Europe/Berlim"];
    let (_, _, stderr) = Program::pgmill(&database, &unknown_zone).run().await;
    assert!(stderr.contains("did you mean Europe/Berlin?"), "{language}: {stderr}");
    println!("{language}: the same outcomes");
    true
}
