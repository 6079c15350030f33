//! Commands about runs: list, show and draw them, write their results, act on them and their tasks.
//!
//! | command | file |
//! |---|---|
//! | `pgmill run list`: runs with their expected end; the search for one run | `list` |
//! | `pgmill run show`: tasks and critical path; `--watch` until the end | `show` |
//! | `pgmill run graph`: tasks and edges as text, Mermaid or Graphviz | `graph` |
//! | `pgmill run cancel`, `retry`, `restart`, `rerun`, `approve` and `reject` | `actions` |
//! | `pgmill run results`: an ended run as the file `run_results.json` of dbt | `results` |

pub(crate) mod actions;
mod graph;
mod list;
mod results;
mod show;

use actions::Decision;
use cli::Exit;
use conninfo::Client;

use crate::args::RunVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill run`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &RunVerb) -> Exit {
    match verb {
        RunVerb::List(args) => list::list(client, out, args).await,
        RunVerb::Show(args) => show::show(client, out, args).await,
        RunVerb::Results(args) => results::results(client, out, args).await,
        RunVerb::Graph(args) => graph::draw(client, out, args).await,
        RunVerb::Cancel(args) => actions::cancel(client, out, args).await,
        RunVerb::Retry(args) => actions::retry(client, out, args).await,
        RunVerb::Approve(task) => actions::decide(client, out, task, Decision::Approve).await,
        RunVerb::Reject(args) => {
            let decision = Decision::Reject(args.reason.as_deref());
            actions::decide(client, out, &args.of, decision).await
        }
        RunVerb::Restart(args) => actions::restart(client, out, args).await,
        RunVerb::Rerun(args) => actions::rerun(client, out, args).await,
    }
}
