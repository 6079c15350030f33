//! Executes a plan step by step while load and fleet are running.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use checker::{Expect, Finding, Monitor, check, merge, record};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::load_generator::LoadGenerator;
use super::monitors::Monitors;
use super::operator::Operator;
use super::plan::{Fault, OperatorAction, Plan, Step};
use super::progress::Progress;
use super::report::{Counts, Report, counted};
use super::servers::Servers;
use crate::fleet::{Fleet, ORPHAN_TIMEOUT};
use crate::session::Session;

/// Maximum number of waiting tasks. The plan waits while there are more; otherwise the load would
/// end before the faults do.
const BACKLOG: i64 = 2500;
/// Maximum time that the plan waits for the backlog to shrink.
const MAX_BACKLOG_WAIT: Duration = Duration::from_secs(5);
/// Time limit from the last fault until no task is live.
const DRAIN: Duration = Duration::from_secs(180);
/// Time, in addition to the orphan timeout, until the tasks of dead workers are reclaimed. It is
/// long, because the machine is under load, and because no worker is considered dead in the ten
/// seconds after an outage.
const BOUND: Duration = Duration::from_secs(20);

const WAITING: &str =
    "SELECT /* chaos.waiting */ count(*) FROM mill.tasks t WHERE t.state <> 'scheduled'";

const LIVE: &str = "SELECT /* chaos.live */ (SELECT count(*) FROM mill.tasks) + (SELECT count(*) FROM mill.runs r WHERE r.state = 'running')";

/// Terminates random sessions of readers, control sessions and load. The operator's own session
/// comes last.
const END_SESSIONS: &str = "SELECT /* chaos.end_sessions */ count(pg_terminate_backend(s.pid)) FROM (SELECT a.pid FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
    ORDER BY random() LIMIT ";

/// Everything that takes part in the execution of a plan.
pub(crate) struct Director<'a> {
    servers: &'a mut Servers,
    fleet: Fleet,
    load: LoadGenerator,
    operator: Operator,
    monitors: Option<Monitors>,
    counts: Counts,
    progress: &'a Progress,
    begun: Instant,
    limit: Duration,
}

impl<'a> Director<'a> {
    /// Starts load and fleet.
    pub(crate) fn new(
        servers: &'a mut Servers,
        progress: &'a Progress,
        workers: usize,
        limit: Duration,
    ) -> Result<Self> {
        let (directory, config) = (servers.directory.clone(), servers.configuration());
        let fleet = Fleet::start(&servers.url, directory, Some(config), workers)?;
        let (load, operator) = (LoadGenerator::start(&servers.url), Operator::new(&servers.url));
        let sessions = [Session::new(&servers.url, "chaos monitor"), servers.target_session()];
        let (counts, monitors) = (Counts::default(), Some(Monitors::start(sessions)));
        let begun = Instant::now();
        Ok(Self { servers, fleet, load, operator, monitors, counts, progress, begun, limit })
    }

    /// Executes the whole plan and returns the checker's report.
    ///
    /// # Errors
    /// Returns an error if a server does not recover, or a worker ends unexpectedly.
    pub(crate) async fn run_plan(mut self, plan: Plan) -> Result<Report> {
        let (seed, all) = (plan.seed, plan.steps.len());
        for (n, step) in plan.steps.into_iter().enumerate() {
            if self.begun.elapsed() > self.limit {
                self.counts.steps_left = all - n;
                break;
            }
            self.fleet.supervise()?;
            self.step(step).await?;
            self.progress.step(n + 1, all, &self.counts);
        }
        let findings = self.end().await?;
        let counts = counted(self.counts, &mut self.operator.session).await?;
        Ok(Report { seed, seconds: self.begun.elapsed().as_secs_f64(), counts, findings })
    }

