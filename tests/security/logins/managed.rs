//! A fleet on a small, managed server: nobody of the fleet is a superuser or may create roles, the
//! server has few connections, and it accepts only verified TLS.

use std::path::Path;
use std::process::Command;

use cluster::Account;

use crate::harness::{PrivateDatabase, Program, Worker, amount, eventually};

/// What the administrator of the server does, as docs/database.md describes.
const ADMINISTRATOR: &str = "
DROP SCHEMA mill CASCADE;
REVOKE pg_signal_backend FROM mill_worker;
CREATE ROLE app LOGIN PASSWORD 'x'; CREATE ROLE fleet LOGIN PASSWORD 'x'; CREATE ROLE etl LOGIN PASSWORD 'x';
CREATE ROLE producer LOGIN PASSWORD 'x'; CREATE ROLE operator LOGIN PASSWORD 'x';
GRANT mill_owner TO app; GRANT mill_worker TO fleet; GRANT mill_producer TO producer; GRANT mill_operator TO operator;
GRANT etl TO fleet;
DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO app', current_database()); END $$;
CREATE TABLE effects (n int); GRANT INSERT ON effects TO etl";

/// Only TLS is accepted, except for the superuser, as which the test connects.
const HBA: &str = "hostnossl all postgres all scram-sha-256\nhostssl all all all scram-sha-256\n";

/// Turns TLS on; returns the path of the root certificate.
fn accept_only_tls(private: &PrivateDatabase) -> String {
    let directory = private.cluster.directory();
    let (key, certificate) = (directory.join("server.key"), directory.join("server.crt"));
    let openssl = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=db"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(openssl.status.success(), "{}", String::from_utf8_lossy(&openssl.stderr));
    let account = Account::of_server().unwrap();
    let own = |path: &Path| account.chown(path).unwrap();
    own(&key);
    own(&certificate);
    std::fs::write(directory.join("data/pg_hba.conf"), HBA).unwrap();
    certificate.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_needs_no_superuser_no_createrole_few_connections_and_verified_tls() {
    let private = PrivateDatabase::new(&[("max_connections", "60"), ("fsync", "off")]).await;
    let database = &private.database;
    database.execute(ADMINISTRATOR).await;
    let root = accept_only_tls(&private);
    let files = private.cluster.directory();
    let (key, certificate) = (files.join("server.key"), files.join("server.crt"));
    for setting in [
        format!("ssl_key_file = '{}'", key.display()),
        format!("ssl_cert_file = '{}'", certificate.display()),
        "ssl = on".to_owned(),
    ] {
        database.execute(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    database.execute("SELECT pg_reload_conf()").await;
    let secure = |user: &str| {
        let tls = format!("sslmode=verify-full&sslrootcert={root}");
        format!("{}?{tls}", database.url_as(user, "x"))
    };
    // The server refuses a session without TLS as soon as it has read its files.
    eventually("only TLS is accepted", async || {
        let plain = format!("{}?sslmode=disable", database.url_as("producer", "x"));
        Program::enqueue(database, &["SELECT 1"]).at(&plain).run().await.0 != 0
    })
    .await;

    Program::pgmill(database, &["init"]).at(&secure("app")).succeeds().await;
    let etl = secure("etl");
    let flags = ["--readers", "8", "--task-url", &etl];
    let mut workers = [(); 2].map(|()| Worker::start_at(&secure("fleet"), &flags));
    for worker in &workers {
        worker.until_logged("ready").await;
    }
    let count = amount(50, 500);
    database.enqueue_many(count, "INSERT INTO effects VALUES (1)").await;
    let enqueued = Program::enqueue(database, &["SELECT 1"]).at(&secure("producer")).run().await;
    assert_eq!(enqueued.0, 0, "{}", enqueued.2);
    database.until_empty().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effects").await, i64::from(count));

    // The workers may end sessions of the task login, because their login is a member of it.
    let hangs =
        "SELECT pg_sleep(CASE current_setting('mill.attempt') WHEN '1' THEN 3600 ELSE 0 END)";
    let id = database.enqueue(hangs, "").await;
    database.until_state(id, "running").await;
    let holder = "SELECT s.pid FROM mill.tasks t JOIN mill.worker_starts s ON s.id = t.claimed_by";
    let holder = database.value::<i32>(holder).await.cast_unsigned();
    workers.iter_mut().find(|worker| worker.pid() == holder).unwrap().kill();
    assert_eq!(database.outcome(id).await, "succeeded");

    let doctor = Program::pgmill(database, &["doctor"]).at(&secure("operator")).run().await.1;
    let of = |check: &str| doctor.lines().find(|line| line.contains(check)).unwrap_or_default();
    assert!(of(" connections ").starts_with("ok "), "{doctor}");
    let missing = "problem  roles            mill_worker is not a member of pg_signal_backend";
    assert!(doctor.contains(missing), "{doctor}");
}
