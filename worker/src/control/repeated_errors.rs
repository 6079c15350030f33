//! Errors that the worker's own operations meet again and again, such as recording the end of a
//! task. The heartbeat reports them, so that the fleet's status shows them as a problem. The log shows
//! when they begin and end, and their repetitions only at level debug.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of characters of a report.
const MAX_CHARS: usize = 300;

/// The operations that fail at the moment.
#[derive(Clone, Default)]
pub(crate) struct RepeatedErrors(Arc<Mutex<Failing>>);

#[derive(Default)]
struct Failing {
    /// The operations that the heartbeat reports, with the last error of each.
    reported: BTreeMap<String, String>,
    /// The operations whose failure is in the log.
    logged: BTreeSet<String>,
}

impl RepeatedErrors {
    /// Returns whether a failure of the operation is to be logged, because it is the first one since
    /// the operation has worked.
    pub(crate) fn begins(&self, operation: &str) -> bool {
        self.0.lock().logged.insert(operation.to_owned())
    }

    /// Returns whether a success of the operation is to be logged, because the operation has failed
    /// before.
    pub(crate) fn ends(&self, operation: &str) -> bool {
        self.0.lock().logged.remove(operation)
    }

    /// Records that the operation failed and will be tried again.
    pub(crate) fn set(&self, operation: &str, error: &dyn Display) {
        self.with(|failing| failing.insert(operation.to_owned(), error.to_string()));
    }

    /// Records that the operation has succeeded, or is no longer tried.
    pub(crate) fn clear(&self, operation: &str) {
        self.with(|failing| failing.remove(operation));
    }

    /// Returns one of the errors and the number of others; `None` if nothing fails.
    pub(crate) fn report(&self) -> Option<String> {
        self.with(|failing| {
            let (operation, error) = failing.first_key_value()?;
            let mut report = shortened(&format!("{operation}: {error}"));
            if failing.len() > 1 {
                report.push_str(&format!(" (and {} more)", failing.len() - 1));
            }
            Some(report)
        })
    }

    fn with<T>(&self, access: impl FnOnce(&mut BTreeMap<String, String>) -> T) -> T {
        access(&mut self.0.lock().reported)
    }
}

/// Returns the beginning of an error that is reported.
pub(crate) fn shortened(error: &str) -> String {
    error.chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_and_the_first_success_after_it_are_logged() {
        let errors = RepeatedErrors::default();
        assert!(!errors.ends("claim"));
        assert_eq!([errors.begins("claim"), errors.begins("claim")], [true, false]);
        assert!(errors.begins("listen"), "another operation");
        assert_eq!([errors.ends("claim"), errors.ends("claim")], [true, false]);
        assert!(errors.begins("claim"));
    }

    #[test]
    fn the_report_has_one_error_and_the_number_of_others() {
        let errors = RepeatedErrors::default();
        assert_eq!(errors.report(), None);
        errors.set("release of task 7", &"disk full");
        errors.set("permits", &"no such table");
        assert_eq!(errors.report().unwrap(), "permits: no such table (and 1 more)");
        errors.clear("permits");
        assert_eq!(errors.report().unwrap(), "release of task 7: disk full");
        errors.set("release of task 7", &"x".repeat(1000));
        assert_eq!(errors.report().unwrap().len(), MAX_CHARS);
    }
}
