//! Commands about schedules: list, show, test, change and define them, and their history.
//!
//! | command | file |
//! |---|---|
//! | `pgmill schedule list`: schedules with their fires; the search for one schedule | `list` |
//! | `pgmill schedule show`: settings, next fires, history and log of one schedule | `show` |
//! | `pgmill schedule next` and `test`: coming fires, without firing | `fires` |
//! | `pgmill schedule calendar`: past and coming fires of all schedules | `calendar` |
//! | `pgmill schedule history` and `log`: fired runs, and events | `log` |
//! | `pgmill schedule set`, `sync`, `run-now` and the other changes of schedules | `actions` |
//! | `pgmill schedule backfill` and the commands on existing backfills | `backfill` |

mod actions;
mod backfill;
mod calendar;
pub(crate) mod fires;
mod list;
mod log;
mod show;

use cli::Exit;
use conninfo::Client;
use schedule::backfill::BackfillAction;

use crate::args::ScheduleVerb;
use crate::output::Output;

/// Runs a subcommand of `pgmill schedule`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &ScheduleVerb) -> Exit {
    match verb {
        ScheduleVerb::List(args) => list::list(client, out, args).await,
        ScheduleVerb::Show(args) => show::show(client, out, &args.name).await,
        ScheduleVerb::Next(args) => fires::next(client, out, args).await,
        ScheduleVerb::Calendar(args) => calendar::calendar(client, out, args).await,
        ScheduleVerb::Test(args) => fires::test(client, out, &args.name).await,
        ScheduleVerb::History(args) => log::history(client, out, args).await,
        ScheduleVerb::Log(args) => log::log(client, out, args).await,
        ScheduleVerb::Enable(args) => actions::enable(client, out, args, true).await,
        ScheduleVerb::Disable(args) => actions::enable(client, out, args, false).await,
        ScheduleVerb::Set(args) => actions::set(client, out, args).await,
        ScheduleVerb::Remove(args) => actions::remove(client, out, args).await,
        ScheduleVerb::Cancel(args) => actions::cancel(client, out, args).await,
        ScheduleVerb::Sync(dry_run) => actions::sync(client, out, *dry_run).await,
        ScheduleVerb::Backfill(args) => backfill::start(client, out, args).await,
        ScheduleVerb::Backfills(args) => backfill::list(client, out, args).await,
        ScheduleVerb::PauseBackfill(args) => {
            backfill::change_state(client, out, args, BackfillAction::Pause).await
        }
        ScheduleVerb::ResumeBackfill(args) => {
            backfill::change_state(client, out, args, BackfillAction::Resume).await
        }
        ScheduleVerb::CancelBackfill(args) => {
            backfill::change_state(client, out, args, BackfillAction::Cancel).await
        }
        ScheduleVerb::RunNow(args) => actions::run_now(client, out, args).await,
    }
}
