//! Versions of a job: a list, and the differences between two of them per task and field.

use queue::insight::jobs::versions::{
    FieldChange, JobVersion, WHOLE_TASK, job_changes, job_versions,
};
use queue::job;
use terminal::line_changes;

use super::job::no_such_job;
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/jobs/versions", get(show))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VersionsParams {
    name: String,
    /// The old version; empty: the version before the newest.
    from: String,
    /// The new version; empty: the newest.
    to: String,
}

/// A changed field as the page shows it.
struct ChangeView {
    task: String,
    field: String,
    lines: Vec<(char, String)>,
}

#[derive(Template)]
#[template(path = "job_versions.html")]
struct VersionsPage {
    page: Layout,
    name: String,
    versions: Vec<JobVersion>,
    from: i32,
    to: i32,
    changes: Vec<ChangeView>,
}

impl VersionsPage {
    /// Returns the URL of the difference between the version at this place and the one before it.
    fn change_path(&self, place: &usize) -> Option<String> {
        let (new, old) = (self.versions.get(*place)?, self.versions.get(place + 1)?);
        Some(format!(
            "{}/jobs/versions?name={}&from={}&to={}",
            self.page.base,
            format::url_encode(&self.name),
            old.version,
            new.version
        ))
    }
}

/// Reads the versions of a job that exists, newest first.
pub(crate) async fn data(tx: &Transaction<'_>, name: &str) -> Result<Vec<JobVersion>, HttpError> {
    let versions = job_versions(tx, name.trim()).await?;
    if versions.is_empty() && job::definition(tx, name.trim()).await?.is_none() {
        return Err(no_such_job(name));
    }
    Ok(versions)
}

async fn show(mut request: ReadRequest, Query(params): Query<VersionsParams>) -> HandlerResult {
    let read = request.begin().await?;
    let versions = data(&read.tx, &params.name).await?;
    let name = versions.first().map_or(params.name.trim(), |it| &it.job).to_owned();
    let (mut from, mut to, mut changes) = (0, 0, Vec::new());
    if let (Some(newest), Some(oldest)) = (versions.first(), versions.last()) {
        let old = find(&versions, &params.from, versions.get(1).unwrap_or(oldest))?;
        let new = find(&versions, &params.to, newest)?;
        (from, to) = (old.version, new.version);
        changes = job_changes(&old.definition, &new.definition).into_iter().map(view).collect();
    }
    let page = read.layout(format!("Versions of {name}"));
    render(&VersionsPage { page, name, versions, from, to, changes })
}

/// Finds a version by its number; an empty number is the default.
fn find<'a>(
    versions: &'a [JobVersion],
    number: &str,
    default: &'a JobVersion,
) -> Result<&'a JobVersion, HttpError> {
    if number.is_empty() {
        return Ok(default);
    }
    let found = versions.iter().find(|it| it.version.to_string() == number);
    found.ok_or_else(|| {
        HttpError::not_found(format!("there is no version {number} of this job"))
            .hint("the database keeps the last 50 versions")
    })
}

fn view(change: FieldChange) -> ChangeView {
    let text = |value: &Option<Value>| match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value @ Value::Object(_)) => {
            serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
        }
        Some(value) => value.to_string(),
    };
    let lines = line_changes(&text(&change.old), &text(&change.new));
    let field = match (change.field.as_str(), &change.old) {
        (WHOLE_TASK, None) => "added".to_owned(),
        (WHOLE_TASK, Some(_)) => "removed".to_owned(),
        (field, _) => field.to_owned(),
    };
    ChangeView { task: change.task.unwrap_or_default(), field, lines }
}
