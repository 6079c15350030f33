//! Commands about the past: finished attempts, failures, durations, operator actions.

pub(crate) mod attempts;
pub(crate) mod audit;
pub(crate) mod durations;
pub(crate) mod failures;
