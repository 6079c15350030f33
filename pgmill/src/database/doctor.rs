//! `pgmill doctor`: collects facts, and prints the findings of `health::doctor_checks`.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use health::doctor_checks::{self, CheckStatus, Finding};
use queue::drift::Difference;
use queue::insight::problems::{FailingSubscription, failing_subscriptions};
use queue::schema::InstalledSchema;
use queue::{catalog, citus, doctor, drift, priority, schema, sequences, workers};
use schedule::queries::{Health, health};
use schedule::zone_data::zone_data;
use serde_json::json;
use terminal::visible;

use crate::output::format::{counted, one_line, span};
use crate::output::{Output, Row, Tone};
use crate::session::Session;

/// Maximum number of characters shown of a definition that differs from `schema.sql`.
const DEFINITION_CHARS: usize = 160;

/// Runs all checks. The exit code reports whether there is a problem.
///
/// # Errors
/// Fails if the connection is lost. A check that the role lacks the privilege for becomes a finding
/// instead of an error.
pub(crate) async fn run(session: &mut Session, out: &Output) -> Exit {
    let server = doctor::server(&session.client).await?;
    let mut findings = vec![doctor_checks::server(&server)];
    let found = match schema::installed(&session.client).await {
        Ok(found) => found,
        Err(error) => return Err(session.explained(error.into(), Some("mill_viewer")).await),
    };
    findings.push(doctor_checks::schema_version(found));
    let mut differences = None;
    if found.is_some_and(|found| found.version == schema::VERSION) {
        let compared = drift::differences(&mut session.client).await;
        findings.push(doctor_checks::drift(compared.as_ref()));
        differences = compared.ok().flatten();
    }
    let client = &session.client;
    findings.push(doctor_checks::transaction_ids(&doctor::oldest_database(client).await?));
    findings.extend(doctor_checks::settings(&doctor::settings(client).await?));
    let catalog = catalog::catalog(client, server.version_number).await?;
    findings.extend(doctor_checks::catalog(&catalog));
    findings.extend(environment_checks(client, found).await?);
    let code = if findings.iter().any(|finding| finding.status == CheckStatus::Problem) {
        exit::FAILURE
    } else {
        exit::OK
    };
    if out.is_merged() && !out.json {
        merge(out, &findings)?;
    } else {
        let document = json!({ "checks": findings, "differences": differences });
        out.shown(&document, || report(out, &findings, &differences.unwrap_or_default()))?;
    }
    Ok(code)
}

/// Prints the numbers of checks, and the warnings and problems, of one of several databases.
fn merge(out: &Output, findings: &[Finding]) -> Exit {
    let of = |status| findings.iter().filter(|it| it.status == status).count();
    let count = |status| i64::try_from(of(status)).unwrap_or(i64::MAX);
    out.counts(vec![
        ("ok", count(CheckStatus::Ok)),
        ("not checked", count(CheckStatus::NotChecked)),
        ("warnings", count(CheckStatus::Warning)),
        ("problems", count(CheckStatus::Problem)),
    ])?;
    let row = |finding: &Finding| {
        let (word, tone) = word(finding.status);
        Row::of("status", word)
            .tone(tone)
            .text("check", finding.check)
            .text("message", &finding.message)
            .maybe("hint", finding.hint.as_deref())
    };
    let listed = |it: &&Finding| matches!(it.status, CheckStatus::Warning | CheckStatus::Problem);
    out.print_table(findings.iter().filter(listed).map(row).collect())
}

fn word(status: CheckStatus) -> (&'static str, Tone) {
    match status {
        CheckStatus::Ok => ("ok", Tone::Success),
        CheckStatus::NotChecked => ("-", Tone::Plain),
        CheckStatus::Warning => ("warning", Tone::Warning),
        CheckStatus::Problem => ("problem", Tone::Error),
    }
}

async fn environment_checks(
    client: &Client,
    installed: Option<InstalledSchema>,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    if let Some(found) = installed {
        let workers = workers::workers(client).await?;
        findings.push(doctor_checks::workers(&workers));
        findings.extend(doctor_checks::built_for(&workers, found));
        findings.push(doctor_checks::connections(&doctor::server(client).await?, &workers));
        findings.push(doctor_checks::priorities(&priority::priorities(client).await?));
        findings.push(schedules(&health(client).await?));
        findings.push(notifications(&failing_subscriptions(client).await?));
        findings.push(Finding::ok("time zones", zone_data().describe()));
        findings.extend(doctor_checks::overrides(&doctor::overrides(client).await?));
        findings.extend(doctor_checks::memberships(&doctor::memberships(client).await?));
        findings.extend(doctor_checks::foreign_grants(&doctor::foreign_grants(client).await?));
        findings.extend(doctor_checks::session_roles(&doctor::session_roles(client).await?));
        if let Some(citus) = citus::citus(client).await? {
            findings.extend(doctor_checks::citus(&citus, citus::nodes(client).await.as_ref()));
        }
        if let Some(tables) = doctor::tables(client).await? {
            findings.push(doctor_checks::history(&tables));
            findings.push(doctor_checks::dead_rows(&tables));
        }
        if found.version >= schema::VERSION {
            findings.push(doctor_checks::sequences(&sequences::behind(client).await?));
        }
    }
    let hidden = doctor::hidden_sessions(client).await?;
    findings.push(doctor_checks::horizon(&doctor::horizon(client).await?, hidden));
    Ok(findings)
}

