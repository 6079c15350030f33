//! Shared by all programs: the start and the end of a program, errors, and durations and times on
//! a command line.
//!
//! | task | file |
//! |---|---|
//! | `main`: runs a program, prints its error, returns its exit code | `program` |
//! | an error with detail, hint and exit code | `failure` |
//! | exit codes, and those of database errors | `exit` |
//! | durations on a command line or in a file | `duration` |
//! | times on a command line | `time` |
//! | line and column of an error in a file, without passwords | `location` |
//! | a text file, and errors in it | `source` |
//! | a statement that no worker would run | `statement` |
//!
//! Text for people, apart from errors, is in the crate `terminal`.

pub mod duration;
pub mod exit;
mod failure;
mod location;
mod program;
pub mod source;
pub mod statement;
pub mod time;

pub use failure::{Exit, Failure};
pub use location::{location, problem_in_file};
pub use program::{main, many_threads, one_thread, print};
