use jiff::civil::{Date, date};
use queue::citus::{Citus, CitusNode};
use queue::doctor::{OldestDatabase, Override, Setting};
use queue::heartbeat::UnconnectedReaders;

use super::server::ID_LIMIT;
use super::*;
use crate::problems::{Severity, tests::worker};

fn setting(name: &str, value: &str) -> Setting {
    Setting { name: name.to_owned(), value: value.to_owned() }
}

fn on_role(name: &str, value: &str) -> Override {
    Override {
        setting: setting(name, value),
        database: None,
        role: Some("etl".to_owned()),
        only_tasks: false,
    }
}

fn statuses(findings: &[Finding]) -> Vec<CheckStatus> {
    findings.iter().map(|finding| finding.status).collect()
}

#[test]
fn a_server_that_may_lose_data_is_a_problem() {
    let findings = settings(&[setting("fsync", "off"), setting("autovacuum", "on")]);
    assert_eq!(statuses(&findings), [CheckStatus::Problem]);
    assert_eq!(findings[0].message, "fsync = off");
    assert_eq!(statuses(&settings(&[setting("fsync", "on")])), [CheckStatus::Ok]);
}

#[test]
fn a_disabled_timeout_is_ok() {
    for off in ["0", "0s", "0ms"] {
        assert_eq!(statuses(&overrides(&[on_role("statement_timeout", off)])), [CheckStatus::Ok]);
    }
    let findings = overrides(&[on_role("statement_timeout", "30s")]);
    assert_eq!(findings[0].message, "statement_timeout = 30s for role etl");
    assert_eq!(findings[0].status, CheckStatus::Warning);
    let read_only = overrides(&[on_role("default_transaction_read_only", "on")]);
    assert_eq!(statuses(&read_only), [CheckStatus::Problem]);
}

