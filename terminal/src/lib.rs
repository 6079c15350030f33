//! What the programs for people share: text that is safe to show, an attempt as psql would show it,
//! a run as it goes on,
//! and what is a name.

mod attempt;
mod names;
mod run;
mod text;

pub use attempt::{HIDDEN, caret, fault, notices, value};
pub use names::{label, queue_name};
pub use run::{move_bar, run_bar, run_outcome};
pub use text::{tell, visible};
