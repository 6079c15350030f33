//! One worker process from start to end: everything that runs in it, and how it is wound down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use queue::beat::Introduction;
use queue::connect::{Environment, Given, Target};
use queue::{WorkerId, schema};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_postgres::error::SqlState;
use tokio_util::task::TaskTracker;

use crate::advancer::Advancer;
use crate::beat::Beat;
use crate::bell::Bell;
use crate::claimer::Claimer;
use crate::config::Config;
use crate::console::{self, Console};
use crate::control::{Control, Own};
use crate::execute::Executor;
use crate::gauges::Gauges;
use crate::granter::Granter;
use crate::held::Held;
use crate::http::{self, Http};
use crate::login::{Login, logins, readers_by_profile, spread};
use crate::look::Looker;
use crate::manager::Manager;
use crate::metrics::Metrics;
use crate::pace::Paces;
use crate::pick::Weights;
use crate::progress::Sayings;
use crate::reader::Reader;
use crate::reclaimer::Reclaimer;
use crate::registration::Registration;
use crate::scheduler::Scheduler;
use crate::shutdown::{LAST_PATIENCE, Shutdown, Signals, wind_down};
use crate::watch::Sight;
use crate::{direct, listener, maintenance, privileges, promoter, reconciler};

/// How long the end waits for the last beat.
const LAST_BEAT: Duration = Duration::from_secs(5);

/// Everything that the parts share.
struct Process {
    worker: WorkerId,
    config: Config,
    /// Of tasks; the first one is of those that name no profile.
    logins: Vec<Login>,
    control: Control,
    held: Held,
    bell: Arc<Bell>,
    weights: watch::Sender<Weights>,
    metrics: Metrics,
    gauges: Gauges,
    sayings: Sayings,
    shutdown: Shutdown,
    manager: Manager,
}

/// Runs until a signal, or until idle for long enough if the configuration says so.
///
/// # Errors
/// The database cannot be reached or refuses this worker at the start; the HTTP address is taken.
/// Later trouble with the database is waited out.
pub(crate) async fn run(config: Config, environment: &Environment) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("could not install the signal handlers")?;
    let url = config.database_url.clone().map(Given::read).transpose()?;
    let target = Target::resolve(url.as_deref(), environment)?;
    let logins = logins(&config, &target, environment)?;
    if target.password_given_inline() && config.on_command_line("database_url")
        || logins[0].target.password_given_inline() && config.on_command_line("task_url")
    {
        tracing::warn!(
            "everybody on this machine can read a password in an argument: put it into DATABASE_URL, \
             PGMILL_TASK_URL, a file (--database-url-file, --task-url-file) or ~/.pgpass"
        );
    }
    let of_tasks = logins.iter().flat_map(|login| login.target.warnings());
    for warning in target.warnings().iter().chain(of_tasks) {
        tracing::warn!("{warning}");
    }
    let metrics = Metrics::new(logins.iter().map(|login| login.readers).sum())?;
    let bell: Arc<Bell> = Arc::default();
    let process = Process {
        worker: WorkerId::random(),
        control: Control::new(&target, &metrics, &Registration::default())?,
        logins,
        held: Held::new(Arc::clone(&bell)),
        bell,
        weights: watch::Sender::default(),
        metrics,
        gauges: Gauges::new(config.collect),
        sayings: Sayings::default(),
        shutdown: Shutdown::default(),
        manager: Manager::from_process(),
        config,
    };
    process.live(&mut signals).await
}

