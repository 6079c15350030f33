//! Converts the definitions of other systems to jobs and schedules of pgmill.
//!
//! | task | file |
//! |---|---|
//! | arguments of `pgmill import`: which source, and how it is converted | `args` |
//! | the result of a conversion: declarations as a job file, and remarks | `conversion` |
//! | the tables of a job file: schedules, jobs, tasks and their options | `declaration` |
//! | names of jobs and schedules, and their profiles | `names` |
//! | rows of a table, from CSV or JSON | `rows`, `csv` |
//! | cron expressions, by the rules of the systems that evaluate them | `cron` |
//! | the jobs of `pg_cron` | `pg_cron` |
//! | the chains of `pg_timetable` | `pg_timetable` |
//! | lines of a crontab that call psql | `crontab` |
//! | batch jobs of Dynamics 365 | `d365` |
//! | compiled projects of dbt, which become jobs without a job file | `dbt` |
//! | keys under which the tasks of a dbt project carry what `pgmill run results` reports | `dbt_keys` |
//!
//! A source is converted to the text of a job file, which `pgmill apply` could read as well. The
//! program `pgmill` reads this text as `apply` reads a file, so both have the same rules, and applies
//! the declarations by the same code.
//!
//! Invariant: this crate reads files, or standard input, and writes nothing. It has no connection to
//! a database, and contains no SQL on the schema. It writes the SQL of tasks.

pub mod args;
pub mod conversion;
mod cron;
mod crontab;
pub mod csv;
mod d365;
pub mod dbt;
pub mod dbt_keys;
mod declaration;
mod names;
mod pg_cron;
mod pg_timetable;
mod rows;

use std::path::Path;

use cli::Failure;
use queue::scan;

use crate::args::ImportSource;
use crate::conversion::{Conversion, place};

/// Reads the file of a source, and converts its definitions.
///
/// # Errors
/// Fails if the file cannot be read or is not what the source exports. A definition that has to be
/// left out is not an error but a remark of the conversion.
pub fn convert(import: &ImportSource) -> Result<Conversion, Failure> {
    let file = &import.options().file;
    let text = text_of(file)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let converted = match import {
        ImportSource::PgCron(args) => pg_cron::convert(&text, args),
        ImportSource::PgTimetable(args) => pg_timetable::convert(&text, args),
        ImportSource::Crontab(args) => crontab::convert(&text, folder, args),
        ImportSource::D365(args) => d365::convert(&text, args),
    };
    converted.map_err(|failure| failure.at(&place(file)))
}

/// Returns the text of the file, or of standard input, without a byte order mark at its start.
fn text_of(file: &Path) -> Result<String, Failure> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin().lock()),
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|error| Failure::usage(format!("{}: {error}", place(file))))?;
    Ok(scan::without_byte_order_mark(&text).to_owned())
}
