//! Each `sslmode` connects to the same servers as in `psql`, and uses TLS in the same cases.
//!
//! Uses a private cluster with a private certificate authority. Every row goes through `psql` and
//! through `conninfo`. Both must end in the same way: in a session with TLS, in a session without
//! TLS, or refused.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

mod cluster;
mod hostile;

use std::time::Duration;

use cluster::{Cluster, Outcome, TLS_IN_USE, ask};
use conninfo::{ConnectError, cancel, open, pool_error, pool_manager};
use deadpool_postgres::{Pool, RecyclingMethod, Runtime, Timeouts};
use tokio_postgres::error::SqlState;

const MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];
const ROOTS: [&str; 4] = [
    "",
    "sslrootcert={dir}/ca.crt",
    "sslrootcert={dir}/stranger.crt",
    "sslrootcert={dir}/missing.crt",
];

fn product(users: &[&str], roots: &[&str]) -> Vec<(String, &'static str)> {
    let mut rows = Vec::new();
    for mode in MODES {
        for host in ["localhost", "127.0.0.1"] {
            for user in users {
                for root in roots {
                    rows.push((format!("host={host} user={user} sslmode={mode} {root}"), "home"));
                }
            }
        }
    }
    rows
}

/// Cases that are not in the product of modes, hosts, users and roots.
const SINGLE_ROWS: &[(&str, &str)] = &[
    // The default mode, and roots in the default place.
    ("host=localhost user=any", "home"),
    ("host=localhost user=any", "home-with-root"),
    ("host=localhost user=any", "home-with-strange-root"),
    ("host=localhost user=secure", "home-with-strange-root"),
    ("host=localhost user=any sslmode=require", "home-with-root"),
    ("host=localhost user=any sslmode=require", "home-with-strange-root"),
    ("host=localhost user=any sslmode=verify-full", "home-with-root"),
    // The name that is verified is the name of the host, whatever address is dialled.
    ("host=localhost hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("host=elsewhere hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("host=elsewhere hostaddr=127.0.0.1 user=any sslmode=verify-ca", "home-with-root"),
    ("hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("hostaddr=127.0.0.1 user=any sslmode=require", "home"),
    // Sockets have no TLS.
    ("host={dir} user=any sslmode=require", "home"),
    ("host={dir} user=any", "home"),
    // Passwords and channel binding.
    ("host=localhost user=password password='open sesame'", "home"),
    ("host=localhost user=password password=wrong", "home"),
    ("host=localhost user=password", "home"),
    ("host=localhost user=password password='open sesame' channel_binding=require", "home"),
    ("host=localhost user=password password='open sesame' channel_binding=disable", "home"),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         sslmode=verify-full sslrootcert={dir}/ca.crt",
        "home",
    ),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         sslmode=disable",
        "home",
    ),
    ("host=localhost user=any channel_binding=require", "home"),
    // Client certificates.
    ("host=localhost user=cert", "home"),
    ("host=localhost user=cert sslcert={dir}/client.crt sslkey={dir}/client.key", "home"),
    (
        "host=localhost user=cert sslmode=verify-full sslrootcert={dir}/ca.crt \
         sslcert={dir}/client.crt sslkey={dir}/client.key",
        "home",
    ),
    ("host=localhost user=secure sslcert={dir}/client.crt sslkey={dir}/client.key", "home"),
    (
        "host=localhost user=cert sslmode=require sslcert={dir}/client.crt sslkey={dir}/loose.key",
        "home",
    ),
    ("host=localhost user=any sslmode=require sslcert={dir}/client.crt", "home"),
    ("host=localhost user=any sslmode=require sslcert={dir}/missing.crt", "home"),
    (
        "host=localhost user=cert sslmode=require sslcert={dir}/server.crt sslkey={dir}/server.key",
        "home",
    ),
    // Versions.
    ("host=localhost user=any ssl_min_protocol_version=TLSv1.3", "home"),
    ("host=localhost user=any sslmode=require ssl_max_protocol_version=TLSv1.2", "home"),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         ssl_max_protocol_version=TLSv1.2",
        "home",
    ),
    // Unknown role, unknown database.
    ("host=localhost user=nobody", "home"),
    ("host=localhost user=any dbname=nothing", "home"),
    // Kinds of servers: this one is a primary and takes writes.
    ("host=localhost user=any target_session_attrs=read-write", "home"),
    ("host=localhost user=any target_session_attrs=read-only", "home"),
    ("host=localhost user=any target_session_attrs=primary", "home"),
    ("host=localhost user=any target_session_attrs=standby", "home"),
    ("host=localhost user=any target_session_attrs=prefer-standby", "home"),
    (
        "host=localhost user=any target_session_attrs=read-only \
         options='-c default_transaction_read_only=on'",
        "home",
    ),
    (
        "host=localhost user=any target_session_attrs=read-write \
         options='-c default_transaction_read_only=on'",
        "home",
    ),
];

