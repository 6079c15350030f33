//! Schedules: from the text of a timing to the instants at which a job fires.
//!
//! Most modules are pure functions from texts to instants. They read neither the clock nor the time
//! zone of the machine: the caller passes the time. `zone_data` chooses the time zone data. `tick`,
//! `backfill`, `declare`, `reconcile`, `queries`, `jobs`, `page` and `probe` access the
//! database.

pub mod annotation;
pub mod backfill;
pub mod declare;
pub mod due;
pub mod enums;
mod error;
pub mod jobs;
pub mod page;
pub mod probe;
pub mod queries;
pub mod reconcile;
pub mod tick;
mod timing;
pub mod zone_data;

pub use error::ValidationError;
pub use timing::Timing;
pub use timing::cadence::Cadence;
pub use timing::describe::describe_timing;
pub use timing::trigger::Trigger;
pub use timing::zone::similar_zone;
