//! Commands about jobs: the jobs themselves, their files, their dependencies and their lineage.

pub(crate) mod apply;
pub(crate) mod apply_plan;
pub(crate) mod dependencies;
pub(crate) mod job_file;
pub(crate) mod lineage;
mod list;
mod merge;
mod show;
mod topology;
mod versions;

use cli::Failure;
use conninfo::Client;

use crate::args::JobVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill job`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &JobVerb) -> Result<u8, Failure> {
    match verb {
        JobVerb::List => list::list(client, out).await,
        JobVerb::Show { names } => show::show(client, out, names).await,
        JobVerb::Versions { name } => versions::versions(client, out, name).await,
        JobVerb::Diff(args) => versions::diff(client, out, args).await,
        JobVerb::Enable(args) => list::enable(client, out, args, true).await,
        JobVerb::Disable(args) => list::enable(client, out, args, false).await,
    }
}
