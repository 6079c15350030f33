//! Checks whether tasks that cannot run delay others: millions of tasks that are due from tomorrow
//! on, and a hundred thousand tasks of one run, of which a group's limit lets ten run at once. The
//! tasks with a permit are in a queue that these workers do not serve, so they occupy no reader.

use anyhow::Result;
use queue::group::{GroupChange, set_group};
use queue::limit::grant_waiting_permits;

use super::with_and_without;
use crate::context::RunContext;
use crate::context::database::chunks;
use crate::report::number_format::short_count;
use crate::result::Scenario;

const LATER: &str = "INSERT /* loadtest.later */ INTO mill.tasks (statement, state, due_at)
SELECT 'SELECT 1', 'scheduled', now() + interval '1 day' + n * interval '1 millisecond'
FROM generate_series($1::bigint, $2) AS n";

const IN_FRONT: &str = "SELECT /* loadtest.capped */ count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[$1::integer]),
    queue => 'elsewhere', group_name => 'capped', run_id => 1)";

pub(crate) async fn scheduled(context: &RunContext) -> Result<Scenario> {
    let size = context.size(5_000_000, 250_000);
    let names = ["0 tasks due later".to_owned(), format!("{} tasks due later", short_count(size))];
    with_and_without(context, context.tasks(100_000, 20_000), names, async |database| {
        for (first, last) in chunks(1, size) {
            database.session.execute(LATER, &[&first, &last]).await?;
            context.progress.state(&format!("{last} of {size}"));
        }
        Ok(())
    })
    .await
}

pub(crate) async fn capped(context: &RunContext) -> Result<Scenario> {
    let size = context.size(100_000, 20_000);
    let with = format!("{} tasks of a run at its limit of 10", short_count(size.into()));
    let names = ["no run at its limit".to_owned(), with];
    with_and_without(context, context.tasks(100_000, 20_000), names, async |database| {
        let change = GroupChange { max_running: Some(10), ..GroupChange::default() };
        set_group(&*database.session, "capped", &change).await?;
        database.session.execute(IN_FRONT, &[&size]).await?;
        grant_waiting_permits(&*database.session, None).await?;
        Ok(())
    })
    .await
}
