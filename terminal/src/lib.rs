//! What the programs for people share: text that is safe to show, an attempt as psql would show it,
//! a run as it goes on, a plan as rows, what the doctor thinks, what somebody should look at, what is a name,
//! and where to connect.

mod attempt;
pub mod judge;
mod names;
mod plan;
pub mod problem;
mod run;
mod target;
mod text;
mod words;

pub use attempt::{HIDDEN, caret, fault, notices, value};
pub use names::{label, queue_name};
pub use plan::{Node, Sums, Trigger, plan_changes, plan_nodes, plan_shape, plan_sums};
pub use run::{move_bar, run_bar, run_outcome};
pub use target::target;
pub use text::{tell, unseen, visible};
pub use words::{counted, one_line, span};
