//! Commands about tasks: list, show, cancel, retry and change them, and explain why one does not
//! run.

pub(crate) mod actions;
mod list;
mod plan;
pub(crate) mod show;
pub(crate) mod why;

use cli::Failure;
use conninfo::Client;

use crate::args::TaskVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill task`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &TaskVerb) -> Result<u8, Failure> {
    match verb {
        TaskVerb::List(args) => list::list(client, out, args).await,
        TaskVerb::Show { id, plan: true } => plan::run(client, out, *id).await,
        TaskVerb::Show { id, .. } => show::run(client, out, *id).await,
        TaskVerb::Cancel(args) => actions::cancel(client, out, args).await,
        TaskVerb::Retry(args) => actions::retry(client, out, args).await,
        TaskVerb::Set(args) => actions::set(client, out, args).await,
    }
}
