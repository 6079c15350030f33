//! What the programs for people share: text that is safe to show, and an attempt as psql would show
//! it.

mod attempt;
mod text;

pub use attempt::{caret, fault, notices, value};
pub use text::{tell, visible};
