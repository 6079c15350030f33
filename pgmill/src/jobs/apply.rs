//! `pgmill apply`: applies jobs, schedules and dependencies from files in one transaction.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cli::source::{Source, ValidationError};
use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::{QueueError, job, scan};
use schedule::declare;
use schedule::enums::DeclaredIn;
use serde_json::json;
use tokio_postgres::Transaction;
use tokio_postgres::error::ErrorPosition;

use crate::args::{ApplyArgs, DryRun};
use crate::jobs::apply_plan::{ApplyPlan, Definitions};
use crate::jobs::job_file::{self, JobFile};
use crate::output::Output;
use crate::output::format::counted;
use crate::session::change;

/// A file that has been read.
pub(crate) struct Input {
    pub(crate) source: Source,
    /// The declarations of a .toml file; `None` for the script of a .sql file.
    pub(crate) file: Option<JobFile>,
}

impl Input {
    fn is_script(&self) -> bool {
        self.file.is_none()
    }
}

/// Returns the declarations of all .toml files.
fn files(inputs: &[Input]) -> impl Iterator<Item = &JobFile> {
    inputs.iter().filter_map(|input| input.file.as_ref())
}

/// Applies the files in one transaction, and prints the changes.
///
/// # Errors
/// Fails for a file that cannot be read or has an error, or that the database refuses.
pub(crate) async fn run(client: &mut Client, out: &Output, args: &ApplyArgs) -> Exit {
    let inputs = read(&args.paths)?;
    if let (true, Some(script)) = (args.prune, inputs.iter().find(|it| it.is_script())) {
        let message = format!("--prune cannot be used with {}", script.source.path.display());
        return Err(Failure::usage(message)
            .hint("The jobs that a .sql file declares are unknown: apply it separately."));
    }
    let plan = apply_inputs(client, &inputs, args.prune, args.dry_run).await?;
    print_plan(out, &plan, &inputs, args.dry_run)
}

/// Applies parsed files in one transaction. With `dry_run`, rolls it back.
///
/// # Errors
/// Fails if the database refuses a declaration; reports every refusal that it finds.
pub(crate) async fn apply_inputs(
    client: &mut Client,
    inputs: &[Input],
    prune: bool,
    dry_run: DryRun,
) -> Result<ApplyPlan, Failure> {
    let applied = change(client, dry_run, async |to| {
        let before = load_definitions(to).await?;
        for step in stages(inputs).iter().flatten() {
            step.apply(to, prune).await?;
        }
        if prune {
            prune_all(to, &before, inputs).await?;
        }
        Ok(ApplyPlan::between(&before, &load_definitions(to).await?))
    })
    .await;
    match applied {
        Err(first) if first.code() == exit::REFUSED => {
            let every = refusals(client, inputs, prune).await?;
            Err(Failure::all(every).unwrap_or(first))
        }
        applied => applied,
    }
}

fn print_plan(out: &Output, plan: &ApplyPlan, inputs: &[Input], dry_run: DryRun) -> Exit {
    let files = inputs.len();
    let apply = dry_run.or("would apply", "applied");
    let done = match plan.len() {
        // A script may have had other effects, which are not compared, so do not claim that nothing
        // changed.
        0 if inputs.iter().any(Input::is_script) => {
            "no changes to jobs, schedules and dependencies".to_owned()
        }
        0 => "no changes".to_owned(),
        n => format!("{apply} {} from {}", counted(n, "change"), counted(files, "file")),
    };
    let document = json!({
        "dry_run": dry_run, "files": files, "changed": plan.len() > 0, "plan": plan,
    });
    out.answer(document, plan.text(&done))
}

async fn load_definitions(transaction: &Transaction<'_>) -> Result<Definitions, Failure> {
    let schedules = declare::declared(transaction).await?.into_iter().map(|it| {
        let mut document = it.definition;
        document["enabled"] = json!(it.enabled);
        document
    });
    Ok(Definitions {
        jobs: job::definitions(transaction).await?,
        dependencies: job::dependencies(transaction).await?,
        schedules: schedules.collect(),
    })
}

/// A declaration or a script of a file.
enum Step<'a> {
    Dependency(&'a Source, &'a job_file::Dependency),
    Job(&'a Source, &'a job_file::Job),
    Script(&'a Source),
    Schedule(&'a Source, &'a job_file::Schedule),
}