#[test]
fn every_sslmode_ends_as_in_psql() {
    let Some(cluster) = Cluster::start("modes") else { return };
    let mut rows = product(&["any", "secure", "plain"], &ROOTS);
    rows.extend(SINGLE_ROWS.iter().map(|(row, home)| ((*row).to_owned(), *home)));
    let counts = cluster.compare("a server with TLS", &rows);
    assert!(counts.iter().all(|times| *times > 10), "the table is lopsided: {counts:?}");

    cluster.restart("ssl=off");
    cluster.compare("a server without TLS", &product(&["any", "secure"], &ROOTS[..2]));

    let own = cluster.path("self");
    cluster.restart(&format!("ssl=on -c ssl_cert_file={own}.crt -c ssl_key_file={own}.key"));
    cluster.compare(
        "a server with a self-signed certificate",
        &product(&["any"], &["", "sslrootcert={dir}/self.crt", "sslrootcert={dir}/ca.crt"]),
    );
    let pinned = "host=localhost user=any sslmode=verify-full sslrootcert={dir}/self.crt";
    assert_eq!(cluster.psql(pinned, "home").0, Outcome::WithTls);

    // Older releases of openssl make a certificate of version 1 here. A server can use it, and pgmill
    // accepts it if it does not have to verify it.
    let own = cluster.path("version1");
    cluster.restart(&format!("ssl=on -c ssl_cert_file={own}.crt -c ssl_key_file={own}.key"));
    let mut rows = product(&["any"], &[""]);
    let bound = "host=localhost user=password password='open sesame' channel_binding=require";
    rows.push((bound.to_owned(), "home"));
    let counts = cluster.compare("a server with a certificate of version 1", &rows);
    assert_eq!(
        counts[Outcome::WithTls as usize],
        5,
        "prefer and require at two names, and the last"
    );
}

#[test]
fn errors_contain_the_servers_message_and_no_password() {
    let Some(cluster) = Cluster::start("errors") else { return };
    let error = |text: &str| cluster.session(text).err().unwrap();

    let wrong = error("user=password password=hunter2");
    assert_eq!(wrong.sqlstate(), Some(&SqlState::INVALID_PASSWORD));
    assert!(wrong.to_string().contains("password authentication failed"), "{wrong}");
    assert!(!wrong.is_usage() && !format!("{wrong:?}").contains("hunter2"));

    let none = error("user=password");
    assert!(none.to_string().contains("none was given"), "{none}");
    let stranger = error("user=any sslmode=verify-full sslrootcert={dir}/stranger.crt");
    assert!(stranger.hint().unwrap().contains("sslrootcert"), "{stranger}");
    let missing = error("user=any sslmode=verify-ca sslrootcert={dir}/missing.crt");
    assert!(missing.is_usage(), "{missing}");
    let system = error("user=any sslrootcert=system");
    assert!(!matches!(system, ConnectError::Refused { .. }), "{system}");
}

#[test]
fn options_and_application_name_hold_from_the_start() {
    let Some(cluster) = Cluster::start("options") else { return };
    let target = cluster.target("host=localhost user=any options='-c geqo=off'", "home").unwrap();
    let target = target.with_option("search_path", r#"pg_catalog, "a b\c""#);
    let target = target.with_application_name("the name");
    let (client, connection) = cluster.block_on(open(&target)).unwrap();
    cluster.drive(connection, async {
        client.batch_execute("SET search_path = other; RESET ALL").await.unwrap();
        assert_eq!(ask(&client, "SHOW search_path").await, r#"pg_catalog, "a b\c""#);
        assert_eq!(ask(&client, "SHOW geqo").await, "off");
        assert_eq!(ask(&client, "SHOW application_name").await, "the name");
    });
}

#[test]
fn a_cancel_request_arrives_under_each_mode() {
    let Some(cluster) = Cluster::start("cancel") else { return };
    for row in ["sslmode=disable", "sslmode=prefer", "sslmode=verify-full"] {
        let row = format!("host=localhost user=any {row} sslrootcert={{dir}}/ca.crt");
        let target = cluster.target(&row, "home").unwrap();
        let (client, connection) = cluster.block_on(open(&target)).unwrap();
        let (watcher, watched) = cluster.session("user=any").unwrap();
        let token = client.cancel_token();
        let watch = async {
            let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            while ask(&watcher, sleeping).await == "0" {}
            cancel(&token, &target).await.unwrap();
        };
        cluster.drive(connection, async {
            let watch = async {
                tokio::select! { () = watch => {}, ended = watched => panic!("{ended:?}") }
            };
            let (slept, ()) = tokio::join!(client.batch_execute("SELECT pg_sleep(3600)"), watch);
            assert_eq!(slept.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
        });
    }
}

#[test]
fn a_pool_follows_the_same_rules() {
    let Some(cluster) = Cluster::start("pool") else { return };
    let pool = |text: &str| {
        let target = cluster.target(&format!("host=localhost {text}"), "home").unwrap();
        Pool::builder(pool_manager(&target, RecyclingMethod::Fast))
            .max_size(1)
            .runtime(Runtime::Tokio1)
            .build()
            .unwrap()
    };
    cluster.block_on(async {
        let good = pool("user=secure sslmode=verify-full sslrootcert={dir}/ca.crt");
        assert_eq!(ask(&good.get().await.unwrap(), TLS_IN_USE).await, "t");
        let _only = good.get().await.unwrap();
        let at_once = Timeouts { wait: Some(Duration::ZERO), ..Timeouts::new() };
        let busy = pool_error(good.timeout_get(&at_once).await.unwrap_err());
        let expected = "no session with the database within the time limit: \
                        all sessions of this program are in use";
        assert_eq!(busy.to_string(), expected);

        let refused = pool_error(pool("user=password password=x").get().await.unwrap_err());
        assert_eq!(refused.sqlstate(), Some(&SqlState::INVALID_PASSWORD));
        let untrusted = pool("user=any sslmode=verify-ca sslrootcert={dir}/stranger.crt");
        let untrusted = pool_error(untrusted.get().await.unwrap_err());
        assert!(matches!(untrusted, ConnectError::Tls { .. }), "{untrusted:?}");
    });
}
