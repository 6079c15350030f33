//! Commands about the past: finished attempts, failures, durations, operator actions.
//!
//! | command | file |
//! |---|---|
//! | `pgmill history`: finished attempts by filter or text; their rows in other lists | `attempts` |
//! | `pgmill failures`: failed attempts, grouped by error | `failures` |
//! | `pgmill durations`: durations by task name; one attempt compared with others | `durations` |
//! | `pgmill audit`: operator actions, with the login of each | `audit` |

pub(crate) mod attempts;
pub(crate) mod audit;
pub(crate) mod durations;
pub(crate) mod failures;
