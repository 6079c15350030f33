//! Schedules: when a job fires, from the text that says so to the instants.
//!
//! Most of it is pure: texts in, instants out. No clock and no zone of the machine is asked; whoever
//! calls brings the time. `tick`, `declare`, `reconcile`, `show`,
//! `page` and `probe` talk to the database.

pub mod annotation;
mod cadence;
mod call;
mod clock;
mod cron;
pub mod declare;
mod describe;
pub mod due;
mod filter;
mod key;
pub mod kinds;
mod mistake;
mod named;
pub mod page;
pub mod probe;
mod read;
pub mod reconcile;
mod rule;
pub mod show;
mod span;
pub mod tick;
mod timing;
mod trigger;
mod words;
mod zone;

pub use cadence::Cadence;
pub use describe::in_words;
pub use mistake::Mistake;
pub use timing::Timing;
pub use trigger::Trigger;
