//! Formats the outcomes as a table, and writes them into a page.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use page::Section;

use crate::outcome::Outcome;
use crate::settings::Settings;

/// The report in a page.
const SECTION: Section = Section("failovers");

/// Returns the table, and a sentence with the settings.
pub(crate) fn report(outcomes: &[Outcome], settings: &Settings) -> String {
    let mut text = String::from(
        "| fault | replication | pause | goal | acknowledged | lost | duplicated | stuck | enqueued \
         twice | standby again after |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for outcome in outcomes {
        let (pause, goal) = (outcome.pause.as_secs_f64(), outcome.course.goal.as_secs());
        let repaired = outcome.course.repaired.as_secs_f64();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {pause:.1} s | {goal} s | {} | {} | {} | {} | {} | {repaired:.0} s |",
            outcome.course.trial.fault,
            outcome.course.trial.mode,
            outcome.acknowledged,
            outcome.lost,
            outcome.duplicated,
            outcome.stuck,
            outcome.enqueued_twice,
        );
    }
    let changed = match &settings.changed[..] {
        [] => "as shipped".to_owned(),
        changed => format!("with these values instead of the shipped ones: {}", changed.join(", ")),
    };
    let missed = outcomes.iter().filter(|outcome| !outcome.passed()).count();
    text + &format!(
        "\n{} trials, {missed} missed a goal. Settings: `deploy/patroni/patroni.yml` {changed}; the \
         asynchronous trials set `synchronous_mode` and `synchronous_mode_strict` to false. The \
         watchdog is off.",
        outcomes.len()
    )
}

/// Replaces the report in a page.
pub(crate) fn write(page: &Path, report: &str) -> Result<()> {
    SECTION.write(page, |_| report.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::catalog::{Fault, Mode, Trial};
    use crate::outcome::Course;

    fn outcome(fault: Fault, mode: Mode) -> Outcome {
        Outcome {
            course: Course {
                trial: Trial { fault, mode },
                goal: Duration::from_secs(6),
                fault_at: SystemTime::UNIX_EPOCH,
                repaired: Duration::ZERO,
            },
            pause: Duration::from_secs(3),
            acknowledged: 9,
            lost: 0,
            duplicated: 0,
            stuck: 0,
            enqueued_twice: 1,
            violations: Vec::new(),
        }
    }

    #[test]
    fn only_an_asynchronous_failover_may_lose_tasks() {
        for (fault, mode, passed) in [
            (Fault::Killed, Mode::Synchronous, false),
            (Fault::Killed, Mode::Asynchronous, true),
            (Fault::Switchover, Mode::Asynchronous, false),
            (Fault::WithoutClients, Mode::Asynchronous, false),
        ] {
            let one = outcome(fault, mode);
            assert!(one.passed());
            assert_eq!(Outcome { lost: 1, ..one.clone() }.passed(), passed, "{one}");
            assert!(!Outcome { duplicated: 1, ..one.clone() }.passed());
            assert!(!Outcome { stuck: 1, ..one.clone() }.passed());
            let late = Outcome { pause: Duration::from_secs(7), ..one };
            assert!(late.correct() && !late.passed());
        }
    }

    #[test]
    fn the_report_replaces_the_old_one() {
        let settings = Settings::shipped(true);
        let report = report(&[outcome(Fault::Killed, Mode::Synchronous)], &settings);
        assert!(report.contains("\n| leader killed | synchronous | 3.0 s | 6 s | 9 |"), "{report}");
        assert!(report.contains("ttl: 20"), "{report}");
        let [begin, end] = ["<!-- the failovers -->", "<!-- the end of the failovers -->"];
        let page = format!("head\n{begin}\nold\n{end}\nfoot\n");
        assert_eq!(
            SECTION.replace(&page, |_| report.clone()).unwrap(),
            format!("head\n{begin}\n\n{report}\n\n{end}\nfoot\n")
        );
        assert!(SECTION.replace("head", |_| report).is_none());
    }
}
