//! Compares a drain in the queue's database with the same drain in a target, which is another
//! database of the same server. Each task commits alone.

use std::path::Path;

use anyhow::{Context, Result};
use queue::receipt;

use super::{Arm, compare};
use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::FleetSpec;
use crate::measure::rounds::{against, rate};
use crate::result::Scenario;

const HOME: &str = "in the queue's database";
/// Lowest acceptable rate in a target, as a part of that at home.
const GOAL: f64 = 0.6;

/// Declares the target, in which all tasks of this database run.
const DECLARE: &str = "SELECT /* loadtest.set_target */ mill.set_target('target');
ALTER TABLE mill.tasks ALTER run_as SET DEFAULT 'target', ALTER receipt SET DEFAULT gen_random_uuid()";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let home = FleetSpec::from_options(context);
    let (plain, queue) =
        (context.database("targets_home").await?, context.database("targets_queue").await?);
    let target = context.database("targets_target").await?;
    receipt::init(&*target.session, &[]).await?;
    queue.session.batch_execute(DECLARE).await?;
    let configuration = context.directory.join("targets.toml");
    configure(&configuration, &target, home.readers)?;
    let mut away = FleetSpec::new(home.workers, 1);
    let path = configuration.to_str().context("the path is not UTF-8")?;
    away.flags.extend(["--config".to_owned(), path.to_owned()]);
    let arms = vec![
        Arm { case: rate(HOME), database: plain, target: None, fleet_spec: home },
        Arm {
            case: against(rate("in a target"), HOME, Some(GOAL)),
            database: queue,
            target: Some(target),
            fleet_spec: away,
        },
    ];
    compare(context, context.tasks(50_000, 5_000), arms).await
}

/// Writes the configuration of the workers.
fn configure(path: &Path, target: &Database, readers: u32) -> Result<()> {
    let url = path.with_extension("url");
    std::fs::write(&url, target.url())?;
    std::fs::write(path, format!("[targets.target]\nurl_file = {url:?}\nreaders = {readers}\n"))?;
    Ok(())
}
