//! `pgmill group import`: groups from a CSV file.

use std::collections::BTreeSet;
use std::path::Path;

use cli::{Exit, Failure};
use conninfo::Client;
use import::csv::{LineError, records};
use queue::Priority;
use queue::group::{self, Group};
use serde_json::json;
use terminal::label;

use crate::args::{DryRun, GroupArgs, GroupImportArgs, parse_max_running, parse_period};
use crate::fleet::group_settings::{apply, period};
use crate::output::{Output, Row};
use crate::session::change;

/// The columns, each with its other names.
const COLUMNS: [(&str, &[&str]); 7] = [
    ("group", &["name", "batch group"]),
    ("description", &[]),
    ("priority", &["scheduling priority"]),
    ("max_running", &["max concurrency", "degree of concurrency"]),
    ("reserved", &["reserved capacity"]),
    ("active", &["active period"]),
    ("zone", &["time zone"]),
];

/// The settings of a group, and their line.
#[derive(Debug)]
struct GroupLine {
    line: usize,
    args: GroupArgs,
}

/// Creates or changes the groups of a file in one transaction.
///
/// # Errors
/// Fails if the file cannot be read, or if a line has an error.
pub(super) async fn run(client: &mut Client, out: &Output, args: &GroupImportArgs) -> Exit {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Failure::usage(format!("{file}: {error}")))?;
    let groups = groups(&text).map_err(|errors| in_lines(&args.file, &errors))?;
    let results = change(client, args.dry_run, async |to| {
        let before = group::groups(to).await?;
        let mut results = Vec::new();
        for GroupLine { line, args: settings } in &groups {
            let old = before.iter().find(|group| group.name == settings.name);
            let result = match old {
                None => "new",
                Some(old) if changes(settings, old) => "changed",
                Some(_) => "unchanged",
            };
            if result != "unchanged" {
                let applied = apply(to, settings).await;
                applied.map_err(|failure| failure.at(&format!("{file}:{line}")))?;
            }
            results.push((settings.name.as_str(), result));
        }
        Ok(results)
    })
    .await?;
    if out.json {
        let groups = results.iter().map(|(name, result)| json!({"group": name, "result": result}));
        let groups: Vec<_> = groups.collect();
        return out.document(&json!({ "dry_run": args.dry_run, "groups": groups }));
    }
    let heading = args.dry_run.or("would be", "result");
    let row = |(name, result): &(&str, &str)| Row::of("group", name).text(heading, result);
    out.print_table(results.iter().map(row).collect())
}

fn in_lines(file: &Path, errors: &[LineError]) -> Failure {
    let lines: Vec<String> = errors
        .iter()
        .map(|(line, message)| format!("{}:{line}: {message}", file.display()))
        .collect();
    Failure::usage(lines.join("\n"))
}

/// Returns whether the settings differ from those of the group.
fn changes(args: &GroupArgs, old: &Group) -> bool {
    args.description.as_ref().is_some_and(|it| old.description.as_ref() != Some(it))
        || args.priority.is_some_and(|it| old.priority != Some(it))
        || args.max_running.is_some_and(|it| old.max_running != it.0)
        || args.active.is_some_and(|it| old.active_period != period(it, &args.zone))
}

/// Parses the groups of a file.
///
/// # Errors
/// Returns every line with an error.
fn groups(text: &str) -> Result<Vec<GroupLine>, Vec<LineError>> {
    let mut lines = records(text).map_err(|error| vec![error])?.into_iter();
    let (at, header) = lines.next().ok_or_else(|| vec![(1, "the file is empty".to_owned())])?;
    let columns = columns(&header).map_err(|message| vec![(at, message)])?;
    let (mut groups, mut errors, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (line, fields) in lines {
        match settings(&columns, &fields) {
            Ok(args) if !names.insert(args.name.clone()) => {
                errors.push((line, format!("group \"{}\" occurs twice", args.name)));
            }
            Ok(args) => groups.push(GroupLine { line, args }),
            Err(message) => errors.push((line, message)),
        }
    }
    if errors.is_empty() { Ok(groups) } else { Err(errors) }
}

/// Returns the column of each field.
fn columns(header: &[String]) -> Result<Vec<&'static str>, String> {
    let column = |given: &String| {
        let plain = given.trim().to_lowercase().replace(['_', '-'], " ");
        let found = COLUMNS.iter().find(|(name, others)| {
            name.replace('_', " ") == plain || others.contains(&plain.as_str())
        });
        let known = COLUMNS.map(|(name, _)| name).join(", ");
        found
            .map(|(name, _)| *name)
            .ok_or_else(|| format!("unknown column \"{}\"; the columns are {known}", given.trim()))
    };
    let columns: Vec<&str> = header.iter().map(column).collect::<Result<_, _>>()?;
    let unique: BTreeSet<&&str> = columns.iter().collect();
    if unique.len() < columns.len() {
        return Err("a column occurs twice".to_owned());
    }
    if !columns.contains(&"group") {
        return Err("missing column group".to_owned());
    }
    Ok(columns)
}

