//! The check of a coordinator of Citus.

use queue::QueueError;
use queue::citus::{Citus, CitusNode};
use terminal::counted;

use super::{CheckStatus, Finding};

/// Checks that tasks which write distributed tables have their effects exactly once.
#[must_use]
pub fn citus(citus: &Citus, nodes: Result<&Vec<CitusNode>, &QueueError>) -> Vec<Finding> {
    const CHECK: &str = "citus";
    if !citus.coordinator {
        return vec![
            Finding::problem(CHECK, "this database is a data node, not the coordinator")
                .hint("Connect to the coordinator."),
        ];
    }
    let mut findings = Vec::new();
    if citus.may_repeat_effects() {
        let message = "tasks do not commit in two phases: a crash could repeat their effects";
        findings.push(Finding::problem(CHECK, message).hint(citus.hint()));
    }
    if !citus.recovers {
        let message = "citus.recover_2pc_interval = -1: transactions that a crash leaves prepared \
                       keep their locks";
        findings.push(Finding::problem(CHECK, message).hint("Set it to 1min."));
    }
    match nodes {
        Ok(nodes) => findings.extend(nodes.iter().filter_map(|node| of_node(CHECK, node))),
        Err(error) => {
            let message = format!("settings of the nodes: {error}");
            findings.push(Finding::new(CHECK, CheckStatus::NotChecked, message));
        }
    }
    if findings.is_empty() {
        let nodes = counted(citus.nodes.unsigned_abs(), "node");
        let how = if citus.two_phase { "tasks commit in two phases" } else { "nothing to check" };
        findings.push(Finding::ok(CHECK, format!("{nodes}; {how}")));
    }
    findings
}

fn of_node(check: &'static str, node: &CitusNode) -> Option<Finding> {
    let name = &node.name;
    let (status, message, hint) = match node.max_prepared_transactions.as_deref() {
        Some("0") => (
            CheckStatus::Problem,
            format!("max_prepared_transactions = 0 on node {name}"),
            "Tasks that write to this node fail. Set it to max_connections.",
        ),
        None => (
            CheckStatus::NotChecked,
            format!("settings of node {name}: the connection failed"),
            "Requires that your login can connect to the node through Citus.",
        ),
        Some(_) => return None,
    };
    Some(Finding::new(check, status, message).hint(hint))
}
