//! `pgmill import pg-cron`: the rows of `cron.job`.
//!
//! Each row becomes a schedule with a statement. `pg_cron` runs a job one at a time, and starts a
//! fire that comes too early after the end of the run before: the overlap `queue`.

use std::collections::BTreeSet;

use cli::Failure;

use super::conversion::{Conversion, LeftOut};
use super::cron::{self, Days, Dialect};
use super::declaration;
use super::names::{Names, profile};
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
    let mut names = Names::new(
        &args.options.prefix,
        rows.iter().map(name_of).collect::<Vec<_>>().iter().map(String::as_str),
    );
    let mut conversion = Conversion::default();
    for row in &rows {
        let id = id_of(row);
        let place = format!("jobid {id}");
        let name = names.choose(&name_of(row), &id);
        if let Err(reason) = import(row, &place, name, args, &mut conversion) {
            conversion.leave_out(&place, reason);
        }
    }
    Ok(conversion)
}

fn id_of(row: &Row) -> String {
    row.text("jobid").unwrap_or_else(|| row.place.replace(' ', "_"))
}

fn name_of(row: &Row) -> String {
    row.name("jobname").unwrap_or_else(|| format!("pg_cron_{}", id_of(row)))
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
    place: &str,
    name: String,
    args: &PgCronArgs,
    conversion: &mut Conversion,
) -> Result<(), LeftOut> {
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
    let timing = timing(&schedule, args)?;
    declaration::schedule(&mut table, &timing.text, "queue", enabled);
    let wanted = row.name("jobname");
    if let Some(wanted) = wanted.filter(|it| name != format!("{}{it}", args.options.prefix)) {
        let message = format!("the job \"{wanted}\" is called \"{name}\"");
        conversion.differs(place, message, "Names differ by more than case, and have no commas.");
    }
    if let Some((message, hint)) = timing.difference {
        conversion.differs(place, message, hint);
    }
    if run_as.is_none()
        && let Some(user) = user
    {
        conversion.differs(
            place,
            format!("ran as user \"{user}\"; will run as the login of tasks (worker --task-url)"),
            "To run as another login, declare a profile, and map it: --run-as USER=PROFILE.",
        );
    }
    if declaration::calls_procedure(&command) {
        conversion.differs(
            place,
            "CALL runs in a transaction, so the procedure cannot commit",
            "If it commits, import with --print and set mode = \"autocommit\".",
        );
    }
    conversion.add(place, None, (name, table));
    Ok(())
}

struct Timing {
    text: String,
    difference: Option<(&'static str, &'static str)>,
}

/// Converts a schedule: a cron expression, a word, or a number of seconds.
fn timing(schedule: &str, args: &PgCronArgs) -> Result<Timing, LeftOut> {
    let days = if args.dom_dow_and { Days::Both } else { Days::Either };
    let dialect = Dialect { days, step_from_number: false, names: true, last_day: true };
    let text = schedule.trim();
    if ["@reboot", "@restart"].contains(&text) {
        return Ok(Timing {
            text: "manual".to_owned(),
            difference: Some((
                "@reboot has no counterpart; the schedule is manual",
                "Start it with pgmill schedule run-now.",
            )),
        });
    }
    if let Some(seconds) = interval(text) {
        let (text, even) = cron::every(seconds, &args.zone, schedule)?;
        let difference = (!even).then_some((
            "the interval is counted from midnight, so the last one of a day is shorter",
            "Choose an interval of which a day is a multiple.",
        ));
        return Ok(Timing { text, difference });
    }
    // pg_cron ignores what follows the fifth field.
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let more = !text.starts_with('@') && fields.len() > 5;
    let expression = fields[..fields.len().min(5)].join(" ");
    let expression = cron::expression_of_word(text).unwrap_or(&expression);
    let timing = cron::timing(expression, &args.zone, dialect)?;
    let fixed = !expression.split(' ').take(2).any(|field| field.starts_with('*'));
    let difference = if more {
        Some((
            "pg_cron ignores everything after the fifth field, and so does the import",
            "Check the timing.",
        ))
    } else if ["@yearly", "@annually"].contains(&text) {
        Some((
            "pg_cron 1.6 accepts @yearly but never starts it; pgmill starts it on 1 January",
            "Disable the schedule if that is not wanted.",
        ))
    } else if fixed && !cron::always_utc(&args.zone) {
        Some((
            "when clocks change, pg_cron skips times that do not exist and repeats times that exist \
             twice; pgmill fires once for each",
            "",
        ))
    } else {
        None
    };
    Ok(Timing { text: timing, difference })
}

/// Reads `30 seconds` as `pg_cron` does.
fn interval(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = text[digits..].trim();
    let seconds: u64 = text[..digits].parse().ok()?;
    (["second", "seconds"].contains(&unit) && (1..60).contains(&seconds)).then_some(seconds)
}
