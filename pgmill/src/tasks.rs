//! Commands about tasks: list, show, cancel, retry and change them, and explain why one does not
//! run.
//!
//! | command | file |
//! |---|---|
//! | `pgmill task list`: live or finished tasks by filter or text | `list` |
//! | `pgmill task show`: options, state, attempts, errors and rows of one task | `show` |
//! | `pgmill task show --plan`: a saved plan, compared with the previous one | `plan` |
//! | `pgmill task cancel`, `retry` and `set`: chunks of tasks, with confirmation | `actions` |
//! | `pgmill why`: the reason why a task, run, schedule or queue waits | `why` |

pub(crate) mod actions;
mod list;
mod plan;
pub(crate) mod show;
pub(crate) mod why;

use cli::Exit;
use conninfo::Client;

use crate::args::TaskVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill task`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &TaskVerb) -> Exit {
    match verb {
        TaskVerb::List(args) => list::list(client, out, args).await,
        TaskVerb::Show { id, plan: true } => plan::run(client, out, *id).await,
        TaskVerb::Show { id, .. } => show::run(client, out, *id).await,
        TaskVerb::Cancel(args) => actions::cancel(client, out, args).await,
        TaskVerb::Retry(args) => actions::retry(client, out, args).await,
        TaskVerb::Set(args) => actions::set(client, out, args).await,
    }
}
