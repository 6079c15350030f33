use queue::citus::{Citus, CitusNode};
use queue::doctor::{OldestDatabase, Override, Setting};

use super::server::ID_LIMIT;
use super::*;

fn setting(name: &str, value: &str) -> Setting {
    Setting { name: name.to_owned(), value: value.to_owned() }
}

fn on_role(name: &str, value: &str) -> Override {
    Override { setting: setting(name, value), database: None, role: Some("etl".to_owned()) }
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
fn old_and_unsupported_servers_are_reported() {
    let of = |version_number, in_recovery| {
        server(&Server {
            version_number,
            version: String::new(),
            in_recovery,
            role: String::new(),
            connections_allowed: 97,
            connections: 1,
        })
        .status
    };
    assert_eq!(of(130_010, false), CheckStatus::Problem);
    assert_eq!(of(150_018, false), CheckStatus::Ok);
    assert_eq!(of(150_018, true), CheckStatus::Problem);
    assert_eq!(of(990_000, false), CheckStatus::Warning);
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
    assert_eq!(horizon(&[holder], 3).status, CheckStatus::NotChecked);
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
    };
    assert_eq!(history(&tables).status, CheckStatus::Ok);
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
