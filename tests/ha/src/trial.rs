//! Runs one trial: load, fault, failover, repair, and the end of the load.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::catalog::{CLIENT_PARTITION, Fault, Trial};
use crate::fleet::Fleet;
use crate::node::Link;
use crate::outcome::{self, Course, Outcome};
use crate::patroni::Patroni;
use crate::producer::Producer;
use crate::session::Session;
use crate::settings::Settings;

/// Number of tasks that succeed before the fault, and again before each following step: four
/// seconds of the load.
const TASKS: i64 = 480;
/// Time limit until they have succeeded.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit from the end of the load until no task is live.
const DRAIN: Duration = Duration::from_secs(90);
/// Time between two looks at the progress.
const POLL: Duration = Duration::from_millis(200);

const SUCCEEDED: &str =
    "SELECT /* ha.succeeded */ count(*) FROM mill.attempts a WHERE a.outcome = 'succeeded'";
const LIVE: &str = "SELECT /* ha.live */ count(*) FROM mill.tasks";
const NOW: &str = "SELECT /* ha.now */ clock_timestamp()";

/// Runs a trial in a database of its own.
///
/// # Errors
/// Returns an error if the cluster or a worker does not behave as the trial expects.
pub(crate) async fn run(
    patroni: &mut Patroni,
    trial: Trial,
    settings: &Settings,
    number: usize,
) -> Result<Outcome> {
    let leader = patroni.healthy(trial.mode).await?;
    let url = patroni.create_database(leader, &format!("trial_{number}")).await?;
    let fleet = Fleet::start(&url, patroni.directory(), number)?;
    let producer = Producer::start(&url);
    let session = Session::new(&url);
    let goal = trial.fault.pause_goal(settings.seconds("ttl"));
    let mut running = Running { patroni, trial, goal, leader, fleet, session };
    let injected = running.inject_and_repair().await;
    let course = match injected {
        Ok(injected) => injected,
        Err(error) => bail!("{trial}: {error:#}\n{}", running.fleet.tails()),
    };
    let ops = producer.end().await.with_context(|| trial.to_string())?;
    running.drain().await?;
    let Running { fleet, .. } = running;
    fleet.end().await.with_context(|| trial.to_string())?;
    outcome::measure(&url, &ops, course).await
}

struct Running<'a> {
    patroni: &'a mut Patroni,
    trial: Trial,
    goal: Duration,
    leader: usize,
    fleet: Fleet,
    session: Session,
}

impl Running<'_> {
    /// Returns once the old leader is a standby and tasks succeed.
    async fn inject_and_repair(&mut self) -> Result<Course> {
        self.more_succeed().await.context("before the fault")?;
        let row = self.session.rows(NOW).await?;
        let fault_at = row.first().context("no row")?.try_get(0)?;
        self.inject().await?;
        if self.trial.fault.moves_leader() {
            self.patroni.new_leader(self.leader).await?;
            self.more_succeed().await.context("after the failover")?;
        } else {
            sleep(CLIENT_PARTITION).await;
        }
        let begun = Instant::now();
        self.repair()?;
        let leader = self.patroni.healthy(self.trial.mode).await?;
        let repaired = begun.elapsed();
        if (leader != self.leader) != self.trial.fault.moves_leader() {
            bail!("the leader is {} now", self.patroni.nodes[leader].name);
        }
        self.more_succeed().await.context("after the repair")?;
        Ok(Course { trial: self.trial, goal: self.goal, fault_at, repaired })
    }

    async fn inject(&mut self) -> Result<()> {
        let leader = &mut self.patroni.nodes[self.leader];
        match self.trial.fault {
            Fault::Switchover => self.patroni.switchover(self.leader)?,
            Fault::Killed => leader.kill()?,
            Fault::Frozen => leader.freeze()?,
            fault => leader.set_open(closed_links(fault), false),
        }
        Ok(())
    }

    fn repair(&mut self) -> Result<()> {
        let leader = &mut self.patroni.nodes[self.leader];
        match self.trial.fault {
            Fault::Switchover => Ok(()),
            Fault::Killed => self.patroni.start_node(self.leader),
            Fault::Frozen => leader.thaw(),
            fault => {
                leader.set_open(closed_links(fault), true);
                Ok(())
            }
        }
    }

    /// Returns once more tasks have succeeded.
    async fn more_succeed(&mut self) -> Result<()> {
        let begun = Instant::now();
        let wanted = self.session.number(SUCCEEDED).await? + TASKS;
        loop {
            self.fleet.check()?;
            let succeeded = self.session.number(SUCCEEDED).await?;
            if succeeded >= wanted {
                return Ok(());
            }
            if begun.elapsed() > LIMIT {
                bail!("{succeeded} tasks have succeeded after {LIMIT:?}, of {wanted}");
            }
            sleep(POLL).await;
        }
    }

    /// Waits until no task is live. A task that is live after the limit counts as stuck.
    async fn drain(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.session.number(LIVE).await? > 0 && begun.elapsed() < DRAIN {
            self.fleet.check()?;
            sleep(POLL).await;
        }
        Ok(())
    }
}

/// Returns the links that a fault closes.
fn closed_links(fault: Fault) -> &'static [Link] {
    match fault {
        Fault::WithoutEtcd => &[Link::Etcd],
        Fault::Isolated => &[Link::Etcd, Link::Clients, Link::Peers],
        Fault::WithoutClients => &[Link::Clients],
        Fault::Switchover | Fault::Killed | Fault::Frozen => &[],
    }
}
