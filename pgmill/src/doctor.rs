//! `pgmill doctor`: gathers the facts and shows what `judge` thinks of them.

use queue::drift::Difference;
use queue::schema::Found;
use queue::{doctor, drift, exit, priority, roster, schema};
use schedule::show::{Health, health};
use serde_json::json;
use terminal::judge::{self, Finding, Verdict};
use terminal::visible;
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::output::{Output, Tone};
use crate::session::Session;
use crate::words::{counted, one_line, span};

/// Characters of a definition that differs.
const DEFINITION_CHARS: usize = 160;

/// Checks everything. The exit code says whether something is wrong.
///
/// # Errors
/// Database trouble. What this role may not look at is a finding, not an error.
pub(crate) async fn run(session: &Session, out: &Output) -> Result<u8, Failure> {
    let client = &session.client;
    let mut findings = vec![judge::server(&doctor::server(client).await?)];
    let found = match schema::found(client).await {
        Ok(found) => found,
        Err(error) => {
            let failure = Failure::from(error).lacking(Some("mill_viewer"), session.user());
            return Err(failure);
        }
    };
    findings.push(judge::schema_version(found));
    let mut differences = None;
    if found.is_some_and(|found| found.version == schema::VERSION) {
        let compared = drift::differences(client).await;
        findings.push(judge::drift(compared.as_ref()));
        differences = compared.ok().flatten();
    }
    findings.extend(judge::settings(&doctor::settings(client).await?));
    findings.extend(surroundings(client, found).await?);
    let code = if findings.iter().any(|finding| finding.verdict == Verdict::Problem) {
        exit::FAILURE
    } else {
        exit::OK
    };
    if out.json {
        out.document(&json!({ "checks": findings, "differences": differences }))?;
    } else {
        out.text(&report(out, &findings, &differences.unwrap_or_default()))?;
    }
    Ok(code)
}

async fn surroundings(client: &Client, schema: Option<Found>) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    if let Some(found) = schema {
        let workers = roster::workers(client).await?;
        findings.push(judge::workers(&workers));
        findings.extend(judge::built_for(&workers, found));
        findings.push(judge::connections(&doctor::server(client).await?, &workers));
        findings.push(judge::priorities(&priority::priorities(client).await?));
        findings.push(schedules(&health(client).await?));
        findings.extend(judge::overrides(&doctor::overrides(client).await?));
        findings.extend(judge::memberships(&doctor::memberships(client).await?));
        findings.extend(judge::session_roles(&doctor::session_roles(client).await?));
        if let Some(tables) = doctor::tables(client).await? {
            findings.push(judge::history(&tables));
            findings.push(judge::dead_rows(&tables));
        }
    }
    findings.push(judge::horizon(&doctor::horizon(client).await?));
    Ok(findings)
}

/// A worker ticks within two seconds; this long is nobody.
const LONG_OVERDUE_SECONDS: f64 = 60.0;

fn schedules(health: &Health) -> Finding {
    const CHECK: &str = "schedules";
    let message = format!("{} enabled, {} disabled", health.enabled, health.disabled);
    if health.overdue_seconds > LONG_OVERDUE_SECONDS {
        let overdue = span(health.overdue_seconds);
        return Finding::problem(CHECK, format!("{message}; one has waited {overdue} for a tick"))
            .hint("start a worker, or one without --no-scheduler");
    }
    if health.errors + health.mistakes > 0 {
        let mistakes = counted(health.mistakes, "mistake");
        let wrong = format!("{message}; {} in error, {mistakes} in comments", health.errors);
        return Finding::warning(CHECK, wrong).hint("pgmill schedule list");
    }
    Finding::ok(CHECK, message)
}

fn report(out: &Output, findings: &[Finding], differences: &[Difference]) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let (word, tone) = match finding.verdict {
            Verdict::Ok => ("ok", Tone::Good),
            Verdict::NotChecked => ("-", Tone::Plain),
            Verdict::Warning => ("warning", Tone::Odd),
            Verdict::Problem => ("problem", Tone::Bad),
        };
        let padded = format!("{word:<9}");
        let message = visible(&finding.message);
        lines.push(format!("{}{:<17}{message}", out.paint(&padded, tone), finding.check));
        if finding.check == judge::DRIFT {
            lines.extend(differences.iter().flat_map(difference));
        }
        lines.extend(finding.hint.as_ref().map(|hint| indented("hint: ", hint)));
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
    lines.push(format!("\n{} checks, problems: {problems}, warnings: {warnings}", findings.len()));
    lines.join("\n")
}

fn indented(word: &str, text: &str) -> String {
    format!("{:26}{word}{}", "", visible(text))
}

/// What is other than schema.sql says. Of two long definitions the reader sees where they part.
fn difference(difference: &Difference) -> Vec<String> {
    let name = format!("{} {}", difference.kind, difference.name);
    match (&difference.expected, &difference.found) {
        (Some(expected), Some(found)) => {
            let (expected, found) = parting(expected, found);
            vec![
                indented("", &format!("{name} differs")),
                indented("  expected: ", &expected),
                indented("  found:    ", &found),
            ]
        }
        (Some(expected), None) => vec![
            indented("", &format!("{name} is missing")),
            indented("  expected: ", &one_line(expected, DEFINITION_CHARS)),
        ],
        (None, found) => vec![
            indented("", &format!("{name} is not pgmill's")),
            indented(
                "  found:    ",
                &one_line(found.as_deref().unwrap_or_default(), DEFINITION_CHARS),
            ),
        ],
    }
}

/// Both texts from a little before the first character in which they differ.
fn parting(one: &str, other: &str) -> (String, String) {
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
    fn long_definitions_are_shown_where_they_part() {
        let long = "x".repeat(300);
        let (one, other) = parting(&format!("{long} a"), &format!("{long} b"));
        assert_eq!(one, format!("…{} a", "x".repeat(39)));
        assert_eq!(other, format!("…{} b", "x".repeat(39)));
        assert_eq!(parting("a b", "a c"), ("a b".to_owned(), "a c".to_owned()));
    }
}