#[test]
fn a_time_limit_of_a_task_login_is_a_warning() {
    let of = |name: &str, value: &str| {
        overrides(&[Override { only_tasks: true, ..on_role(name, value) }]).remove(0)
    };
    let finding = of("transaction_timeout", "2s");
    assert_eq!(finding.status, CheckStatus::Warning);
    assert_eq!(
        finding.message,
        "transaction_timeout = 2s for role etl: ends tasks that take longer, as failed attempts"
    );
    assert!(finding.hint.unwrap().contains("--timeout"));
    for name in ["statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"]
    {
        assert_eq!(of(name, "2s").status, CheckStatus::Warning, "{name}");
        assert_eq!(of(name, "0").status, CheckStatus::Ok, "{name}");
    }
    // These are decisions about the tasks.
    for (name, value) in [
        ("lock_timeout", "2s"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
    ] {
        assert_eq!(of(name, value).status, CheckStatus::Ok, "{name}");
    }
}

fn server_of(version_number: i32, today: Date, in_recovery: bool) -> Finding {
    let version = format!("{}.{}", version_number / 10_000, version_number % 10_000);
    let (role, connections_allowed, connections) = (String::new(), 97, 1);
    server(&Server {
        version_number,
        version,
        today,
        in_recovery,
        role,
        connections_allowed,
        connections,
    })
}

#[test]
fn old_and_unsupported_servers_are_reported() {
    let of = |number, in_recovery| server_of(number, date(2026, 1, 1), in_recovery);
    assert_eq!(of(130_010, false).status, CheckStatus::Problem);
    assert_eq!(of(150_018, false).status, CheckStatus::Ok);
    assert_eq!(of(150_018, true).status, CheckStatus::Problem);
    assert_eq!(of(150_099, false).status, CheckStatus::Ok);
    let newer = of(190_000, false);
    assert_eq!(newer.status, CheckStatus::Warning);
    assert_eq!(newer.message, "PostgreSQL 19.0, newer than the versions tested with pgmill");
}

#[test]
fn a_server_that_receives_no_fixes_or_lacks_many_is_a_warning() {
    let last_day = date(2026, 11, 12);
    assert_eq!(server_of(140_023, last_day, false).status, CheckStatus::Ok);
    let ended = server_of(140_002, last_day.tomorrow().unwrap(), false);
    assert_eq!(ended.status, CheckStatus::Warning);
    assert_eq!(ended.message, "PostgreSQL 14.2, which receives no fixes since 2026-11-12");
    assert!(ended.hint.unwrap().contains("PostgreSQL 18"));

    let now = date(2026, 11, 29);
    assert_eq!(server_of(150_015, now, false).status, CheckStatus::Ok);
    let old = server_of(150_014, now, false);
    assert_eq!(old.status, CheckStatus::Warning);
    assert_eq!(old.message, "PostgreSQL 15.14, 4 minor releases older than 15.18");
    assert!(old.hint.unwrap().contains("current minor release of PostgreSQL 15"));
}

#[test]
fn a_server_that_runs_out_of_transaction_ids_is_a_problem() {
    let of = |age| transaction_ids(&OldestDatabase { name: "shop".to_owned(), age });
    assert_eq!(of(200_000_000).status, CheckStatus::Ok);
    assert_eq!(of(1_000_000_001).status, CheckStatus::Problem);
    let near = of(ID_LIMIT - 1);
    assert_eq!(
        near.message,
        "the oldest row of database shop is 2144 million transactions old, of 2144 million at most"
    );
    assert!(of(ID_LIMIT).message.ends_with("refuses every transaction that writes"));
}

#[test]
fn the_holder_of_the_horizon_is_described() {
    let mut holder = HorizonHolder {
        kind: "session".to_owned(),
        name: "4711".to_owned(),
        user: Some("ann".to_owned()),
        application: Some("psql".to_owned()),
        age_xids: Some(12),
        since: None,
        age_seconds: Some(400.0),
        state: Some("idle in transaction".to_owned()),
        query: Some("SELECT\n 1".to_owned()),
    };
    let finding = horizon(std::slice::from_ref(&holder), 0);
    assert_eq!(
        finding.message,
        "session 4711, user ann, application psql, open for 6m 40s, 12 transactions old, \
         idle in transaction: SELECT 1"
    );
    holder.age_seconds = Some(3.0);
    assert_eq!(horizon(std::slice::from_ref(&holder), 0).status, CheckStatus::Ok);
    assert_eq!(horizon(std::slice::from_ref(&holder), 3).status, CheckStatus::NotChecked);
    holder.kind = "replication slot".to_owned();
    holder.age_xids = Some(LONG_OPEN_XIDS + 1);
    for (state, named) in [("active", false), ("inactive", true)] {
        holder.state = Some(state.to_owned());
        let hint = horizon(std::slice::from_ref(&holder), 0).hint.unwrap();
        assert_eq!(hint.contains("idle_replication_slot_timeout"), named, "{state}");
    }
}

#[test]
fn a_missing_partition_is_a_problem() {
    let mut tables = Tables {
        live_rows: 1,
        dead_rows: 0,
        bytes: 0,
        vacuumed_at: None,
        missing_days: Vec::new(),
        days_ahead: 7,
        days_overdue: 0,
    };
    assert_eq!(history(&tables).status, CheckStatus::Ok);
    tables.days_overdue = 2;
    assert_eq!(history(&tables).message, "2 days of history are older than history_retention");
    tables.missing_days = vec!["2026-12-01".to_owned()];
    assert_eq!(history(&tables).status, CheckStatus::Problem);
}

#[test]
fn many_mostly_urgent_tasks_are_a_warning() {
    let waiting = |normal, critical| {
        let status = |priority, pending| PriorityStatus {
            priority,
            weight: 1.0,
            pending,
            running: 0,
            oldest_pending_age: None,
        };
        [status(Priority::Normal, normal), status(Priority::Critical, critical)]
    };
    assert_eq!(priorities(&waiting(50, 51)).status, CheckStatus::Warning);
    assert_eq!(priorities(&waiting(50, 50)).status, CheckStatus::Ok);
    assert_eq!(priorities(&waiting(1, 20)).status, CheckStatus::Ok);
}

#[test]
fn a_coordinator_of_citus_that_may_repeat_effects_is_a_problem() {
    let sound =
        Citus { coordinator: true, has_address: true, nodes: 2, two_phase: true, recovers: true };
    let node = |setting: Option<&str>| CitusNode {
        name: "db1:5432".to_owned(),
        max_prepared_transactions: setting.map(str::to_owned),
    };
    let found = |state: &Citus, setting| {
        let mut findings = citus(state, Ok(&vec![node(setting)]));
        let Finding { status, message, hint, .. } = findings.remove(0);
        (status, message, hint.unwrap_or_default())
    };
    let ok = (CheckStatus::Ok, "2 nodes; tasks commit in two phases".to_owned(), String::new());
    assert_eq!(found(&sound, Some("100")), ok);
    let one_phase = Citus { two_phase: false, ..sound };
    let (status, _, hint) = found(&one_phase, Some("100"));
    assert_eq!((status, hint.as_str()), (CheckStatus::Problem, "pgmill init"));
    let (_, _, hint) = found(&Citus { has_address: false, ..one_phase }, Some("100"));
    assert!(hint.contains("citus_set_coordinator_host"), "{hint}");
    for (state, setting, status) in [
        (Citus { nodes: 0, ..one_phase }, Some("100"), CheckStatus::Ok),
        (Citus { coordinator: false, ..sound }, Some("100"), CheckStatus::Problem),
        (Citus { recovers: false, ..sound }, Some("100"), CheckStatus::Problem),
        (sound, Some("0"), CheckStatus::Problem),
        (sound, None, CheckStatus::NotChecked),
    ] {
        assert_eq!(found(&state, setting).0, status, "{state:?} {setting:?}");
    }
}

#[test]
fn a_sequence_that_is_behind_is_a_problem() {
    assert_eq!(sequences(&[]).status, CheckStatus::Ok);
    let behind =
        SequenceBehind { sequence: "mill.tasks_id_seq".to_owned(), next_id: 1, highest_id: 4711 };
    let finding = sequences(&[behind]);
    assert_eq!(finding.status, CheckStatus::Problem);
    assert_eq!(
        finding.message,
        "behind their tables: mill.tasks_id_seq returns 1 next, and 4711 exists"
    );
    assert!(finding.hint.unwrap().contains("SELECT mill.repair_sequences()"));
}

#[test]
fn an_error_that_a_live_worker_meets_again_and_again_is_a_problem() {
    let mut failing = worker(1, 0);
    failing.error = Some("claims: permission denied for table tasks".to_owned());
    for (seconds, status) in [(1.0, CheckStatus::Ok), (60.0, CheckStatus::Problem)] {
        failing.error_seconds = Some(seconds);
        assert_eq!(workers(&[failing.clone()]).status, status);
    }
    assert!(workers(&[failing]).message.ends_with("claims: permission denied for table tasks"));
}

#[test]
fn a_login_whose_readers_cannot_connect_is_a_problem() {
    let unconnected = |failed| UnconnectedReaders {
        profile: "p".to_owned(),
        login: "etl".to_owned(),
        readers: 8,
        connected: 8 - failed,
        failed,
        error: "too many connections for role \"etl\"".to_owned(),
        seconds: 1.0,
    };
    let with = |failed: Option<u32>| {
        let mut worker = worker(9, 0);
        worker.profiles = [(String::new(), 1), ("p".to_owned(), 8)].into();
        worker.unconnected = failed.map(unconnected).into_iter().collect();
        worker
    };
    assert_eq!(workers(&[with(None)]).status, CheckStatus::Ok);
    for (fleet, severity, number) in [
        (vec![with(Some(8))], Severity::Critical, "8 of 8"),
        (vec![with(Some(8)), with(None)], Severity::Warning, "8 of 16"),
        (vec![with(Some(3)), with(Some(8))], Severity::Warning, "11 of 16"),
    ] {
        let problems = unconnected_logins(&fleet);
        let finding = workers(&fleet);
        assert_eq!((problems.len(), problems[0].severity), (1, severity));
        let expected = format!(
            "{number} readers of login etl (profile p) cannot connect: too many connections for role \"etl\""
        );
        assert_eq!((finding.status, finding.message), (CheckStatus::Problem, expected));
    }
}
