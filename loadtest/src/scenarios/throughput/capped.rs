//! Checks whether a run at its limit delays other tasks. Compares a drain with the same drain
//! behind a hundred thousand tasks of one run, of which a group's limit lets ten run at once. The
//! tasks with a permit are in a queue that these workers do not serve, so they occupy no reader.

use anyhow::Result;
use queue::group::{GroupChange, set_group};
use queue::limit::grant_waiting_permits;

use super::control_case::{ControlCase, compare};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::report::number_format::short_count;
use crate::result::Scenario;

const IN_FRONT: &str = "SELECT /* loadtest.capped */ count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[$1::integer]),
    queue => 'elsewhere', group_name => 'capped', run_id => 1)";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let size = context.size(100_000, 20_000);
    let control_case = ControlCase {
        scenario: "capped",
        without: "no run at its limit".to_owned(),
        with: format!("a run with {} tasks, of which 10 may run at once", short_count(size)),
        tasks: context.tasks(100_000, 20_000),
    };
    compare(context, &control_case, async |database| cap(database, size).await).await
}

async fn cap(database: &Database, size: i64) -> Result<()> {
    let change = GroupChange { max_running: Some(10), ..GroupChange::default() };
    set_group(&*database.session, "capped", &change).await?;
    database.session.execute(IN_FRONT, &[&i32::try_from(size)?]).await?;
    grant_waiting_permits(&*database.session, None).await?;
    Ok(())
}