    async fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Load(items) => {
                self.backlog().await?;
                for item in items {
                    self.counts.tasks_requested += item.tasks();
                    self.load.submit(item).await?;
                }
            }
            Step::Break(fault) => self.fault(&fault).await?,
            Step::OperatorAction(OperatorAction::Deploy { draw }) => {
                self.fleet.replace(draw)?;
                self.counts.deploys += 1;
            }
            Step::OperatorAction(act) => self.operator.act(&act, &self.load.known).await?,
            Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
        }
        Ok(())
    }

    async fn fault(&mut self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Kill { draw } => {
                self.fleet.kill(*draw).await?;
                self.counts.kills += 1;
            }
            Fault::Stop { draw, ms } => {
                self.fleet.stop(*draw, Duration::from_millis(*ms))?;
                self.counts.stops += 1;
            }
            Fault::EndSessions { count } => {
                let ended =
                    self.operator.session.number(&format!("{END_SESSIONS}{count}) AS s")).await?;
                self.counts.sessions_ended += ended.unsigned_abs();
            }
            Fault::Immediate => {
                block_in_place(|| self.servers.restart())?;
                self.counts.immediate_stops += 1;
            }
            Fault::Crash => {
                block_in_place(|| self.servers.crash())?;
                self.counts.crashes += 1;
            }
            Fault::Promote => {
                block_in_place(|| self.servers.promote())?;
                self.counts.promotions += 1;
            }
            Fault::CrashTarget => {
                block_in_place(|| self.servers.crash_target())?;
                self.counts.target_crashes += 1;
            }
            Fault::FreezeTarget { ms } => {
                self.servers.freeze_target(Duration::from_millis(*ms)).await?;
                self.counts.target_freezes += 1;
            }
        }
        Ok(())
    }

    /// Waits while the backlog is too large, but only for a limited time, because an operator
    /// action may have paused all queues.
    async fn backlog(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.operator.session.number(WAITING).await? > BACKLOG {
            if begun.elapsed() > MAX_BACKLOG_WAIT {
                return self.operator.resume_all().await;
            }
            self.fleet.supervise()?;
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Heals everything, lets the fleet finish, and runs the checker.
    async fn end(&mut self) -> Result<Vec<Finding>> {
        self.progress.phase("all faults are healed; the fleet finishes its tasks");
        self.fleet.resume()?;
        self.operator.resume_all().await?;
        let mut ops = self.load.end().await?;
        ops.append(&mut self.operator.ops);
        let now = "SELECT /* chaos.now */ clock_timestamp()";
        let healed_at: SystemTime = self
            .operator
            .session
            .until_answered(now)
            .await?
            .first()
            .context("no row")?
            .try_get(0)?;
        self.drain().await?;
        self.fleet.end().await?;
        let monitored = match self.monitors.take() {
            Some(monitors) => monitors.end().await?,
            None => Monitor::default(),
        };
        self.progress.phase("checking");
        self.counts.polls = monitored.polls;
        self.counts.executions_seen = monitored.executions;
        self.counts.clock_set_back = monitored.clock_set_back.as_secs_f64();
        self.counts.add_operations(&ops);
        self.counts.operator_actions = self.operator.operator_actions;
        self.counts.workers_started = self.fleet.started();
        let client = self.operator.session.connected().await?;
        merge(self.servers.target_session().connected().await?, client).await?;
        record(client, &ops).await?;
        let (orphan_timeout, bound) = (ORPHAN_TIMEOUT, BOUND);
        let healed_at = Some(healed_at);
        let expect =
            Expect { fleet_gone: true, healed_at, orphan_timeout, bound, ..Expect::default() };
        let mut findings = check(client, &expect).await?;
        findings.extend(monitored.findings());
        Ok(findings)
    }

    /// Waits until no task is live, or the time limit expires; the checker then reports the rest.
    async fn drain(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.operator.session.number(LIVE).await? > 0 && begun.elapsed() < DRAIN {
            self.fleet.supervise()?;
            sleep(Duration::from_millis(100)).await;
        }
        self.counts.drain_seconds = begun.elapsed().as_secs_f64();
        Ok(())
    }
}