/// Delay of a tick, in seconds, from which on no scheduler can be running: workers tick within two
/// seconds.
const LONG_OVERDUE_SECONDS: f64 = 60.0;

fn schedules(health: &Health) -> Finding {
    const CHECK: &str = "schedules";
    let message = format!("{} enabled, {} disabled", health.enabled, health.disabled);
    if health.overdue_seconds > LONG_OVERDUE_SECONDS {
        let overdue = span(health.overdue_seconds);
        return Finding::problem(CHECK, format!("{message}; a tick is overdue by {overdue}"))
            .hint("Start a worker without --no-scheduler.");
    }
    if health.errors + health.declaration_errors > 0 {
        let invalid = counted(health.declaration_errors, "declaration error");
        let wrong = format!("{message}; {} in error, {invalid}", health.errors);
        return Finding::warning(CHECK, wrong).hint("pgmill schedule list");
    }
    Finding::ok(CHECK, message)
}

fn notifications(failing: &[FailingSubscription]) -> Finding {
    const CHECK: &str = "notifications";
    if failing.is_empty() {
        return Finding::ok(CHECK, "every subscription is delivered");
    }
    let names: Vec<&str> = failing.iter().map(|it| it.name.as_str()).collect();
    let message = format!("not delivered: {}", names.join(", "));
    Finding::warning(CHECK, message).hint("pgmill subscription list")
}

fn report(out: &Output, findings: &[Finding], differences: &[Difference]) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let (word, tone) = word(finding.status);
        let padded = format!("{word:<9}");
        let message = visible(&finding.message);
        lines.push(format!("{}{:<17}{message}", out.paint(&padded, tone), finding.check));
        if finding.check == doctor_checks::DRIFT {
            lines.extend(differences.iter().flat_map(difference));
        }
        lines.extend(finding.hint.as_ref().map(|hint| indented("hint: ", hint)));
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let (problems, warnings) = (count(CheckStatus::Problem), count(CheckStatus::Warning));
    let checks = counted(findings.len() as u64, "check");
    lines.push(format!("\n{checks}, problems: {problems}, warnings: {warnings}"));
    lines.join("\n")
}

fn indented(word: &str, text: &str) -> String {
    format!("{:26}{word}{}", "", visible(text))
}

/// Formats a difference from schema.sql. Long definitions are shown around the first difference.
fn difference(difference: &Difference) -> Vec<String> {
    let shown = |text: &String| one_line(text, DEFINITION_CHARS);
    let (what, expected, found) = match (&difference.expected, &difference.found) {
        (Some(expected), Some(found)) => {
            let (expected, found) = first_difference(expected, found);
            ("differs", Some(expected), Some(found))
        }
        (Some(expected), None) => ("is missing", Some(shown(expected)), None),
        (None, found) => {
            let found = found.as_ref().map(shown).unwrap_or_default();
            ("is not part of pgmill", None, Some(found))
        }
    };
    let name = format!("{} {} {what}", difference.kind, difference.name);
    let expected = expected.map(|text| indented("  expected: ", &text));
    let found = found.map(|text| indented("  found:    ", &text));
    [Some(indented("", &name)), expected, found].into_iter().flatten().collect()
}

/// Shortens both texts so that they start a little before their first difference.
fn first_difference(one: &str, other: &str) -> (String, String) {
    const BEFORE_CHARS: usize = 40;
    let same = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let from = if one.chars().count().max(other.chars().count()) <= DEFINITION_CHARS {
        0
    } else {
        same.saturating_sub(BEFORE_CHARS)
    };
    let shown = |text: &str| {
        let rest: String = text.chars().skip(from).collect();
        let cut = one_line(&rest, DEFINITION_CHARS);
        if from > 0 { format!("…{cut}") } else { cut }
    };
    (shown(one), shown(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_definitions_are_shown_around_the_first_difference() {
        let long = "x".repeat(300);
        let (one, other) = first_difference(&format!("{long} a"), &format!("{long} b"));
        assert_eq!(one, format!("…{} a", "x".repeat(39)));
        assert_eq!(other, format!("…{} b", "x".repeat(39)));
        assert_eq!(first_difference("a b", "a c"), ("a b".to_owned(), "a c".to_owned()));
    }
}
