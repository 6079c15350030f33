//! Schedules: when a job fires, from the text that says so to the instants.
//!
//! What stands here is pure: texts in, instants out. No clock and no zone of the machine is asked;
//! whoever calls brings the time.

pub mod annotation;
mod cadence;
mod call;
mod clock;
mod cron;
mod describe;
pub mod due;
mod filter;
mod key;
mod mistake;
mod named;
mod read;
mod rule;
mod span;
mod timing;
mod trigger;
mod words;
mod zone;

pub use cadence::Cadence;
pub use mistake::Mistake;
pub use timing::Timing;
pub use trigger::Trigger;
