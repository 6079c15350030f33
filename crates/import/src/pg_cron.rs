//! `pgmill import pg-cron`: the rows of `cron.job`.
//!
//! Each row becomes a schedule with a statement. `pg_cron` runs a job one at a time, and starts a
//! fire that comes too early after the end of the run before: the overlap `queue`.

use std::collections::BTreeSet;

use cli::Failure;

use super::conversion::{Conversion, Declared, Differences, LeftOut, Original};
use super::cron::{self, Days, Dialect};
use super::declaration;
use super::names::profile;
use super::rows::{self, Row};
use crate::args::PgCronArgs;

/// Columns without which a row is not a job. `jobname` and `active` exist since 1.3 and 1.2.
const REQUIRED: [&str; 2] = ["schedule", "command"];

/// Converts the rows.
///
/// # Errors
/// Fails if the text is not an export of `cron.job`, or has several databases of which none is
/// selected.
pub(crate) fn convert(text: &str, args: &PgCronArgs) -> Result<Conversion, Failure> {
    let hint = "Export the jobs: psql --csv -c 'TABLE cron.job'";
    let rows = rows::read(text, &REQUIRED).map_err(|failure| failure.hint(hint))?;
    for row in &rows {
        if let Some(missing) = REQUIRED.iter().find(|column| row.get(column).is_none()) {
            let message = format!("{}: missing {missing}", row.place);
            return Err(Failure::usage(message).hint(hint));
        }
    }
    check_databases(&rows, args)?;
    let original = |row| Original {
        place: format!("jobid {}", id_of(row)),
        id: id_of(row),
        name: row.name("jobname").unwrap_or_else(|| format!("pg_cron_{}", id_of(row))),
        definition: row,
    };
    let originals: Vec<Original<&Row>> = rows.iter().map(original).collect();
    let mut conversion = Conversion::default();
    conversion.import(&args.options, &originals, |row, name, differences| {
        import(row, name, args, differences).inspect_err(|_| differences.0.clear())
    });
    Ok(conversion)
}

fn id_of(row: &Row) -> String {
    row.text("jobid").unwrap_or_else(|| row.place.replace(' ', "_"))
}

/// A statement must not run in another database than before by accident.
fn check_databases(rows: &[Row], args: &PgCronArgs) -> Result<(), Failure> {
    let mapped = |database: &str| profile(&args.options.run_as, None, Some(database)).is_some();
    let databases: BTreeSet<String> = rows.iter().filter_map(|row| row.name("database")).collect();
    let open: Vec<&str> =
        databases.iter().map(String::as_str).filter(|name| !mapped(name)).collect();
    match &args.database {
        Some(name) if !databases.contains(name) => {
            let known = databases.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!("no job of database \"{name}\"; the databases are {known}")))
        }
        None if open.len() > 1 => {
            let message = format!("the file has jobs of several databases: {}", open.join(", "));
            Err(Failure::usage(message).hint(
                "Select one with --database. To run jobs of another database from the same fleet, declare a \
                 target, and map it: --run-as @DATABASE=TARGET",
            ))
        }
        _ => Ok(()),
    }
}

fn import(
    row: &Row,
    name: &str,
    args: &PgCronArgs,
    differences: &mut Differences,
) -> Result<Declared, LeftOut> {
    let (user, database) = (row.name("username"), row.name("database"));
    let run_as = profile(&args.options.run_as, user.as_deref(), database.as_deref());
    if let (Some(wanted), Some(database)) = (&args.database, &database)
        && wanted != database
        && run_as.is_none()
    {
        return Err(LeftOut::new(
            format!("the job is of database \"{database}\""),
            "Import it into the fleet of that database, or map it to a target: --run-as @DATABASE=TARGET.",
        ));
    }
    let schedule = row.text("schedule").unwrap_or_default();
    let command = row.text("command").unwrap_or_default();
    let enabled = row
        .truth("active", true)
        .map_err(|message| LeftOut::new(message, "Export the jobs again."))?;
    let mut table = declaration::statement(&command, run_as)?;
    if let Some(wanted) = row.name("jobname") {
        differences.renamed("job", &wanted, (name, &args.options.prefix));
    }
    let timing = timing(&schedule, args, differences)?;
    declaration::schedule(&mut table, &timing, "queue", enabled);
    if let (Some(user), None) = (user, run_as) {
        differences.unmapped("user", &user);
    }
    if declaration::calls_procedure(&command) {
        differences.call();
    }
    Ok(Declared { job: None, schedule: table })
}

/// Converts a schedule: a cron expression, a word, or a number of seconds.
fn timing(
    schedule: &str,
    args: &PgCronArgs,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    let days = if args.dom_dow_and { Days::Both } else { Days::Either };
    let dialect = Dialect { days, step_from_number: false, names: true, last_day: true };
    let text = schedule.trim();
    if ["@reboot", "@restart"].contains(&text) {
        differences.manual();
        return Ok("manual".to_owned());
    }
    if let Some(seconds) = interval(text) {
        return cron::every(seconds, &args.zone, schedule, differences);
    }
    // pg_cron ignores what follows the fifth field.
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let more = !text.starts_with('@') && fields.len() > 5;
    let expression = fields[..fields.len().min(5)].join(" ");
    let expression = cron::expression_of_word(text).unwrap_or(&expression);
    if more {
        differences.add(
            "pg_cron ignores everything after the fifth field, and so does the import",
            "Check the timing.",
        );
    } else if ["@yearly", "@annually"].contains(&text) {
        differences.add(
            "pg_cron 1.6 accepts @yearly but never starts it; pgmill starts it on 1 January",
            "Disable the schedule if that is not wanted.",
        );
    } else {
        cron::clock_changes("pg_cron", expression, &args.zone, differences);
    }
    cron::timing(expression, &args.zone, dialect)
}

/// Reads `30 seconds` as `pg_cron` does.
fn interval(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = text[digits..].trim();
    let seconds: u64 = text[..digits].parse().ok()?;
    (["second", "seconds"].contains(&unit) && (1..60).contains(&seconds)).then_some(seconds)
}
