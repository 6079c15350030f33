//! Checks all files together: unique jobs and schedules, known parents, no dependency cycles.

use cli::Failure;
use cli::source::{Source, ValidationError};
use std::collections::BTreeMap;

use super::{Dependency, Job, JobFile, Parsed};
use crate::jobs::topology;

/// Checks the files without the database, which does the remaining checks.
///
/// Returns the errors with their locations.
pub(crate) fn check(files: &[(&Source, &JobFile)]) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    for (source, file) in files {
        for job in &file.jobs {
            if let Some(first) = places.insert(job.name.to_lowercase(), source.location(job.at)) {
                let message = format!("job \"{}\" is already declared at {first}", job.name);
                failures.push(source.to_failure(ValidationError::new(job.at, message)));
            }
            failures.extend(unknown_parents(job).map(|error| source.to_failure(error)));
        }
    }
    failures.extend(duplicate_schedules(files, &places));
    let everywhere: Vec<(&Source, &Dependency)> = files
        .iter()
        .flat_map(|(source, file)| file.dependencies.iter().map(|it| (*source, it)))
        .collect();
    // A cycle of dependencies, or an unknown parent, would be reported again as a cycle of jobs.
    failures.extend(check_dependency_cycles(&everywhere).err());
    if failures.is_empty() {
        for (source, file) in files {
            let cycles = file.jobs.iter().filter_map(|job| check_job_cycle(job, &everywhere).err());
            failures.extend(cycles.map(|error| source.to_failure(error)));
        }
    }
    failures
}

/// Returns an error for each schedule that is not unique. `jobs` has the locations of jobs by
/// lower-case name.
fn duplicate_schedules(
    files: &[(&Source, &JobFile)],
    jobs: &BTreeMap<String, String>,
) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut places: BTreeMap<&str, String> = BTreeMap::new();
    for (source, file) in files {
        for it in &file.schedules {
            let wrong = |message| source.to_failure(ValidationError::new(it.at, message));
            if let Some(first) = places.insert(&it.name, source.location(it.at)) {
                let message = "is already declared at";
                failures.push(wrong(format!("schedule \"{}\" {message} {first}", it.name)));
            }
            // A schedule with a statement owns a job with its own name.
            let job = jobs.get(&it.name.to_lowercase());
            if let Some(job) = job.filter(|_| it.document.get("statement").is_some()) {
                let message = "has a statement, and a job has the same name at";
                failures.push(wrong(format!("schedule \"{}\" {message} {job}", it.name)));
            }
        }
    }
    failures
}

/// Returns an error for each parent that is not a task of the job.
fn unknown_parents(job: &Job) -> impl Iterator<Item = ValidationError> {
    let parents = job.tasks.iter().flat_map(|task| task.parents.iter().map(move |it| (task, it)));
    let unknown =
        parents.filter(|(_, parent)| !job.tasks.iter().any(|known| known.name == parent.name));
    unknown.map(|(task, parent)| {
        let message = format!(
            "task \"{}\" of job \"{}\" waits for \"{}\", which is not a task of this job",
            task.name, job.name, parent.name
        );
        ValidationError::new(parent.at, message)
            .hint("For tasks of different jobs, use a [[dependency]].")
    })
}

/// Reports the dependency that completes a cycle.
fn check_dependency_cycles(everywhere: &[(&Source, &Dependency)]) -> Result<(), Failure> {
    let mut edges: Vec<(&str, &str)> = Vec::new();
    let all: Vec<(&str, &str)> = everywhere.iter().map(|(_, it)| edge(it)).collect();
    if topology::levels(ends(&all), &all).is_ok() {
        return Ok(());
    }
    for (source, dependency) in everywhere {
        edges.push(edge(dependency));
        if let Err(path) = topology::levels(ends(&edges), &edges) {
            let message = format!("dependency cycle: {path}");
            return Err(source.to_failure(ValidationError::new(dependency.at, message)));
        }
    }
    Ok(())
}

fn edge(dependency: &Dependency) -> (&str, &str) {
    (&dependency.parent, &dependency.child)
}

fn ends<'a>(edges: &[(&'a str, &'a str)]) -> impl Iterator<Item = &'a str> {
    edges.iter().flat_map(|(parent, child)| [*parent, *child]).collect::<Vec<_>>().into_iter()
}

fn check_job_cycle(job: &Job, everywhere: &[(&Source, &Dependency)]) -> Parsed<()> {
    let own = job.tasks.iter().flat_map(|task| {
        task.parents.iter().map(|parent| (parent.name.as_str(), task.name.as_str()))
    });
    let edges: Vec<(&str, &str)> =
        own.chain(everywhere.iter().map(|(_, dependency)| edge(dependency))).collect();
    let names = job.tasks.iter().map(|task| task.name.as_str());
    topology::levels(names, &edges).map(|_| ()).map_err(|path| {
        let first = path.split(" > ").next();
        let message = format!("dependency cycle in job \"{}\": {path}", job.name);
        ValidationError::new(job.offset_of_task(first), message)
    })
}
