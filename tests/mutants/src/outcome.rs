//! The outcome of a mutant.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde_json::{Value, json};

use crate::catalog::Mutant;

/// What the tests did to a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// This test failed.
    Killed(String),
    /// A test did not end within the time limit.
    TimeLimit,
    /// All tests passed.
    Survived,
}

/// A mutant and its fate.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) mutant: Mutant,
    pub(crate) fate: Fate,
    /// Time for the build and the tests.
    pub(crate) took: Duration,
}

impl Outcome {
    /// Returns whether the mutant was found, or is harmless as the catalog states.
    pub(crate) fn passed(&self) -> bool {
        (self.fate == Fate::Survived) == self.mutant.harmless.is_some()
    }

    /// Returns whether a test found the mutant.
    pub(crate) fn killed(&self) -> bool {
        self.fate != Fate::Survived
    }

    /// Returns the outcome as a JSON object.
    pub(crate) fn json(&self) -> Value {
        let (fate, test) = match &self.fate {
            Fate::Killed(test) => ("killed", Some(test)),
            Fate::TimeLimit => ("time_limit", None),
            Fate::Survived => ("survived", None),
        };
        let Mutant { name, file, breaks, harmless, .. } = &self.mutant;
        let seconds = self.took.as_secs_f64();
        json!({"name": name, "file": file, "breaks": breaks, "fate": fate, "test": test,
            "harmless": harmless, "seconds": seconds, "passed": self.passed()})
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        write!(f, "{}: ", self.mutant.name)?;
        match (&self.fate, &self.mutant.harmless) {
            (Fate::Killed(_) | Fate::TimeLimit, Some(_)) => {
                write!(f, "KILLED, although the catalog calls it harmless")?;
            }
            (Fate::Killed(test), None) => write!(f, "killed by {test}")?,
            (Fate::TimeLimit, None) => write!(f, "killed by the time limit")?,
            (Fate::Survived, Some(_)) => write!(f, "survived, harmless")?,
            (Fate::Survived, None) => write!(f, "SURVIVED: {}", self.mutant.breaks)?,
        }
        write!(f, ", {seconds:.1} s")
    }
}
