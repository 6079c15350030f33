//! Runs the expected tests against mutants.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::catalog::Mutant;
use crate::outcome::{Fate, Outcome};
use crate::scratch::Scratch;
use crate::suite::{Replacement, Suite, Verdict};

/// How mutants are run.
pub(crate) struct Plan {
    pub(crate) repository: PathBuf,
    /// Folder for mutated schemas, and for the copy of the sources.
    pub(crate) folder: PathBuf,
    /// Time for the expected tests of one mutant.
    pub(crate) limit: Duration,
    /// Time for all tests, for a mutant that survives its expected tests.
    pub(crate) full: Option<Duration>,
    /// Whether the tests run without a mutant first.
    pub(crate) control: bool,
    /// Number of mutants that are tested at once.
    pub(crate) jobs: usize,
}

/// Runs the expected tests on the unchanged product.
///
/// # Errors
/// Returns an error if one of them fails: it could not tell a mutant from the product.
pub(crate) async fn control(
    suite: &Suite,
    mutants: &[Mutant],
    plan: &Plan,
    product: &Replacement,
) -> Result<()> {
    if !plan.control {
        return Ok(());
    }
    let mut tests: Vec<String> =
        mutants.iter().flat_map(|mutant| mutant.tests.iter().cloned()).collect();
    tests.sort();
    tests.dedup();
    let begun = Instant::now();
    let limit = plan.limit.saturating_mul(u32::try_from(tests.len()).unwrap_or(u32::MAX));
    match suite.run(&tests, product, limit).await? {
        Verdict::Passed => {
            let seconds = begun.elapsed().as_secs();
            eprintln!("mutants: {} tests pass without a mutant, {seconds} s", tests.len());
            Ok(())
        }
        Verdict::Failed(test) => bail!("the test {test} fails without a mutant"),
        Verdict::TimeLimit => bail!("the tests do not end without a mutant"),
    }
}

/// Runs the mutants of the schema, several at once. `report` gets each outcome.
pub(crate) async fn schema_mutants(
    suite: &Suite,
    mutants: &[Mutant],
    plan: &Plan,
    report: &impl Fn(&Outcome),
) -> Result<Vec<Outcome>> {
    let folder = plan.folder.join("schemas");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let folder = &folder;
    let trials = mutants.iter().map(|mutant| async move {
        let begun = Instant::now();
        let file = folder.join(format!("{}.sql", mutant.name));
        fs::write(&file, mutant.schema(&plan.repository)?)?;
        let product = Replacement { schema: Some(file), worker: None };
        let outcome = evaluate(suite, mutant, plan, &product, begun).await?;
        report(&outcome);
        anyhow::Ok(outcome)
    });
    stream::iter(trials).buffer_unordered(plan.jobs).try_collect().await
}

/// Runs the mutants of Rust code: builds one while the tests of the previous one run.
pub(crate) async fn worker_mutants(
    suite: &Suite,
    mutants: &[Mutant],
    plan: &Plan,
    report: &impl Fn(&Outcome),
) -> Result<Vec<Outcome>> {
    if mutants.is_empty() {
        return Ok(Vec::new());
    }
    let scratch = &Scratch::new(&plan.repository, &plan.folder).await?;
    eprintln!("mutants: building the worker in {}", plan.folder.display());
    let worker = scratch.build().await?;
    control(suite, mutants, plan, &Replacement { schema: None, worker: Some(worker) }).await?;
    let built = stream::iter(mutants).then(|mutant| async move {
        let begun = Instant::now();
        anyhow::Ok((mutant, scratch.build_mutant(mutant).await?, begun))
    });
    let trials = built.map_ok(|(mutant, worker, begun)| async move {
        let product = Replacement { schema: None, worker: Some(worker.clone()) };
        let outcome = evaluate(suite, mutant, plan, &product, begun).await?;
        fs::remove_file(worker)?;
        report(&outcome);
        anyhow::Ok(outcome)
    });
    trials.try_buffer_unordered(plan.jobs).try_collect().await
}

async fn evaluate(
    suite: &Suite,
    mutant: &Mutant,
    plan: &Plan,
    product: &Replacement,
    begun: Instant,
) -> Result<Outcome> {
    let run = suite.run(&mutant.tests, product, plan.limit).await;
    let mut verdict = run.with_context(|| mutant.name.clone())?;
    if let (Verdict::Passed, Some(limit), None) = (&verdict, plan.full, &mutant.harmless) {
        verdict = suite.run_all(product, limit).await.with_context(|| mutant.name.clone())?;
    }
    let fate = match verdict {
        Verdict::Failed(test) => Fate::Killed(test),
        Verdict::TimeLimit => Fate::TimeLimit,
        Verdict::Passed => Fate::Survived,
    };
    Ok(Outcome { mutant: mutant.clone(), fate, took: begun.elapsed() })
}

/// Returns the folder for the files of this program.
pub(crate) fn folder(repository: &Path, target: Option<PathBuf>) -> PathBuf {
    target.unwrap_or_else(|| repository.join("target")).join("mutants")
}
