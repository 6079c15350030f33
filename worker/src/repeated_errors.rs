//! Errors that the worker's own operations meet again and again, such as recording the end of a
//! task. The heartbeat reports them, so that the fleet's status shows them as a problem.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of characters of a report.
const MAX_CHARS: usize = 300;

/// The operations that fail at the moment, with the last error of each.
#[derive(Clone, Default)]
pub(crate) struct RepeatedErrors(Arc<Mutex<BTreeMap<String, String>>>);

impl RepeatedErrors {
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
            let text = format!("{operation}: {error}");
            let mut report: String = text.chars().take(MAX_CHARS).collect();
            if failing.len() > 1 {
                report.push_str(&format!(" (and {} more)", failing.len() - 1));
            }
            Some(report)
        })
    }

    fn with<T>(&self, access: impl FnOnce(&mut BTreeMap<String, String>) -> T) -> T {
        access(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
