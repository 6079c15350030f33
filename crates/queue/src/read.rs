//! Queries for the console, the command line and the metrics.
//!
//! | task | file |
//! |---|---|
//! | one task, lists of live tasks, running backends, `why` | `task_queries` |
//! | ended attempts of one task, state of a live task | `attempt` |
//! | lists and searches of attempts and finished tasks | `history` |
//! | list of runs, one run with its tasks and edges | `run_queries` |
//! | attempts of the tasks of one run, with their times | `run_attempts` |
//! | chain of tasks that the end of a run waited for | `critical_path` |
//! | upstream and downstream tasks of a task, over all jobs | `lineage` |
//! | task counts and settings per queue, from all live tasks | `queue_status` |
//! | workers of the fleet, both live and stale | `workers` |
//! | state of the fleet and its server, at constant cost, for gauges | `fleet` |
//! | server, settings, roles and old transactions, for `pgmill doctor` | `doctor` |
//! | lock or standby that an operator's session waits for | `lock_wait` |
//! | audit log, and the actor that its entries name | `audit` |
//! | names that complete a command line | `names` |
//! | bounded queries for the screens of the console | `insight` |
//!
//! They change nothing, with two exceptions: `audit::set_actor` sets the actor of a transaction,
//! and `queue_status::hold_publisher` takes the lock of the worker that publishes the gauges.

pub mod attempt;
pub mod audit;
pub mod critical_path;
pub mod doctor;
pub mod fleet;
pub mod history;
pub mod insight;
pub mod lineage;
pub mod lock_wait;
pub mod names;
pub mod queue_status;
pub mod run_attempts;
pub mod run_queries;
pub mod task_queries;
pub mod workers;
