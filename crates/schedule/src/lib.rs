//! Schedules: from the text of a timing to the instants at which a job fires.
//!
//! | task | file |
//! |---|---|
//! | timings: grammar, cadences, triggers, descriptions | `timing` |
//! | schedule annotations in the comment of a procedure | `annotation` |
//! | fires of a cadence that are due now or were missed | `due` |
//! | time zone data: compiled in, or newer data of the machine | `zone_data` |
//! | enums of schedules, as in the schema | `enums` |
//! | errors in a text, with position and hint | `error` |
//! | declaration, removal, settings and manual start of schedules | `declare` |
//! | schedules that follow from the comments of procedures | `reconcile` |
//! | pass over due schedules: locks, instants, fires; deadlines of runs | `tick` |
//! | probe of a triggered schedule, in a read-only transaction | `probe` |
//! | runs of a schedule for instants in the past | `backfill` |
//! | jobs that a schedule runs, its statement and parameters | `jobs` |
//! | status, log, history and dry runs of schedules | `queries` |
//! | schedules page by page, and a calendar of their fires | `page` |
//!
//! `timing`, `annotation` and `due` are pure functions. They read neither the clock nor the time
//! zone of the machine: the caller passes the time. The modules from `declare` on access the
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
