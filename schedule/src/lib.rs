//! Schedules: from the text of a timing to the instants at which a job fires.
//!
//! Most modules are pure functions from texts to instants. They read neither the clock nor the time
//! zone of the machine; the caller passes the time. `tick`, `declare`, `reconcile`, `queries`,
//! `page` and `probe` access the database.

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
