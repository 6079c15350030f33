//! `pgmill import crontab`: lines that call psql.
//!
//! The command of a line may set variables, call psql with statements or script files, and discard
//! or append its output. Every other command is reported, because pgmill runs SQL only.

mod psql;
mod shell;

use std::collections::BTreeMap;
use std::path::Path;

use cli::Failure;

use super::conversion::{Conversion, Declared, Differences, LeftOut, Original};
use super::cron::{self, Days, Dialect};
use super::declaration::{self, calls_procedure, put};
use super::names::profile;
use crate::args::CrontabArgs;
use psql::Call;

const DIALECT: Dialect =
    Dialect { days: Days::Either, step_from_number: false, names: true, last_day: false };

/// A line with a time and a command, and the variables that apply to it.
struct Entry<'a> {
    line: usize,
    time: &'a str,
    user: Option<&'a str>,
    command: &'a str,
    variables: BTreeMap<String, String>,
}

/// Converts the lines. Script files are relative to `folder`.
///
/// # Errors
/// Fails if no line has a time and a command, or if the lines connect to several databases of which
/// none is selected.
pub(crate) fn convert(
    text: &str,
    folder: &Path,
    args: &CrontabArgs,
) -> Result<Conversion, Failure> {
    let mut conversion = Conversion::default();
    let entries = entries(text, args, &mut conversion);
    if entries.is_empty() && conversion.remark_lines().is_empty() {
        return Err(Failure::usage("the file has no line with a time and a command"));
    }
    let mut calls = Vec::new();
    for entry in entries {
        let place = format!("line {}", entry.line);
        match Call::read(entry.command, &entry.variables, folder) {
            Ok(call) => calls.push((place, entry, call)),
            Err(reason) => conversion.leave_out(&place, reason),
        }
    }
    check_databases(calls.iter().filter_map(|(_, _, call)| call.database.as_deref()), args)?;
    let originals = calls.into_iter().map(|(place, entry, call)| {
        let (id, name) = (entry.line.to_string(), call.name());
        Original { place, id, name, definition: (entry, call) }
    });
    let originals: Vec<_> = originals.collect();
    conversion.import(&args.options, &originals, |(entry, call), _, differences| {
        import(entry, call, args, differences)
    });
    Ok(conversion)
}

/// A statement must not run in another database than before by accident.
fn check_databases<'a>(
    databases: impl Iterator<Item = &'a str>,
    args: &CrontabArgs,
) -> Result<(), Failure> {
    let mut open: Vec<&str> =
        databases.filter(|it| profile(&args.options.run_as, None, Some(it)).is_none()).collect();
    open.sort_unstable();
    open.dedup();
    if args.database.is_some() || open.len() < 2 {
        return Ok(());
    }
    let message = format!("the lines connect to several databases: {}", open.join(", "));
    Err(Failure::usage(message).hint(
        "Select one with --database. To run statements in another database from the same fleet, declare a target, \
         and map it: --run-as @DATABASE=TARGET",
    ))
}

/// Splits the text into entries, with the variables that were set before each of them.
fn entries<'a>(text: &'a str, args: &CrontabArgs, conversion: &mut Conversion) -> Vec<Entry<'a>> {
    let (mut entries, mut variables) = (Vec::new(), BTreeMap::new());
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = variable(line) {
            if name == "MAILTO" && !value.is_empty() {
                conversion.differs(
                    &format!("line {number}"),
                    "MAILTO: pgmill sends no output by mail",
                    "Subscribe to failures: docs/notifications.md.",
                );
            }
            variables.insert(name.to_owned(), value.to_owned());
            continue;
        }
        let fields = if line.starts_with('@') { 1 } else { 5 };
        let Some((time, rest)) = split_fields(line, fields) else {
            let reason = LeftOut::new("the line has no command", "Correct the line.");
            conversion.leave_out(&format!("line {number}"), reason);
            continue;
        };
        let (user, command) = match split_fields(rest, 1) {
            Some((user, command)) if args.system => (Some(user), command),
            _ => (None, rest),
        };
        let variables = variables.clone();
        entries.push(Entry { line: number, time, user, command, variables });
    }
    entries
}

/// Returns the name and the value of a line that sets a variable.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim_end();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return None;
    }
    let value = value.trim();
    let quoted = ['"', '\''].into_iter().find_map(|it| value.strip_prefix(it)?.strip_suffix(it));
    Some((name, quoted.unwrap_or(value)))
}

/// Splits the text after `count` fields; `None` if nothing follows them.
fn split_fields(text: &str, count: usize) -> Option<(&str, &str)> {
    let mut rest = text;
    for _ in 0..count {
        let end = rest.find(|c: char| c.is_ascii_whitespace())?;
        rest = rest[end..].trim_start();
    }
    (!rest.is_empty()).then(|| (text[..text.len() - rest.len()].trim_end(), rest))
}

fn import(
    entry: &Entry<'_>,
    call: &Call,
    args: &CrontabArgs,
    differences: &mut Differences,
) -> Result<Declared, LeftOut> {
    let user = call.user.as_deref().or(entry.user);
    let run_as = profile(&args.options.run_as, user, call.database.as_deref());
    if let (Some(wanted), Some(database), None) = (&args.database, &call.database, run_as)
        && wanted != database
    {
        return Err(LeftOut::new(
            format!("psql connects to the database \"{database}\""),
            "Import it into the fleet of that database, or map it to a target: --run-as @DATABASE=TARGET.",
        ));
    }
    let mut table = declaration::statement(&call.statement, run_as)?;
    if call.commits_each {
        put(&mut table, "mode", "autocommit");
    }
    let timing = timing(entry, args, differences)?;
    // cron starts a command whether or not the one before has ended.
    declaration::schedule(&mut table, &timing, "allow", true);
    differences.0.extend(call.differences.0.iter().cloned());
    if let (Some(user), None) = (user, run_as) {
        differences.unmapped("user", user);
    }
    if !call.commits_each && calls_procedure(&call.statement) {
        differences.call();
    }
    Ok(Declared { job: None, schedule: table })
}

fn timing(
    entry: &Entry<'_>,
    args: &CrontabArgs,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    if entry.time == "@reboot" {
        differences.manual();
        return Ok("manual".to_owned());
    }
    let given = entry.variables.get("CRON_TZ").map(String::as_str);
    if given.is_none() && args.zone.is_none() {
        differences.add(
            "the time is read as UTC, because cron uses the time zone of its machine",
            "Give the zone with --zone.",
        );
    }
    let zone = given.or(args.zone.as_deref()).unwrap_or("UTC");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
    if !zone.chars().all(plain) {
        return Err(LeftOut::new("CRON_TZ is not a time zone", "Correct CRON_TZ."));
    }
    let expression = cron::expression_of_word(entry.time).unwrap_or(entry.time);
    cron::timing(expression, zone, DIALECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_sets_a_variable_or_has_a_command() {
        assert_eq!(variable("A = \"b c\""), Some(("A", "b c")));
        assert_eq!(variable("MAILTO="), Some(("MAILTO", "")));
        assert_eq!(variable("0 0 * * * psql -c \"SELECT a = 1\""), None);
        assert_eq!(split_fields("0 1  *\t* *   psql -c x", 5), Some(("0 1  *\t* *", "psql -c x")));
        assert_eq!(split_fields("0 1 * * *", 5), None);
        assert_eq!(split_fields("@daily psql", 1), Some(("@daily", "psql")));
    }
}