fn settings(columns: &[&str], fields: &[String]) -> Result<GroupArgs, String> {
    if fields.len() != columns.len() {
        return Err(format!("{} fields, expected {}", fields.len(), columns.len()));
    }
    let field = |name: &str| {
        let place = columns.iter().position(|column| *column == name)?;
        Some(fields[place].trim()).filter(|text| !text.is_empty())
    };
    let in_column = |name: &str, message: String| format!("{name}: {message}");
    let name = label(field("group").unwrap_or_default()).map_err(|it| in_column("group", it))?;
    let parsed = |name| field(name).map(priority).transpose().map_err(|it| in_column(name, it));
    let own = parsed("priority")?;
    let priority = match field("reserved").map(str::to_lowercase).as_deref() {
        Some("yes" | "true" | "1") if own.is_none_or(|own| own == Priority::Reserved) => {
            Some(Priority::Reserved)
        }
        Some("yes" | "true" | "1") => {
            return Err("reserved contradicts the priority".to_owned());
        }
        None | Some("no" | "false" | "0") => own,
        Some(other) => return Err(format!("reserved: expected yes or no, not \"{other}\"")),
    };
    let max_running = field("max_running").map(parse_max_running).transpose();
    let active = field("active").map(parse_period).transpose();
    Ok(GroupArgs {
        name,
        description: field("description").map(str::to_owned),
        priority,
        max_running: max_running.map_err(|it| in_column("max_running", it))?,
        active: active.map_err(|it| in_column("active", it))?,
        zone: field("zone").unwrap_or("UTC").to_owned(),
        dry_run: DryRun::default(),
    })
}

fn priority(text: &str) -> Result<Priority, String> {
    match text.to_lowercase().as_str() {
        "reserved capacity" => Ok(Priority::Reserved),
        other => other.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OrOff;

    #[test]
    fn a_file_has_a_group_per_line() {
        let text = "\u{feff}Batch group,Description,Scheduling priority,Max concurrency,Reserved,Active period,Zone\r\n\
                    nightly,\"loads, \"\"big\"\"\nones\",Low,4,no,22:00-06:00,Europe/Berlin\r\n\r\n\
                    month end,,Reserved capacity,off,yes,off,\r\n";
        let found = groups(text).unwrap();
        let [nightly, month_end] = &found[..] else { panic!("{found:?}") };
        assert_eq!((nightly.line, month_end.line), (2, 5));
        let args = &nightly.args;
        assert_eq!(args.description.as_deref(), Some("loads, \"big\"\nones"));
        assert_eq!((args.priority, args.max_running), (Some(Priority::Low), Some(OrOff(Some(4)))));
        assert_eq!(args.zone, "Europe/Berlin");
        let args = &month_end.args;
        assert_eq!((args.name.as_str(), args.description.as_deref()), ("month end", None));
        assert_eq!(
            (args.priority, args.max_running),
            (Some(Priority::Reserved), Some(OrOff(None)))
        );
        assert_eq!(args.active, Some(OrOff(None)));
    }

    #[test]
    fn every_line_with_an_error_is_reported() {
        for (text, line, part) in [
            ("", 1, "empty"),
            ("name,colour\n", 1, "unknown column \"colour\"; the columns are group, "),
            ("description\nx", 1, "missing column group"),
            ("group,name\nx,y", 1, "twice"),
            ("group\n\"x", 2, "not closed"),
            ("group\nx\"y", 2, "a quote inside"),
            ("group,priority\na,urgent", 2, "priority: \"urgent\" is not one of low, "),
            ("group,priority,reserved\na,low,yes", 2, "contradicts"),
            ("group,reserved\na,maybe", 2, "expected yes or no"),
            ("group,max_running\na,-1", 2, "max_running: "),
            ("group,active\na,22", 2, "active: expected FROM-TO"),
            ("group\na\n\na", 4, "group \"a\" occurs twice"),
            ("group,zone\na", 2, "1 fields, expected 2"),
        ] {
            let errors = groups(text).unwrap_err();
            assert!(errors[0].0 == line && errors[0].1.contains(part), "{text:?}: {errors:?}");
        }
        let errors = groups("group,priority\na,x\nb,low\nc,y").unwrap_err();
        assert_eq!(errors.iter().map(|it| it.0).collect::<Vec<_>>(), [2, 4]);
    }
}
