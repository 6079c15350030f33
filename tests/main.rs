//! pgmill's guarantees, one file per guarantee.
//!
//! `make test` starts a private cluster and runs the tests. Each test has its own database, uses a
//! real PostgreSQL and starts real worker processes. Nothing sleeps to obtain an order of events: a
//! task waits for an advisory lock until the test releases it, and `eventually` waits for a
//! condition, however long this takes on the machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod annotation;
mod api_check;
mod apply;
mod audit;
mod bad_input;
mod browser;
mod cancel;
mod checker_detection;
mod checker_mutants;
mod claim;
mod clean_session;
mod cli;
mod clock;
mod console;
mod console_access;
mod console_api;
mod console_audit;
mod console_database;
mod console_failures;
mod console_fuzz;
mod console_hostile;
mod console_plans;
mod console_plots;
mod console_read_only;
mod console_runs;
mod console_schedules;
mod console_size;
mod console_task;
mod console_tls;
mod console_worker;
mod deploy;
mod docs;
mod exactly_once;
mod explain;
mod failover;
mod fence;
mod harness;
mod limits;
mod loadtest;
mod memory;
mod metrics;
mod monitoring;
mod operator_views;
mod outage;
mod overhead;
mod parameters;
mod pooler;
mod priority;
mod privilege;
mod progress;
mod recovery;
mod redaction;
mod restore;
mod retry;
mod roles;
mod row;
mod run;
mod run_as;
mod run_cli;
mod run_control;
mod run_model;
mod schedule;
mod schedule_cli;
mod schedule_files;
mod schedule_views;
mod schema;
mod sd_notify;
mod secrets;
mod shared_commit;
mod submit;
mod task_statistics;
mod tenant_isolation;
mod tidy;
mod tidy_layout;
mod tidy_names;
mod tidy_prose;
mod tidy_schema;
mod top;
mod trigger;
mod upgrade;
