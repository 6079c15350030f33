//! Output for people, shared by the programs: text that is safe on a terminal, attempts in the
//! style of psql, the progress and the critical path of runs, the progress of actions on many tasks,
//! query plans as a table, changed lines, tables that fit the terminal, and formats of durations and counts. Also
//! the validation of names, and the database that a program is connected to.

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

pub use self::format::{audit_detail, counted, exact_span, one_line, span};
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
