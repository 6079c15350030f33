//! Text of the critical path of a run.

use queue::critical_path::{CriticalPath, PathStep};

/// Seconds from which the text mentions a wait.
const MENTIONED_SECONDS: f64 = 0.05;

/// Maximum number of tasks named.
const TASKS_NAMED: usize = 20;

/// Returns the tasks of the path with the times of each. `span` formats a duration.
#[must_use]
pub fn path_steps(path: &CriticalPath, span: fn(f64) -> String) -> String {
    let step = |step: &PathStep| {
        let mut times = Vec::new();
        if step.waiting_seconds >= MENTIONED_SECONDS {
            times.push(format!("waited {}", span(step.waiting_seconds)));
        }
        if step.retrying_seconds > 0.0 {
            times.push(format!("{} until its last attempt", span(step.retrying_seconds)));
        }
        times.push(format!("ran {}", span(step.running_seconds)));
        format!("{} ({})", step.name, times.join(", "))
    };
    let mut steps: Vec<String> = path.steps.iter().take(TASKS_NAMED).map(step).collect();
    if let Some(more) = path.steps.len().checked_sub(TASKS_NAMED).filter(|more| *more > 0) {
        steps.push(format!("and {more} more"));
    }
    steps.join(" → ")
}

/// Returns what the time of the path consists of. `span` formats a duration.
#[must_use]
pub fn path_times(path: &CriticalPath, span: fn(f64) -> String) -> String {
    let mut parts = Vec::new();
    if path.waiting_seconds >= MENTIONED_SECONDS {
        parts.push(format!("{} waiting in the queue", span(path.waiting_seconds)));
    }
    if path.retrying_seconds > 0.0 {
        let text = "in failed attempts and until their retries";
        parts.push(format!("{} {text}", span(path.retrying_seconds)));
    }
    parts.push(format!("{} running", span(path.running_seconds)));
    parts.join(", ")
}
