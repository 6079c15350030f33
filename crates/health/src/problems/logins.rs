//! Logins with readers that cannot open a session.

use std::collections::BTreeMap;

use queue::workers::Worker;

use super::{Problem, ProblemSubject, Severity};

/// Reports each login of live workers with readers that cannot connect: critical if no reader of its
/// profile in the fleet can.
#[must_use]
pub fn unconnected_logins(workers: &[Worker]) -> Vec<Problem> {
    let mut by_login: BTreeMap<(&str, &str), Unconnected<'_>> = BTreeMap::new();
    for worker in workers.iter().filter(|worker| worker.alive) {
        for it in &worker.unconnected {
            let sum = by_login.entry((&it.profile, &it.login)).or_default();
            sum.failed += it.failed;
            sum.seconds = it.seconds.max(sum.seconds);
            sum.error = &it.error;
        }
    }
    let readers_of = |profile: &str| {
        let alive = workers.iter().filter(|worker| worker.alive);
        alive.filter_map(|worker| worker.profiles.get(profile)).sum::<u32>()
    };
    let problem = |((profile, login), sum): ((&str, &str), Unconnected<'_>)| {
        let readers = readers_of(profile);
        let of_profile = match profile {
            "" => String::new(),
            profile => format!(" (profile {profile})"),
        };
        let Unconnected { failed, seconds, error } = sum;
        let message = format!(
            "{failed} of {readers} readers of login {login}{of_profile} cannot connect: {error}"
        );
        let severity = if failed >= readers { Severity::Critical } else { Severity::Warning };
        Problem { severity, age_seconds: seconds, message, about: ProblemSubject::Worker }
    };
    by_login.into_iter().map(problem).collect()
}

/// Readers of one login.
#[derive(Default)]
struct Unconnected<'a> {
    failed: u32,
    seconds: f64,
    error: &'a str,
}
