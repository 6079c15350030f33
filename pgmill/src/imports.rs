//! `pgmill import`: applies jobs and schedules from the definitions of other systems.
//!
//! The crate `import` converts the definitions to the text of a job file. This text is read as
//! `apply` reads a file, so both have the same rules, and the declarations are applied by the same
//! code. `dbt` sets the job of a dbt project, which has no job file.

mod dbt;

use std::path::Path;

use cli::{Exit, Failure};
use conninfo::Client;
use import::args::{Import, ImportOptions, ImportSource};
use import::conversion::{Conversion, RemarkKind};
use import::convert;
use serde_json::json;

use crate::args::DryRun;
use crate::jobs::apply::{Input, apply_inputs};
use crate::jobs::apply_plan::ApplyPlan;
use crate::jobs::job_file;
use crate::output::Output;
use crate::output::format::counted;

/// Runs a subcommand of `pgmill import`.
pub(crate) async fn run(client: &mut Client, out: &Output, import: &Import) -> Exit {
    match import {
        Import::Dbt(args) => dbt::run(client, out, args).await,
        Import::Source(source) => apply(client, out, source).await,
    }
}

/// Prints the job file to which the definitions are converted.
///
/// # Errors
/// Fails if the file cannot be read or is not what the source exports; with `--strict`, also if a
/// definition has to be left out.
pub(crate) fn print(out: &Output, import: &ImportSource) -> Exit {
    let options = import.options();
    let conversion = convert(import)?;
    // Checks the text, so that `apply` accepts what is printed.
    read(&conversion, &options.file)?;
    report(&conversion);
    refuse_if_strict(&conversion, options)?;
    out.text(conversion.job_file(&options.file).text.trim_end())
}

/// Applies the definitions in one transaction, and prints the changes.
///
/// # Errors
/// As [`print`]; also if the database refuses a definition.
async fn apply(client: &mut Client, out: &Output, import: &ImportSource) -> Exit {
    let options = import.options();
    let conversion = convert(import)?;
    let input = read(&conversion, &options.file)?;
    if !out.json {
        report(&conversion);
    }
    refuse_if_strict(&conversion, options)?;
    let plan = apply_inputs(client, &[input], false, options.dry_run.into()).await?;
    print_plan(out, &plan, &conversion, options.dry_run.into())
}

/// Reads the converted text as a job file.
fn read(conversion: &Conversion, file: &Path) -> Result<Input, Failure> {
    let source = conversion.job_file(file);
    let failures = match job_file::read(&source) {
        Ok(read) => {
            let failures = job_file::check(&[(&source, &read)]);
            if failures.is_empty() {
                return Ok(Input { source, file: Some(read) });
            }
            failures
        }
        Err(errors) => errors.into_iter().map(|error| source.to_failure(error)).collect(),
    };
    let unknown = || Failure::usage("the definitions cannot be read as a job file");
    Err(Failure::all(failures).unwrap_or_else(unknown))
}

/// Prints the remarks on standard error.
fn report(conversion: &Conversion) {
    for line in conversion.remark_lines() {
        eprintln!("{}", terminal::visible(&line));
    }
}

fn refuse_if_strict(conversion: &Conversion, options: &ImportOptions) -> Result<(), Failure> {
    let left_out = conversion.count(RemarkKind::LeftOut);
    if !options.strict || left_out == 0 {
        return Ok(());
    }
    let what = counted(left_out, "definition");
    Err(Failure::usage(format!("{what} would be left out; nothing was imported"))
        .hint("Correct them, or import the others without --strict."))
}

fn print_plan(out: &Output, plan: &ApplyPlan, conversion: &Conversion, dry_run: DryRun) -> Exit {
    let apply = dry_run.or("would apply", "applied");
    let from = counted(conversion.definitions(), "definition");
    let left_out = match conversion.count(RemarkKind::LeftOut) {
        0 => String::new(),
        count => format!("; {} left out", counted(count, "definition")),
    };
    let done = match plan.len() {
        0 => format!("no changes from {from}{left_out}"),
        changes => format!("{apply} {} from {from}{left_out}", counted(changes, "change")),
    };
    let document = json!({
        "dry_run": dry_run,
        "imported": conversion.definitions(),
        "changed": plan.len() > 0,
        "plan": plan,
        "left_out": conversion.remarks(RemarkKind::LeftOut),
        "different": conversion.remarks(RemarkKind::Different),
    });
    out.answer(document, plan.text(&done))
}
