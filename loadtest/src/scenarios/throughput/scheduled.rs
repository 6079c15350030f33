//! Checks whether scheduled tasks affect throughput. Compares a drain with the same drain among
//! millions of live tasks that are due from tomorrow on.

use anyhow::Result;

use super::control_case::{ControlCase, compare};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::report::number_format::short_count;
use crate::result::Scenario;

const LATER: &str = "INSERT /* loadtest.later */ INTO mill.tasks (statement, state, due_at)
SELECT 'SELECT 1', 'scheduled', now() + interval '1 day' + n * interval '1 millisecond'
FROM generate_series($1::bigint, $2) AS n";

const CHUNK: i64 = 250_000;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let size = context.size(5_000_000, 250_000);
    let control_case = ControlCase {
        scenario: "scheduled",
        without: "0 tasks due later".to_owned(),
        with: format!("{} tasks due later", short_count(size)),
        tasks: context.tasks(100_000, 20_000),
    };
    compare(context, &control_case, async |database| schedule(context, database, size).await).await
}

async fn schedule(context: &RunContext, database: &Database, size: i64) -> Result<()> {
    for chunk in 0..size / CHUNK {
        let last = (chunk + 1) * CHUNK;
        database.session.execute(LATER, &[&(chunk * CHUNK + 1), &last]).await?;
        context.progress.state(&format!("{last} of {size}"));
    }
    Ok(())
}
