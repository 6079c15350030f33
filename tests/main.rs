//! pgmill's guarantees, one file per guarantee.
//!
//! `make test` starts a private cluster and runs the tests. Each test has its own database, uses a
//! real PostgreSQL and starts real worker processes. Nothing sleeps to obtain an order of events: a
//! task waits for an advisory lock until the test releases it, and `eventually` waits for a
//! condition, however long this takes on the machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod attempts;
mod browser;
mod commands;
mod console;
mod guarantees;
mod harness;
mod integrations;
mod notifications;
mod operation;
mod project;
mod runs;
mod schedules;
mod screens;
mod security;
mod targets;
