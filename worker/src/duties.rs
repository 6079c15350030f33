//! Duties: background services that each worker performs for the whole fleet, in addition to
//! running tasks. There is no leader: any number of workers do each duty concurrently, coordinated
//! by locks in the database.
//!
//! | duty | file |
//! |---|---|
//! | interface of a duty, and the loop that runs it until the shutdown | `duty` |
//! | registration, heartbeats and their orders: cancel, lost claims, drain | `heartbeat` |
//! | one LISTEN session, whose notifications wake other parts of the process | `listener` |
//! | one statement that looks for work, and passes it to the other duties | `poll` |
//! | promotion of scheduled tasks to pending, as soon as they are due | `promoter` |
//! | grants of permits to tasks that wait for a limit | `permit_granter` |
//! | advance of runs: release of the next tasks, end of the run | `run_advancer` |
//! | schedules from declarations in comments of procedures, at startup | `schedule_sync` |
//! | fires of due schedules, backfills, deadlines of runs | `scheduler` |
//! | probes of triggered schedules, in sessions of their own | `trigger_evaluator` |
//! | delivery of notifications: to channels, as tasks, to destinations | `notifier` |
//! | tasks of dead workers: backends terminated, tasks released | `reclaimer` |
//! | progress and notices of running tasks, written about once a second | `progress_writer` |
//! | history partitions created and dropped, old rows deleted, about once an hour | `maintenance` |
//! | counts of the whole fleet, published by one worker at a time | `fleet_publisher` |

pub(crate) mod duty;
pub(crate) mod fleet_publisher;
pub(crate) mod heartbeat;
pub(crate) mod listener;
pub(crate) mod maintenance;
pub(crate) mod notifier;
pub(crate) mod permit_granter;
pub(crate) mod poll;
pub(crate) mod progress_writer;
pub(crate) mod promoter;
pub(crate) mod reclaimer;
pub(crate) mod run_advancer;
pub(crate) mod schedule_sync;
pub(crate) mod scheduler;
pub(crate) mod trigger_evaluator;
