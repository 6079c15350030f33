//! What pgmill promises, one file per promise.
//!
//! Run by `make test`, which starts a private cluster. Each test has a database of its own, talks to
//! a real PostgreSQL and starts real worker processes. Nothing sleeps to get an order of events: a
//! task is held by an advisory lock until the test lets it go, and `eventually` waits for a
//! condition, however long it takes on this machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod annotation;
mod apply;
mod bad_input;
mod cancel;
mod checker_mutants;
mod checker_teeth;
mod claim;
mod clean_session;
mod cli;
mod clock;
mod docs;
mod escape;
mod exactly_once;
mod fence;
mod frugal;
mod harness;
mod hidden;
mod limits;
mod loadtest;
mod memory;
mod metrics;
mod outage;
mod pooler;
mod priority;
mod privilege;
mod recovery;
mod retry;
mod roles;
mod run;
mod run_as;
mod run_cli;
mod run_model;
mod run_steer;
mod schedule;
mod schedule_cli;
mod schedule_files;
mod schedule_see;
mod schema;
mod secrets;
mod see;
mod shared_commit;
mod submit;
mod tidy;
mod trigger;
mod values;
