//! Output for people, and checks of their input, shared by the programs.
//!
//! | task | file |
//! |---|---|
//! | rules for queue names and other names, checked before connecting | `names` |
//! | database that a program connects to, and warnings about it | `connection_target` |
//! | safe output of untrusted text; lines on standard error | `text` |
//! | formats of durations, counts and details of the audit log | `format` |
//! | attempts in the style of psql: errors, notices, values | `attempt` |
//! | progress and outcome of a run | `run` |
//! | tasks and times of the critical path of a run | `critical_path` |
//! | progress of an action on many tasks | `bulk` |
//! | nodes and totals of a query plan, and its changes | `plan` |
//! | lines that differ between two texts | `changes` |
//! | tables that are wrapped to the width of the terminal | `table` |

mod attempt;
mod bulk;
mod changes;
mod connection_target;
mod critical_path;
mod format;
mod names;
mod plan;
mod run;
mod table;
mod text;

pub use self::format::{audit_detail, counted, exact_span, one_line, span, span_in};
pub use attempt::{HIDDEN, caret, format_error, notices, value};
pub use bulk::bulk_bar;
pub use changes::line_changes;
pub use connection_target::connection_target;
pub use critical_path::{path_steps, path_times};
pub use names::{label, queue_name};
pub use plan::{
    PlanNode, PlanTotals, PlanTrigger, plan_changes, plan_nodes, plan_shape, plan_totals,
};
pub use run::{run_bar, run_outcome, update_run_bar};
pub use table::wrap_table;
pub use text::{is_invisible, print_stderr, report_error, visible};
