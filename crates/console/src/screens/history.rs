//! Screens about the past: failures by cause, and the audit log.

pub(crate) mod audit;
pub(crate) mod failures;
