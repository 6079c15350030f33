//! Commands about jobs: the jobs themselves, their files, their dependencies and their lineage.
//!
//! | task | file |
//! |---|---|
//! | parse a TOML file of jobs, schedules and dependencies | `job_file` |
//! | `pgmill apply`: all files in one transaction, with `--prune` | `apply` |
//! | what an `apply` changes, as lines of text and JSON | `apply_plan` |
//! | `pgmill job list`, `enable` and `disable`: jobs and single tasks | `list` |
//! | `pgmill job show`: tasks and edges of the run that jobs become | `show` |
//! | several jobs merged into one run, by the rules of the schema | `merge` |
//! | levels of the nodes of a graph, or the path of a cycle | `topology` |
//! | `pgmill job versions` and `diff`: versions of a job, and their differences | `versions` |
//! | `pgmill dependency`: dependencies that apply to every job | `dependencies` |
//! | `pgmill lineage`: upstream and downstream tasks across all jobs | `lineage` |

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

use cli::Exit;
use conninfo::Client;

use crate::args::JobVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill job`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &JobVerb) -> Exit {
    match verb {
        JobVerb::List => list::list(client, out).await,
        JobVerb::Show { names } => show::show(client, out, names).await,
        JobVerb::Versions { name } => versions::versions(client, out, name).await,
        JobVerb::Diff(args) => versions::diff(client, out, args).await,
        JobVerb::Enable(args) => list::enable(client, out, args, true).await,
        JobVerb::Disable(args) => list::enable(client, out, args, false).await,
    }
}
