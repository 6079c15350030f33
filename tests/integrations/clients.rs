//! The clients of applications: what they describe, and the cases that all of them pass.

pub(crate) mod conformance;
pub(crate) mod description;
pub(crate) mod suites;
