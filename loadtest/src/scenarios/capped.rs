//! Does a run at its limit hold up the others? The same drain, and the same with a hundred thousand
//! tasks in front of it that belong to one run of a group with a concurrency of ten. Those that have a
//! permit are in a queue that these workers do not serve: they take no reader from the others.

use anyhow::Result;
use queue::group::{GroupChange, set_group};
use queue::limit::grant_waiting;

use super::beside::{Beside, compare};
use crate::bench::Bench;
use crate::database::Database;
use crate::result::Scenario;
use crate::words::count_words;

const IN_FRONT: &str = "/* loadtest.capped */
SELECT count(*) FROM mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[$1::integer]),
    queue => 'elsewhere', group_name => 'capped', run_id => 1)";

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let size = bench.size(100_000, 20_000);
    let beside = Beside {
        scenario: "capped",
        without: "no run at its limit".to_owned(),
        with: format!("{} tasks of a run at its limit of 10", count_words(size)),
        tasks: bench.tasks(100_000, 20_000),
    };
    compare(bench, &beside, async |database| cap(database, size).await).await
}

async fn cap(database: &Database, size: i64) -> Result<()> {
    let change = GroupChange { max_concurrency: Some(10), ..GroupChange::default() };
    set_group(&*database.session, "capped", &change).await?;
    database.session.execute(IN_FRONT, &[&i32::try_from(size)?]).await?;
    grant_waiting(&*database.session).await?;
    Ok(())
}