impl Process {
    async fn live(self, signals: &mut Signals) -> anyhow::Result<()> {
        let http = match self.config.http {
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .with_context(|| format!("could not listen on {address}"))?,
            ),
            None => None,
        };
        let bound = self.config.console.as_ref().map(|console| {
            let options = console.flags.options(console.listen)?;
            console::Bound::new(options)
        });
        let bound = bound.transpose().map_err(console::plain)?;
        let first = self.first_session(signals, bound).await?;
        let Some((control_session, console)) = first else { return Ok(()) };
        let background = self.background(control_session, http);
        if let Some(console) = console {
            background.spawn(console.ended());
        }
        let readers = self.readers();
        tracing::info!(
            worker = %self.worker, readers = self.readers_in_all(), database = %self.control.target(),
            tasks_as = self.logins[0].target.user(), profiles = self.profiles()[1..].join(","), "ready"
        );
        self.manager.ready(self.readers_in_all());
        tokio::select! {
            signal = signals.next() => tracing::info!(signal, "told to end"),
            () = self.idle_for_long() => tracing::info!("idle, ending"),
        }
        self.shutdown.drain.cancel();
        self.manager.stopping(self.held.count(), self.config.grace + LAST_PATIENCE + LAST_BEAT);
        wind_down(&readers, &self.held, signals, self.config.grace).await;
        self.shutdown.end.cancel();
        background.close();
        // The last beat leaves the list of the living; an unreachable database does not keep us.
        let _ = tokio::time::timeout(LAST_BEAT, background.wait()).await;
        tracing::info!("ended");
        Ok(())
    }

    /// The control session, registered, after everything that would make this worker useless has
    /// been ruled out. `None`: a signal came first.
    async fn first_session(
        &self,
        signals: &mut Signals,
        console: Option<console::Bound>,
    ) -> anyhow::Result<Option<(Own, Option<Console>)>> {
        let ready = async {
            self.rule_out_poolers().await?;
            let registration = self.control.registration();
            let client = self.control.control_session().await?.client;
            let version = schema::check_version(&client).await;
            // A login without any right may not even read the version: the grant is what it lacks.
            let denied = version
                .as_ref()
                .is_err_and(|error| error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE));
            if denied {
                privileges::check(&client, &self.logins, registration, &self.metrics.tracker)
                    .await?;
            }
            version?;
            privileges::check(&client, &self.logins, registration, &self.metrics.tracker).await?;
            drop(client);
            let console = match console {
                Some(bound) => {
                    let end = self.shutdown.end.clone();
                    Some(console::open(bound, self.control.target(), end).await?)
                }
                None => None,
            };
            anyhow::Ok((self.beat().register().await?, console))
        };
        tokio::select! {
            session = ready => session.map(Some),
            _ = signals.next() => Ok(None),
        }
    }

    /// A profile's server that cannot be reached is waited for by its readers.
    async fn rule_out_poolers(&self) -> anyhow::Result<()> {
        let tracker = &self.metrics.tracker;
        direct::check(self.control.target(), "--database-url", tracker).await?;
        let given = usize::from(self.config.task_url.is_none());
        for login in &self.logins[given..] {
            let what = match &*login.profile {
                "" => "--task-url".to_owned(),
                profile => format!("run_as.{profile}"),
            };
            match direct::check(&login.target, &what, tracker).await {
                Err(error) if login.profile.is_empty() || error.refused() => {
                    return Err(anyhow::Error::from(error).context("no session for tasks"));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn readers_in_all(&self) -> u32 {
        self.logins.iter().map(|login| login.readers).sum()
    }

    fn profiles(&self) -> Vec<String> {
        self.logins.iter().map(|login| login.profile.to_string()).collect()
    }

    fn beat(&self) -> Beat {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Beat {
            introduction: Introduction {
                worker: self.worker,
                pid: std::process::id(),
                host,
                version: env!("CARGO_PKG_VERSION"),
                readers: self.readers_in_all(),
                profiles: readers_by_profile(&self.logins),
                queues: self.config.queues.clone(),
                beat: self.config.beat,
                orphan_timeout: self.config.orphan_timeout,
            },
            control: self.control.clone(),
            held: self.held.clone(),
            bell: Arc::clone(&self.bell),
            metrics: self.metrics.clone(),
            shutdown: self.shutdown.clone(),
            manager: self.manager.clone(),
        }
    }

    /// Starts everything but readers and claimer.
    fn background(&self, control_session: Own, http: Option<TcpListener>) -> TaskTracker {
        let tasks = TaskTracker::new();
        let (control, bell, shutdown) = (&self.control, &self.bell, &self.shutdown);
        tasks.spawn(self.beat().run(control_session));
        tasks.spawn(listener::run(control.clone(), Arc::clone(bell), shutdown.clone()));
        let (next_due, dues) = watch::channel(None);
        let (next_tick, ticks) = watch::channel(None);
        let (sights, looks) = watch::channel(Sight::nobody());
        let (limited, limits) = watch::channel(false);
        let looker = Looker {
            worker: self.worker,
            queues: self.config.queues.clone(),
            poll: self.config.poll,
            control: control.clone(),
            bell: Arc::clone(bell),
            shutdown: shutdown.clone(),
            next_due,
            next_tick,
            limited,
            weights: self.weights.clone(),
            sights,
        };
        tasks.spawn(looker.run());
        let promoted = promoter::run(control.clone(), Arc::clone(bell), dues, shutdown.clone());
        tasks.spawn(promoted);
        tasks.spawn(maintenance::run(control.clone(), shutdown.clone()));
        tasks.spawn(self.schedules(ticks));
        let sayings = self.sayings.clone();
        tasks.spawn(sayings.run(self.worker, control.clone(), shutdown.clone()));
        let reclaimer = Reclaimer {
            orphan_timeout: self.config.orphan_timeout,
            control: control.clone(),
            bell: Arc::clone(bell),
            metrics: self.metrics.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(reclaimer.run(looks));
        let granter = Granter {
            control: control.clone(),
            bell: Arc::clone(bell),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(granter.run(limits));
        let advancer = Advancer {
            control: control.clone(),
            bell: Arc::clone(bell),
            metrics: self.metrics.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(advancer.run());
        if let Some(listener) = http {
            tasks.spawn(self.gauges.clone().run(control.clone(), shutdown.clone()));
            let served = Http {
                control: control.clone(),
                held: self.held.clone(),
                bell: Arc::clone(bell),
                metrics: self.metrics.clone(),
                gauges: self.gauges.clone(),
                shutdown: shutdown.clone(),
            };
            tasks.spawn(http::run(listener, served));
        }
        tasks
    }

    /// Reads what is declared in the comments of procedures, then ticks, unless told not to.
    fn schedules(
        &self,
        ticks: watch::Receiver<Option<Instant>>,
    ) -> impl Future<Output = ()> + use<> {
        let (control, shutdown) = (self.control.clone(), self.shutdown.clone());
        let scheduler = (!self.config.no_scheduler).then(|| {
            Scheduler::new(
                control.clone(),
                self.logins[0].clone(),
                Arc::clone(&self.bell),
                self.metrics.clone(),
                shutdown.clone(),
            )
        });
        async move {
            reconciler::run(&control, &shutdown).await;
            if let Some(scheduler) = scheduler {
                scheduler.run(ticks).await;
            }
        }
    }

    /// Starts the readers and the claimer that serves them.
    fn readers(&self) -> TaskTracker {
        let tasks = TaskTracker::new();
        let (offers, offered) = mpsc::unbounded_channel();
        let paces = Paces::default();
        let claimer = Claimer {
            worker: self.worker,
            queues: self.config.queues.clone(),
            profiles: self.profiles(),
            poll: self.config.poll,
            control: self.control.clone(),
            held: self.held.clone(),
            paces: paces.clone(),
            weights: self.weights.subscribe(),
            bell: Arc::clone(&self.bell),
            metrics: self.metrics.clone(),
            shutdown: self.shutdown.clone(),
        };
        tasks.spawn(claimer.run(offered));
        let executor = Arc::new(Executor {
            control: self.control.clone(),
            fatal_sqlstates: self.config.fatal_sqlstates.clone(),
            sayings: self.sayings.clone(),
        });
        for (number, login) in (1..).zip(spread(&self.logins)) {
            let reader = Reader {
                number,
                login: login.clone(),
                offers: offers.clone(),
                executor: Arc::clone(&executor),
                paces: paces.clone(),
                bell: Arc::clone(&self.bell),
                metrics: self.metrics.clone(),
                shutdown: self.shutdown.clone(),
            };
            tasks.spawn(reader.run());
        }
        tasks
    }

    /// Resolves once nothing has been runnable or running for `exit_when_idle`: not between its
    /// first sweep and the last one, which is asked for at the end.
    async fn idle_for_long(&self) {
        let Some(limit) = self.config.exit_when_idle else { return std::future::pending().await };
        let mut idle = self.bell.watch_idle();
        loop {
            if idle.wait_for(|idle| *idle).await.is_err() {
                return std::future::pending().await;
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                _ = idle.wait_for(|idle| !*idle) => continue,
            }
            idle.mark_unchanged();
            self.bell.sweep();
            if idle.changed().await.is_ok() && *idle.borrow() {
                return;
            }
        }
    }
}
