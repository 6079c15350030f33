//! Throughput and backlog of the last hours, read minute by minute and cached.
//!
//! | task | file |
//! |---|---|
//! | reader in the background, and cache of the minutes read | `cache` |
//! | number of waiting tasks at the end of each minute | `backlog_history` |
//! | start of a minute, and the minutes before a time | `minutes` |

pub(crate) mod backlog_history;
pub(crate) mod cache;
pub(crate) mod minutes;
