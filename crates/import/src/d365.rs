//! `pgmill import d365`: batch jobs of Dynamics 365 Finance and Operations.
//!
//! The system exports no tasks and conditions of batch jobs, and its tasks are X++ classes. So the
//! document is one of pgmill, with the fields of the forms of batch jobs, and has the statement that
//! replaces each class. `docs/coming-from/d365.md` describes it.

mod recurrence;
mod tasks;

use std::collections::BTreeMap;

use cli::Failure;
use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::conversion::{Conversion, Declared, Differences, LeftOut, Original};
use super::declaration::put;
use super::names::profile;
use super::rows::Row;
use crate::args::D365Args;

const LAYOUT: &str = "docs/coming-from/d365.md describes the document.";

/// Fields of a batch job, with blanks between them.
const JOB_FIELDS: &str = "job_description scheduled_start time_zone status run_by monitoring_category \
    critical_job batch_group scheduling_priority company recurrence active_period tasks \
    job_id";

/// Statements by class.
type Classes = BTreeMap<String, String>;

/// Converts the document.
///
/// # Errors
/// Fails if the text is not such a document.
pub(crate) fn convert(text: &str, args: &D365Args) -> Result<Conversion, Failure> {
    let wrong = |message: String| Failure::usage(message).hint(LAYOUT);
    if text.trim().is_empty() {
        return Err(wrong("the file is empty".to_owned()));
    }
    let document: Json =
        serde_json::from_str(text).map_err(|error| wrong(format!("not valid JSON: {error}")))?;
    let fields = Fields::read("the document", &document, "classes batch_jobs").map_err(wrong)?;
    let classes = classes(&fields).map_err(wrong)?;
    let jobs = fields.row.get("batch_jobs").and_then(Json::as_array);
    let jobs = jobs.ok_or_else(|| wrong("the document has no array batch_jobs".to_owned()))?;
    let read = |(number, job): (usize, &Json)| {
        let id = (number + 1).to_string();
        let place = format!("batch job {id}");
        let fields = Fields::read(&place, job, JOB_FIELDS)?;
        let name = fields.row.name("job_description");
        let name = name.ok_or_else(|| format!("{place} has no job_description"))?;
        Ok(Original { place: format!("{place} \"{name}\""), id, name, definition: fields })
    };
    let jobs = jobs.iter().enumerate().map(read).collect::<Result<Vec<_>, String>>();
    let mut conversion = Conversion::default();
    conversion.import(&args.options, &jobs.map_err(wrong)?, |fields, name, differences| {
        import(fields, &classes, name, args, differences).inspect_err(|_| differences.0.clear())
    });
    Ok(conversion)
}

/// The fields of an object of the document, with their names in a single form.
struct Fields {
    row: Row,
    /// Fields that the import does not know, as they are written.
    unknown: Vec<String>,
}

impl Fields {
    /// Reads an object. `Job description`, `JobDescription` and `job_description` are one name.
    fn read(place: &str, value: &Json, known: &str) -> Result<Self, String> {
        let object = value.as_object().ok_or_else(|| format!("{place} is not a JSON object"))?;
        let plain = |name: &str| {
            name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase()
        };
        let (mut fields, mut unknown) = (Map::new(), Vec::new());
        for (name, value) in object {
            match known.split(' ').find(|known| plain(known) == plain(name)) {
                Some(known) => {
                    if fields.insert(known.to_owned(), value.clone()).is_some() {
                        return Err(format!("{place} has the field {known} twice"));
                    }
                }
                None => unknown.push(name.clone()),
            }
        }
        Ok(Self { row: Row::new(place.to_owned(), fields), unknown })
    }
}

fn classes(document: &Fields) -> Result<Classes, String> {
    let Some(classes) = document.row.get("classes") else { return Ok(Classes::new()) };
    let classes = classes.as_object().ok_or("classes is not an object of statements")?;
    let class = |(name, statement): (&String, &Json)| match statement.as_str() {
        Some(statement) => Ok((name.clone(), statement.to_owned())),
        None => Err(format!("classes: {name} is not a statement")),
    };
    classes.iter().map(class).collect()
}

fn import(
    fields: &Fields,
    classes: &Classes,
    name: &str,
    args: &D365Args,
    differences: &mut Differences,
) -> Result<Declared, LeftOut> {
    let row = &fields.row;
    unknown_fields(&fields.unknown, differences);
    let zone = row.name("time_zone").unwrap_or_else(|| args.zone.clone());
    let timing = recurrence::timing(row, &zone, differences)?;
    let mut job = tasks::tasks(row, classes, differences)?;
    put(&mut job, "description", row.name("job_description").unwrap_or_default());
    if let Some(category) = row.name("monitoring_category") {
        put(&mut job, "category", category);
    }
    if let Some(priority) = row.name("scheduling_priority") {
        put(&mut job, "priority", priority_of(&priority)?);
    }
    if let Some(group) = row.name("batch_group") {
        put(&mut job, "group", group);
    }
    if row.truth("critical_job", false).map_err(invalid)? {
        put(&mut job, "tags", vec![Value::from("critical")]);
    }
    if let Some(company) = row.name("company") {
        put(&mut job, "metadata", Table::from_iter([("company".to_owned(), company.into())]));
    }
    let user = row.name("run_by");
    match (profile(&args.options.run_as, user.as_deref(), None), user) {
        (Some(profile), _) => put(&mut job, "run_as", profile),
        (None, Some(user)) => differences.unmapped("user", &user),
        (None, None) => {}
    }
    let mut schedule = Table::new();
    put(&mut schedule, "job", name);
    put(&mut schedule, "timing", timing);
    let status = row.name("status").unwrap_or_default().to_lowercase();
    if ["withhold", "ended", "canceled", "cancelled", "error"].contains(&status.as_str()) {
        put(&mut schedule, "enabled", false);
    }
    Ok(Declared { job: Some(job), schedule })
}

fn unknown_fields(names: &[String], differences: &mut Differences) {
    names.iter().for_each(|name| differences.add(format!("unknown field \"{name}\""), LAYOUT));
}

/// The document does not have the form that the page describes.
fn invalid(message: impl Into<String>) -> LeftOut {
    LeftOut::new(message, LAYOUT)
}

fn priority_of(text: &str) -> Result<&'static str, LeftOut> {
    match text.to_lowercase().as_str() {
        "low" => Ok("low"),
        "normal" => Ok("normal"),
        "high" => Ok("high"),
        "critical" => Ok("critical"),
        "reserved" | "reserved capacity" => Ok("reserved"),
        _ => Err(LeftOut::new(
            format!("\"{text}\" is not a scheduling priority"),
            "The priorities are Low, Normal, High, Critical and Reserved capacity.",
        )),
    }
}
