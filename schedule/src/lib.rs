//! Schedules: when a job fires, from the text that says so to the instants.

mod call;
mod mistake;

pub use mistake::Mistake;
