//! Formats of messages, one file per receiver.

pub(crate) mod alertmanager;
pub(crate) mod pagerduty;
pub(crate) mod slack;
pub(crate) mod teams;