/// Returns the steps in three stages.
fn stages(inputs: &[Input]) -> [Vec<Step<'_>>; 3] {
    // Dependencies first, because two checks of a job need them: that there is no cycle, and that a
    // task waits for each task whose result it uses. Schedules after all jobs: a schedule can run
    // jobs of any file.
    let mut stages = [vec![], vec![], vec![]];
    for input in inputs {
        let source = &input.source;
        match &input.file {
            Some(file) => {
                stages[0].extend(file.dependencies.iter().map(|it| Step::Dependency(source, it)));
                stages[1].extend(file.jobs.iter().map(|it| Step::Job(source, it)));
                stages[2].extend(file.schedules.iter().map(|it| Step::Schedule(source, it)));
            }
            None => stages[1].push(Step::Script(source)),
        }
    }
    stages
}

impl Step<'_> {
    async fn apply(&self, transaction: &Transaction<'_>, prune: bool) -> Result<(), Failure> {
        match self {
            Self::Dependency(source, it) => {
                job::set_dependency(transaction, &it.child, &it.parent, it.expected)
                    .await
                    .map_err(|error| dependency_failure(&source.location(it.at), error))?;
            }
            Self::Job(source, job) => {
                let mut document = job.document.clone();
                // A job that a prune disabled is enabled when a file declares it again.
                if prune && document.get("enabled").is_none() {
                    document["enabled"] = json!(true);
                }
                let set = job::set(transaction, &document).await;
                set.map_err(|error| job_failure(source, job, error))?;
            }
            Self::Script(source) => {
                let done = transaction.batch_execute(&source.text).await;
                done.map_err(|error| sql_failure(source, error.into()))?;
            }
            Self::Schedule(source, it) => {
                let put = declare::put(transaction, &it.document, DeclaredIn::File, None).await;
                put.map_err(|error| Failure::from(error).at(&source.location(it.at)))?;
            }
        }
        Ok(())
    }
}

/// Applies each declaration in a savepoint, to find every one that the database refuses, and rolls
/// everything back. Stops after the first stage with a refusal, because the next stage depends on
/// it. Finds nothing if there is a script, which may have effects that cannot be rolled back.
async fn refusals(
    client: &mut Client,
    inputs: &[Input],
    prune: bool,
) -> Result<Vec<Failure>, Failure> {
    if inputs.iter().any(Input::is_script) {
        return Ok(Vec::new());
    }
    change(client, DryRun::from(true), async |to| {
        let mut failures = Vec::new();
        for stage in stages(inputs) {
            for step in &stage {
                let savepoint = to.savepoint("step").await.map_err(QueueError::from)?;
                match step.apply(&savepoint, prune).await {
                    Ok(()) => savepoint.commit().await.map_err(QueueError::from)?,
                    Err(failure) => {
                        savepoint.rollback().await.map_err(QueueError::from)?;
                        failures.push(failure);
                    }
                }
            }
            if !failures.is_empty() {
                break;
            }
        }
        Ok(failures)
    })
    .await
}

fn dependency_failure(place: &str, error: QueueError) -> Failure {
    let circle = error.refused();
    let failure = Failure::from(error).at(place);
    // Other dependencies of the cycle may come from earlier files: apply does not remove them.
    failure.maybe_hint(circle.then_some(
        "pgmill dependency list shows the existing ones; pgmill dependency remove removes one.",
    ))
}

/// Adds the location of the task, which the server reports as the column of the error.
fn job_failure(source: &Source, job: &job_file::Job, error: QueueError) -> Failure {
    let task = match &error {
        QueueError::Database(error) => error.as_db_error().and_then(|it| it.column()),
        _ => None,
    };
    let place = source.location(job.offset_of_task(task));
    Failure::from(error).at(&place)
}

fn sql_failure(source: &Source, error: QueueError) -> Failure {
    let QueueError::Database(database) = &error else { return error.into() };
    let Some(db) = database.as_db_error().filter(|_| !error.temporary()) else {
        return Failure::from(error).at(&source.path.display().to_string());
    };
    let (place, context) = match db.position() {
        Some(ErrorPosition::Original(position)) => {
            let caret = terminal::caret(&source.text, *position);
            (source.location_of_character(*position), caret.map(|lines| format!("\n{lines}")))
        }
        _ => {
            let context = db.where_().map(|lines| format!("\n{lines}"));
            (source.path.display().to_string(), context)
        }
    };
    let message = format!("{error}{}", context.unwrap_or_default());
    Failure::new(exit::REFUSED, message).at(&place).maybe_hint(db.hint())
}

