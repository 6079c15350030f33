//! The report: counts of events, and the promises that held.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use checker::{Answer, Finding, Op, OpKind};
use serde::Serialize;

use crate::session::Session;

/// Counts of events.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) tasks_requested: usize,
    pub(crate) operations: usize,
    pub(crate) operations_refused: usize,
    pub(crate) operations_unknown: usize,
    /// Message of the first refused enqueue.
    pub(crate) refusal: Option<String>,
    pub(crate) operator_actions: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) deploys: usize,
    pub(crate) sessions_ended: u64,
    pub(crate) immediate_stops: usize,
    pub(crate) crashes: usize,
    pub(crate) promotions: usize,
    pub(crate) target_crashes: usize,
    pub(crate) target_freezes: usize,
    pub(crate) workers_started: usize,
    pub(crate) drain_seconds: f64,
    /// Number of times that running tasks were monitored.
    pub(crate) polls: u64,
    /// Sum of the executions in transaction mode that each of these times saw.
    pub(crate) executions_seen: u64,
    /// Seconds by which the clock of this machine was set back, at least.
    pub(crate) clock_set_back: f64,
    /// Steps of the plan left when the time limit expired.
    pub(crate) steps_left: usize,
    /// Attempts by outcome.
    pub(crate) attempts: BTreeMap<String, i64>,
    /// Runs by state.
    pub(crate) runs: BTreeMap<String, i64>,
    pub(crate) effects: i64,
}

impl Counts {
    /// Adds the replies to the load and to the operator.
    pub(crate) fn add_operations(&mut self, ops: &[Op]) {
        let answered = |answer| ops.iter().filter(move |op| op.answer == answer);
        self.operations = ops.len();
        self.operations_refused = answered(Answer::Refused).count();
        self.operations_unknown = answered(Answer::Unknown).count();
        self.refusal = answered(Answer::Refused)
            .find(|op| matches!(op.what, OpKind::Enqueue | OpKind::StartRun))
            .and_then(|op| op.reply.clone());
    }
}

/// Returns the counts completed from the database.
///
/// # Errors
/// Returns an error if a query fails.
pub(crate) async fn counted(mut counts: Counts, session: &mut Session) -> Result<Counts> {
    for row in session
        .until_answered("SELECT a.outcome::text, count(*) FROM mill.attempts a GROUP BY 1")
        .await?
    {
        counts.attempts.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for row in
        session.until_answered("SELECT r.state::text, count(*) FROM mill.runs r GROUP BY 1").await?
    {
        counts.runs.insert(row.try_get(0)?, row.try_get(1)?);
    }
    counts.effects = session.number("SELECT count(*) FROM chaos.effect").await?;
    Ok(counts)
}

/// Final report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) counts: Counts,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Returns whether every invariant holds, and the whole plan was executed or need not be.
    pub(crate) fn passed(&self, accept_partial: bool) -> bool {
        self.holds() && (self.counts.steps_left == 0 || accept_partial)
    }

    /// Returns whether the violations prove nothing: the invariants compare points in time, and the clock of
    /// this machine was set back.
    pub(crate) fn is_void(&self) -> bool {
        self.counts.clock_set_back > 0.0 && !self.holds()
    }

    fn holds(&self) -> bool {
        self.findings.iter().all(|finding| finding.count == 0)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { seed, seconds, counts: c, findings } = self;
        writeln!(f, "seed {seed}, {seconds:.0} s, including {:.0} s to finish", c.drain_seconds)?;
        writeln!(
            f,
            "enqueued {} tasks in {} operations, {} refused, {} without a reply",
            c.tasks_requested, c.operations, c.operations_refused, c.operations_unknown
        )?;
        if let Some(refusal) = &c.refusal {
            writeln!(f, "an enqueue was refused: {refusal}")?;
        }
        writeln!(
            f,
            "{} workers killed, {} workers stopped, {} sessions terminated; server: {} immediate stops, {} \
             crashes, {} promotions; target: {} crashes, {} freezes",
            c.kills,
            c.stops,
            c.sessions_ended,
            c.immediate_stops,
            c.crashes,
            c.promotions,
            c.target_crashes,
            c.target_freezes
        )?;
        writeln!(
            f,
            "{} operator actions, {} deploys, {} workers started",
            c.operator_actions, c.deploys, c.workers_started
        )?;
        writeln!(
            f,
            "polled {} times, {} executions in transaction mode seen",
            c.polls, c.executions_seen
        )?;
        let words = |counts: &BTreeMap<String, i64>| {
            let words = counts.iter().map(|(word, count)| format!("{count} {word}"));
            words.collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "attempts: {}; {} effects", words(&c.attempts), c.effects)?;
        writeln!(f, "runs: {}", words(&c.runs))?;
        if c.clock_set_back > 0.0 {
            writeln!(f, "the clock of this machine was set back by {:.3} s", c.clock_set_back)?;
        }
        if c.steps_left > 0 {
            writeln!(f, "time limit expired: {} steps of the plan are left", c.steps_left)?;
        }
        for finding in findings {
            let (name, count) = (finding.invariant, finding.count);
            if count == 0 {
                writeln!(f, "holds   {name}")?;
            } else {
                writeln!(f, "BROKEN  {name}: {count}")?;
                for example in &finding.examples {
                    writeln!(f, "        {example}")?;
                }
            }
        }
        Ok(())
    }
}
