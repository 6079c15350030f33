//! Citus: whether tasks of a coordinator commit in two phases, on which exactly once depends.
//!
//! `schema/43_citus.sql` describes the cause, and installs the trigger.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{first, from_row, one, rows};

const INSTALLED: &str = "SELECT /* queue.citus_installed */ EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') AS installed";

const CITUS: &str = "SELECT /* queue.citus */ EXISTS (SELECT FROM pg_dist_local_group g WHERE g.groupid = 0) AS coordinator,
    EXISTS (SELECT FROM pg_dist_node n WHERE n.groupid = 0) AS has_address,
    (SELECT count(*) FROM pg_dist_node n WHERE n.groupid <> 0) AS nodes,
    EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = to_regclass('mill.tasks')
            AND g.tgname = 'require_two_phase' AND g.tgenabled IN ('O', 'A'))
        AND EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = to_regclass('mill.two_phase'))
        AS two_phase,
    current_setting('citus.recover_2pc_interval') <> '-1' AS recovers";

const NODES: &str = "SELECT /* queue.citus_nodes */ r.nodename || ':' || r.nodeport AS name, CASE WHEN r.success THEN r.result END AS max_prepared_transactions
FROM run_command_on_workers('SHOW max_prepared_transactions') r ORDER BY 1";

/// A database with the extension Citus.
#[derive(Clone, Copy, Debug)]
pub struct Citus {
    /// Whether the database is the coordinator and not a data node.
    pub coordinator: bool,
    /// Whether the nodes know the address of the coordinator.
    pub has_address: bool,
    /// Number of data nodes.
    pub nodes: i64,
    /// Whether every transaction that completes a task commits in two phases.
    pub two_phase: bool,
    /// Whether Citus ends the prepared transactions that a crash leaves behind.
    pub recovers: bool,
}

from_row! { Citus { coordinator, has_address, nodes, two_phase, recovers } }

impl Citus {
    /// Returns whether a crash of the coordinator could repeat the effects of a task.
    #[must_use]
    pub fn may_repeat_effects(&self) -> bool {
        self.coordinator && self.nodes > 0 && !self.two_phase
    }

    /// Returns how to make tasks commit in two phases.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        if self.has_address {
            "pgmill init"
        } else {
            "Run SELECT citus_set_coordinator_host('HOST', PORT), and then pgmill init."
        }
    }
}

/// A data node.
#[derive(Clone, Debug)]
pub struct CitusNode {
    /// Host and port.
    pub name: String,
    /// The node's setting; `None` if the node does not answer.
    pub max_prepared_transactions: Option<String>,
}

from_row! { CitusNode { name, max_prepared_transactions } }

/// Returns the state of Citus; `None` if the database does not have the extension.
pub async fn citus(client: &impl GenericClient) -> Result<Option<Citus>, QueueError> {
    if !one::<bool>(client, INSTALLED, &[]).await? {
        return Ok(None);
    }
    first(client, CITUS, &[]).await
}

/// Returns the data nodes. Citus connects to them as the current role.
pub async fn nodes(client: &impl GenericClient) -> Result<Vec<CitusNode>, QueueError> {
    rows(client, NODES, &[]).await
}

/// Refuses a coordinator whose tasks do not commit in two phases. The error has a hint.
pub async fn check(client: &impl GenericClient) -> Result<(), QueueError> {
    match citus(client).await? {
        Some(citus) if citus.may_repeat_effects() => Err(QueueError::Refused {
            message:
                "this coordinator of Citus does not commit tasks in two phases: a crash could \
                      repeat their effects"
                    .to_owned(),
            hint: Some(citus.hint().to_owned()),
        }),
        _ => Ok(()),
    }
}
