//! Compares a drain in the queue's database with the same drain in a target, which is another
//! database of the same server. Each task commits alone.

use std::path::Path;

use anyhow::{Context, Result};
use queue::receipt;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::rounds::{against, alternate, rate};
use crate::result::{Check, Scenario};

const HOME: &str = "in the queue's database";
const TARGET: &str = "in a target";
/// Lowest acceptable rate in a target, as a part of that at home.
const GOAL: f64 = 0.6;

const MOVE: &str = "UPDATE /* loadtest.move_to_target */ mill.tasks SET run_as = 'target', receipt = gen_random_uuid()";

const DECLARE: &str = "SELECT /* loadtest.set_target */ mill.set_target('target')";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let tasks = context.tasks(50_000, 5_000);
    let home = FleetSpec::from_options(context);
    let databases =
        [context.database("targets_home").await?, context.database("targets_queue").await?];
    let target = context.database("targets_target").await?;
    receipt::init(&*target.session, &[]).await?;
    databases[1].session.batch_execute(DECLARE).await?;
    let configuration = context.directory.join("targets.toml");
    configure(&configuration, &target, home.readers)?;
    let mut away = FleetSpec::new(home.workers, 1);
    let path = configuration.to_str().context("the path is not UTF-8")?;
    away.flags.extend(["--config".to_owned(), path.to_owned()]);
    let mut cases = [rate(HOME), against(rate(TARGET), HOME, Some(GOAL))];
    alternate(context, "targets", &mut cases, async |n, round| {
        let database = &databases[n];
        close_queue(database).await?;
        let first = i64::try_from(round - 1)? * tasks + 1;
        database.fill(&context.progress, (first, first + tasks - 1), EFFECT).await?;
        if n == 1 {
            database.session.batch_execute(MOVE).await?;
        }
        database.vacuum_and_checkpoint().await?;
        let fleet_spec = if n == 1 { &away } else { &home };
        Ok(drain(context, database, fleet_spec, Until::Empty, round).await?.into())
    })
    .await?;
    let last = i64::try_from(context.rounds())? * tasks;
    let mut checks = Vec::new();
    for (database, case) in [(&databases[0], HOME), (&target, TARGET)] {
        let check = effects::all(&*database.session, 1, last).await?;
        checks.push(Check { what: format!("{}, {case}", check.what), ..check });
    }
    for database in databases.into_iter().chain([target]) {
        context.drop_database(database).await?;
    }
    let notes = vec![
        format!("{tasks} tasks per round, {}", home.describe()),
        "the target is another database of the same server, so both commits use one disk"
            .to_owned(),
    ];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}

/// Writes the configuration of the workers.
fn configure(path: &Path, target: &Database, readers: u32) -> Result<()> {
    let url = path.with_extension("url");
    std::fs::write(&url, target.url())?;
    std::fs::write(path, format!("[targets.target]\nurl_file = {url:?}\nreaders = {readers}\n"))?;
    Ok(())
}
