//! What the programs for people share: text that is safe to show, an attempt as psql would show it,
//! and what is a name.

mod attempt;
mod names;
mod text;

pub use attempt::{caret, fault, notices, value};
pub use names::{label, queue_name};
pub use text::{tell, visible};
