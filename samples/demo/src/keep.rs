//! Leaves everything running, and prints how to connect and how to stop it.

use std::path::Path;

use anyhow::Result;
use cluster::Cluster;

use crate::fleet::Fleet;
use crate::shop::{DATABASE, OPERATOR, Shop, write};

const STOP: &str = include_str!("../stop.sh");

/// Marks cluster and workers as kept: from now on they outlive this process.
pub(crate) fn keep(cluster: &mut Cluster, fleet: &mut Fleet, shop: &Shop) -> Result<String> {
    let living = fleet.workers().iter().filter(|worker| !worker.killed);
    let pids: String = living.map(|worker| format!("{}\n", worker.pid)).collect();
    write(&shop.directory.join("workers"), &pids, 0o644)?;
    let stop = shop.directory.join("stop");
    write(&stop, STOP, 0o755)?;
    cluster.keep()?;
    fleet.keep();
    Ok(instructions(shop, &stop))
}

fn instructions(shop: &Shop, stop: &Path) -> String {
    let passfile = shop.passfile.display();
    let url = shop.url(OPERATOR);
    let mut lines = vec![
        "The fleet and its PostgreSQL keep running. To explore them from this shell:".to_owned(),
        format!("  export PGPASSFILE={passfile} DATABASE_URL={url}"),
        format!("  psql {url} -c 'SELECT * FROM mill.history'"),
    ];
    for (name, example) in
        [("enqueue", "--wait 'SELECT count(*) FROM shop.orders'"), ("pgmill", "status")]
    {
        if let Ok(program) = cluster::sibling_program(name) {
            lines.push(format!("  {} {example}", program.display()));
        }
    }
    lines.push(format!("Logs of the workers: {}/worker-*.log", shop.directory.display()));
    lines.push(format!("To stop everything: {}", stop.display()));
    lines.push(format!("(database {DATABASE}, login {OPERATOR}; tasks run as a different login)"));
    lines.join("\n")
}
