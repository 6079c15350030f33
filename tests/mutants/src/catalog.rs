//! The mutants: bugs that the product could have, as data in `catalog/*.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const CATALOG: [&str; 2] =
    [include_str!("../catalog/schema.toml"), include_str!("../catalog/worker.toml")];

/// A version of the product with one bug.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// Path of the changed file in the repository.
    pub(crate) file: String,
    /// Text that occurs once in the file.
    pub(crate) find: String,
    /// Text that takes its place.
    pub(crate) replace: String,
    /// What goes wrong with this bug.
    pub(crate) breaks: String,
    /// Full names of the tests that are expected to fail.
    pub(crate) tests: Vec<String>,
    /// Whether the mutant is part of the short run.
    #[serde(default)]
    pub(crate) short: bool,
    /// Why no test can fail, or need not.
    pub(crate) harmless: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    mutant: Vec<Mutant>,
}

/// Returns all mutants, those of the schema first.
pub(crate) fn mutants() -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for text in CATALOG {
        mutants.extend(toml::from_str::<Document>(text).context("the catalog of mutants")?.mutant);
    }
    Ok(mutants)
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Mutant {
    /// Returns whether the mutant is a schema, so that nothing has to be built.
    pub(crate) fn in_schema(&self) -> bool {
        self.file.starts_with("schema/")
    }

    /// Returns the changed text of the file.
    ///
    /// # Errors
    /// Returns an error if the file does not contain the text exactly once.
    pub(crate) fn mutated(&self, repository: &Path) -> Result<String> {
        let path = repository.join(&self.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let count = text.matches(&self.find).count();
        ensure!(
            count == 1,
            "{}: the text to replace occurs {count} times in {}, not once",
            self.name,
            self.file
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }

    /// Returns the whole schema with the changed file, as `make schema` concatenates it.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or does not contain the text.
    pub(crate) fn schema(&self, repository: &Path) -> Result<String> {
        let mut files: Vec<PathBuf> = fs::read_dir(repository.join("schema"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
        files.sort();
        let mut schema = String::new();
        for file in files {
            schema += &if file.ends_with(&self.file) {
                self.mutated(repository)?
            } else {
                fs::read_to_string(&file)?
            };
        }
        Ok(schema)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_mutant_applies_to_the_source() {
        for mutant in mutants().unwrap() {
            mutant.mutated(&repository()).unwrap();
            assert_ne!(mutant.find, mutant.replace, "{}", mutant.name);
        }
    }

    #[test]
    fn the_changed_file_is_part_of_the_whole_schema() {
        for mutant in mutants().unwrap().iter().filter(|mutant| mutant.in_schema()) {
            let schema = mutant.schema(&repository()).unwrap();
            assert!(schema.contains(&mutant.mutated(&repository()).unwrap()), "{}", mutant.name);
        }
    }

    #[test]
    fn every_mutant_has_a_name_of_its_own_a_reason_and_tests_that_exist() {
        let mut names = HashSet::new();
        for mutant in mutants().unwrap() {
            assert!(names.insert(mutant.name.clone()), "{} twice", mutant.name);
            assert!(!mutant.breaks.is_empty() && !mutant.tests.is_empty(), "{}", mutant.name);
            for test in &mutant.tests {
                let (module, function) = test.rsplit_once("::").unwrap();
                let file = format!("tests/{}.rs", module.replace("::", "/"));
                let text = fs::read_to_string(repository().join(&file)).unwrap_or_default();
                assert!(text.contains(&format!("fn {function}(")), "{}: {test}", mutant.name);
            }
        }
    }

    #[test]
    fn the_short_run_builds_nothing() {
        let short: Vec<_> = mutants().unwrap().into_iter().filter(|mutant| mutant.short).collect();
        assert!(!short.is_empty() && short.iter().all(Mutant::in_schema));
    }
}
