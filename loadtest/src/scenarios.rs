//! What can be measured.

use anyhow::Result;
use clap::ValueEnum;

use crate::bench::Bench;
use crate::result::Scenario;

mod drain;
mod noop;

/// A scenario, as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Drain,
    Noop,
}

impl Kind {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Noop => "noop",
        }
    }

    /// One line for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Drain => "a backlog of tasks, each one INSERT, exactly once",
            Self::Noop => "a backlog of SELECT 1: the queue's own work",
        }
    }

    /// Measures it.
    pub(crate) async fn run(self, bench: &Bench) -> Result<Scenario> {
        let scenario = match self {
            Self::Drain => drain::run(bench).await,
            Self::Noop => noop::run(bench).await,
        }?;
        Ok(Scenario { name: self.name().to_owned(), title: self.title().to_owned(), ..scenario })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.name(), false), Ok(*kind));
        }
    }
}
