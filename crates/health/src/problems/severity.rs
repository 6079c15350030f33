//! Severity of problems.

use serde::Serialize;

/// Severity of a problem. The order is that of the list: the most severe problems come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Work is lost, stuck or refused.
    Critical,
    /// Work is late or slow.
    Warning,
    /// Something to look at: an intended state that may have been forgotten, or single failures.
    Info,
}

/// Number of tasks or attempts from which their share of failures counts.
const MIN_FINISHED: i64 = 10;

/// One failure in this many makes failures a warning, as for the alert `PgmillFailureRatio`.
const FAILURE_SHARE: i64 = 20;

impl Severity {
    /// Returns the name of the severity.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }

    /// Returns the severity of failures among the tasks or attempts that ended.
    pub(super) fn of_failures(failed: i64, succeeded: i64) -> Self {
        let all = failed.saturating_add(succeeded);
        let many = all >= MIN_FINISHED && failed.saturating_mul(FAILURE_SHARE) > all;
        if many { Self::Warning } else { Self::Info }
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