async fn prune_all(
    transaction: &Transaction<'_>,
    before: &Definitions,
    inputs: &[Input],
) -> Result<(), Failure> {
    let declared: BTreeSet<String> =
        files(inputs).flat_map(|file| &file.jobs).map(|job| job.name.to_lowercase()).collect();
    for document in &before.jobs {
        let Some(name) = document["name"].as_str() else { continue };
        if document["enabled"] == true && !declared.contains(&name.to_lowercase()) {
            job::enable(transaction, name, false).await?;
        }
    }
    prune_schedules(transaction, inputs).await
}

/// Removes schedules that earlier files declared and these files do not.
async fn prune_schedules(transaction: &Transaction<'_>, inputs: &[Input]) -> Result<(), Failure> {
    let declared: BTreeSet<&str> =
        files(inputs).flat_map(|file| &file.schedules).map(|it| it.name.as_str()).collect();
    let known = declare::declared(transaction).await?;
    let gone: Vec<String> = known
        .into_iter()
        .filter(|it| it.declared_in == DeclaredIn::File && !declared.contains(it.name.as_str()))
        .map(|it| it.name)
        .collect();
    declare::remove(transaction, &gone).await?;
    Ok(())
}

/// Reads and checks all files before the database is used.
fn read(paths: &[PathBuf]) -> Result<Vec<Input>, Failure> {
    let (mut inputs, mut failures) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (path, named) in paths_of_files(paths)? {
        let known = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !seen.insert(known.clone()) {
            continue;
        }
        let source = match Source::read(&path) {
            Ok(source) => source,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        match ends_in(&path, "toml").then(|| job_file::read(&source)).transpose() {
            Ok(file) => inputs.push((Input { source, file }, known, named)),
            Err(errors) => {
                failures.extend(errors.into_iter().map(|error| source.to_failure(error)));
            }
        }
    }
    let statements: BTreeSet<PathBuf> = inputs
        .iter()
        .filter_map(|(input, ..)| input.file.as_ref())
        .flat_map(|file| &file.statement_files)
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    // Skip files of a folder that tasks name as statement_file: they are not scripts.
    // A file with errors may name further ones.
    let all_read = failures.is_empty();
    inputs.retain(|(input, known, named)| {
        *named || !statements.contains(known) && (all_read || !input.is_script())
    });
    let inputs: Vec<Input> = inputs.into_iter().map(|(input, ..)| input).collect();
    let mut files = Vec::new();
    for Input { source, file } in &inputs {
        match file {
            Some(file) => files.push((source, file)),
            None => failures.extend(runnable(source).err()),
        }
    }
    failures.extend(job_file::check(&files));
    Failure::all(failures).map_or(Ok(inputs), Err)
}

/// Checks that a script has no transaction control and no COPY through the client: it runs inside
/// the transaction of apply, and no client sends data.
fn runnable(source: &Source) -> Result<(), Failure> {
    let Some(forbidden) = scan::forbidden(&source.text) else { return Ok(()) };
    let (message, hint) = match forbidden {
        scan::Forbidden::TransactionControl { word, .. } => {
            (format!("{word} is not allowed, because all files are one transaction"), "Remove it.")
        }
        scan::Forbidden::ByteOrderMark { .. } => (forbidden.to_string(), forbidden.hint()),
        scan::Forbidden::CopyFromStdin { .. } | scan::Forbidden::CopyToStdout { .. } => {
            ("COPY through the client is not supported".to_owned(), "Use INSERT, or psql.")
        }
    };
    Err(source.to_failure(ValidationError::new(forbidden.offset(), message).hint(hint)))
}

/// Returns the files, and whether each was named directly (not found in a folder).
fn paths_of_files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, bool)>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            if !ends_in(path, "toml") && !ends_in(path, "sql") && path.exists() {
                let message = format!("{} must end in .toml or .sql", path.display());
                return Err(Failure::usage(message));
            }
            files.push((path.clone(), true));
            continue;
        }
        let wrong = |error| Failure::usage(format!("{}: {error}", path.display()));
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(wrong)? {
            let file = entry.map_err(wrong)?.path();
            if (ends_in(&file, "toml") || ends_in(&file, "sql")) && !file.is_dir() {
                found.push((file, false));
            }
        }
        if found.is_empty() {
            let message = format!("no .toml or .sql file in {}", path.display());
            return Err(Failure::usage(message));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension == ending)
}
