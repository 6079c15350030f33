//! Schedules: when a job fires, from the text that says so to the instants.
//!
//! Most of it is pure: texts in, instants out. No clock and no zone of the machine is asked; whoever
//! calls brings the time. `tick`, `declare`, `reconcile`, `queries`,
//! `page` and `probe` talk to the database.

pub mod annotation;
mod arguments;
mod cadence;
mod call;
mod clock;
mod cron;
pub mod declare;
mod describe;
pub mod due;
mod duration;
pub mod enums;
mod error;
mod filter;
mod key;
pub mod page;
mod parse;
pub mod probe;
pub mod queries;
pub mod reconcile;
mod rule;
pub mod tick;
mod timing;
mod trigger;
mod vocabulary;
mod zone;

pub use cadence::Cadence;
pub use describe::describe_timing;
pub use error::ValidationError;
pub use timing::Timing;
pub use trigger::Trigger;
