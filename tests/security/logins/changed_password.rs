//! Each new session reads user and password again from the files that contain them. So a fleet needs no
//! restart when they change.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use conninfo::{ConnectionSource, ConnectionTarget, Environment};
use tokio_postgres::error::SqlState;

use crate::harness::database::open;
use crate::harness::login::{Login, PASSWORD};
use crate::harness::{Database, Program, Worker, eventually};

const NEW: &str = "changed-for-a-test";

/// A folder for the files of a test. Removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(database: &Database) -> Self {
        let folder = std::env::temp_dir().join(format!("pgmill-{}", database.name()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// Replaces a file that only this user may read, in one step.
    fn put(&self, name: &str, text: &str) -> String {
        let (path, new) = (self.0.join(name), self.0.join("new"));
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(new, &path).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn set_password(database: &Database, login: &Login<'_>, password: &str) {
    database.execute(&format!("ALTER ROLE {} PASSWORD '{password}'", login.name)).await;
}

/// Ends all sessions of a login, as after a change of its password.
async fn end_sessions(database: &Database, login: &Login<'_>) {
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'",
        login.name
    );
    database.execute(&end).await;
}

/// Returns the parts of a connection string that contain no user and no password.
fn place(database: &Database) -> (String, String, String) {
    let url = database.url();
    let (_, place) = url.rsplit_once('@').unwrap();
    let (host, rest) = place.split_once(':').unwrap();
    let (port, name) = rest.split_once('/').unwrap();
    (host.to_owned(), port.to_owned(), name.to_owned())
}

/// A way to give a password: writes its file, and returns the connection string or its file.
type Given = fn(&Folder, &Database, &Login<'_>, &str) -> (ConnectionSource, Environment);

fn url_file(
    folder: &Folder,
    database: &Database,
    login: &Login<'_>,
    password: &str,
) -> (ConnectionSource, Environment) {
    let path = folder.put("url", &database.url_as(&login.name, password));
    (ConnectionSource::File(path.into()), Environment::default())
}

/// The password file that a connection string, or `PGPASSFILE`, names.
fn password_file(
    folder: &Folder,
    database: &Database,
    login: &Login<'_>,
    password: &str,
) -> (ConnectionSource, Environment) {
    let path = folder.put("pgpass", &format!("*:*:*:{}:{password}\n", login.name));
    let (host, port, name) = place(database);
    let text = format!("host={host} port={port} dbname={name} user={}", login.name);
    let environment = Environment::from_variables([("PGPASSFILE", path)], None);
    (ConnectionSource::Text(text), environment)
}

fn service_file(
    folder: &Folder,
    database: &Database,
    login: &Login<'_>,
    password: &str,
) -> (ConnectionSource, Environment) {
    let (host, port, name) = place(database);
    let path = folder.put(
        "service",
        &format!(
            "[app]\nhost={host}\nport={port}\ndbname={name}\nuser={}\npassword={password}\n",
            login.name
        ),
    );
    let environment = Environment::from_variables([("PGSERVICEFILE", path)], None);
    (ConnectionSource::Text("service=app".to_owned()), environment)
}

#[tokio::test]
async fn every_new_session_reads_the_files_again() {
    let database = Database::new().await;
    let login = Login::new(&database, "etl", "").await;
    for (kind, give) in [
        ("url file", url_file as Given),
        ("password file", password_file),
        ("service file", service_file),
    ] {
        set_password(&database, &login, PASSWORD).await;
        let folder = Folder::new(&database);
        let (source, environment) = give(&folder, &database, &login, PASSWORD);
        let target = ConnectionTarget::from_source(Some(source), &environment).unwrap();
        let target = target.with_application_name("named").with_option("work_mem", "7MB");
        drop(conninfo::open(&target).await.unwrap());

        set_password(&database, &login, NEW).await;
        let error = conninfo::open(&target).await.err().unwrap();
        assert_eq!(error.sqlstate(), Some(&SqlState::INVALID_PASSWORD), "{kind}: {error}");
        give(&folder, &database, &login, NEW);
        // What the program itself has set is kept.
        let shown = "SELECT current_setting('application_name') || current_setting('work_mem')";
        let row = open(&target).await.query_one(shown, &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "named7MB", "{kind}");
    }
    login.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_goes_on_after_a_change_of_its_logins() {
    let database = Database::new().await;
    let control = Login::new(&database, "control", "mill_worker").await;
    let tasks = Login::new(&database, "tasks", "").await;
    let other = Login::new(&database, "other", "").await;
    let etl = Login::new(&database, "etl", "").await;
    database.execute("SELECT mill.set_profile('etl', allowed => ARRAY[current_user])").await;
    let folder = Folder::new(&database);
    let put = |name: &str, login: &Login<'_>, password: &str| {
        folder.put(name, &database.url_as(&login.name, password))
    };
    let control_url = put("control", &control, PASSWORD);
    let tasks_url = put("tasks", &tasks, PASSWORD);
    let config = folder.put(
        "worker.toml",
        &format!("[run_as.etl]\nurl_file = \"{}\"\nreaders = 1\n", put("etl", &etl, PASSWORD)),
    );
    let files = ["--database-url-file", &control_url, "--task-url-file", &tasks_url];
    let mut worker = Worker::start(&database, &[&files[..], &["--config", &config]].concat());
    worker.until_logged("ready").await;
    let user_of = async |options: &str| {
        let record = database.run("SELECT session_user", options).await;
        assert_eq!(record.outcome, "succeeded", "{record:?}");
        record.row(0)[0].to_owned()
    };
    assert_eq!(user_of("").await, tasks.name);

    // While the file is absent, or contains something else, readers only wait.
    set_password(&database, &tasks, NEW).await;
    std::fs::remove_file(Path::new(&tasks_url)).unwrap();
    end_sessions(&database, &tasks).await;
    worker.until_logged("connection string file").await;
    folder.put("tasks", "half of a ");
    worker.until_logged("not a connection string").await;
    put("tasks", &tasks, NEW);
    assert_eq!(user_of("").await, tasks.name);
    // The file may also name another login.
    put("tasks", &other, PASSWORD);
    // A reader that has read the file before may connect after the others have lost their sessions.
    let other_session = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    eventually("all readers have the other login", async || {
        end_sessions(&database, &tasks).await;
        database.rows(other_session, &[&other.name]).await[0].get::<_, i64>(0) == 8
    })
    .await;
    assert_eq!(user_of("").await, other.name);

    set_password(&database, &etl, NEW).await;
    put("etl", &etl, NEW);
    end_sessions(&database, &etl).await;
    assert_eq!(user_of(", run_as => 'etl'").await, etl.name);

    set_password(&database, &control, NEW).await;
    put("control", &control, NEW);
    let before: i64 = database.value("SELECT heartbeat FROM mill.workers").await;
    end_sessions(&database, &control).await;
    assert_eq!(user_of("").await, other.name);
    let heartbeat =
        format!("SELECT coalesce(bool_and(heartbeat > {before}), false) FROM mill.workers");
    eventually("the worker sends heartbeats again", async || database.value(&heartbeat).await)
        .await;
    assert_eq!(worker.ended_already(), None);
    worker.terminate().await;
    let log = worker.log();
    assert!(!log.contains(NEW) && !log.contains(PASSWORD), "{log}");
    for login in [control, tasks, other, etl] {
        login.gone().await;
    }
}

/// `enqueue --wait` reconnects when it has lost its session.
#[tokio::test(flavor = "multi_thread")]
async fn enqueue_reconnects_with_the_new_password() {
    let database = Database::new().await;
    let worker = Worker::start(&database, &["--readers", "1"]);
    worker.until_logged("ready").await;
    let login = Login::new(&database, "app", "mill_producer, mill_viewer").await;
    let folder = Folder::new(&database);
    let url = folder.put("url", &database.url_as(&login.name, PASSWORD));
    database.execute("SELECT pg_advisory_lock(1)").await;
    let statement = "SELECT pg_advisory_xact_lock(1)";
    let arguments = ["--database-url-file", &url, "--wait", statement];
    let mut command = Program::enqueue(&database, &arguments).into_command();
    let mut child = command.env_remove("DATABASE_URL").spawn().unwrap();
    eventually("the task waits", async || {
        database.value("SELECT EXISTS (SELECT FROM mill.tasks WHERE state = 'running')").await
    })
    .await;
    set_password(&database, &login, NEW).await;
    std::fs::remove_file(&url).unwrap();
    end_sessions(&database, &login).await;
    let sessions =
        format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{}'", login.name);
    eventually("its session has ended", async || database.value::<i64>(&sessions).await == 0).await;
    folder.put("url", &database.url_as(&login.name, NEW));
    database.execute("SELECT pg_advisory_unlock(1)").await;
    let mut status = None;
    eventually("enqueue ends", async || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(0));
    login.gone().await;
}
