//! Life cycle of the worker process: startup checks, background services, readers and shutdown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use queue::connect::{ConnectionSource, Environment, Target};
use queue::heartbeat::WorkerRegistration;
use queue::{WorkerId, schema};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_postgres::error::SqlState;
use tokio_util::task::TaskTracker;

use crate::attempt::execute::Executor;
use crate::attempt::progress::ProgressReporter;
use crate::attempt::reader::Reader;
use crate::claim::batch_size::BatchSizes;
use crate::claim::claimer::Claimer;
use crate::claim::in_flight::InFlight;
use crate::claim::weights::Weights;
use crate::control::{Control, DedicatedSession};
use crate::duties::failure_detector::PeerSnapshot;
use crate::duties::heartbeat::Heartbeat;
use crate::duties::permit_granter::PermitGranter;
use crate::duties::poll::Poller;
use crate::duties::reclaimer::Reclaimer;
use crate::duties::run_advancer::RunAdvancer;
use crate::duties::scheduler::Scheduler;
use crate::duties::{listener, maintenance, promoter, schedule_sync};
use crate::shutdown::{CANCEL_TIMEOUT, Shutdown, Signals, wait_for_readers};
use crate::startup::config::Config;
use crate::startup::console::{self, Console};
use crate::startup::login::{Login, interleave, logins, readers_by_profile};
use crate::startup::sd_notify::SdNotify;
use crate::startup::{pooler_check, privileges};
use crate::telemetry::fleet_metrics::FleetMetrics;
use crate::telemetry::http::{self, HttpState};
use crate::telemetry::metrics::Metrics;
use crate::wakeup::Wakeup;

/// Limit for deregistration and the other background services at shutdown.
const FINAL_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// State that the services share.
struct Process {
    worker: WorkerId,
    config: Config,
    /// Logins for task SQL, the login of tasks without a profile first.
    logins: Vec<Login>,
    control: Control,
    in_flight: InFlight,
    wakeup: Arc<Wakeup>,
    weights: watch::Sender<Weights>,
    metrics: Metrics,
    fleet_metrics: FleetMetrics,
    progress: ProgressReporter,
    shutdown: Shutdown,
    sd_notify: SdNotify,
}

/// Runs the worker until a signal, or until it has been idle for `exit_when_idle`.
///
/// # Errors
/// At startup: the database is unreachable or refuses this worker, or the HTTP address is in use.
/// The worker waits out later database errors.
pub(crate) async fn run(config: Config, environment: &Environment) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("could not install the signal handlers")?;
    let url = config.database_url.clone().map(ConnectionSource::read).transpose()?;
    let target = Target::resolve(url.as_deref(), environment)?;
    let logins = logins(&config, &target, environment)?;
    if target.password_given_inline() && config.on_command_line("database_url")
        || logins[0].target.password_given_inline() && config.on_command_line("task_url")
    {
        tracing::warn!(
            "a password on the command line is visible to all users of this machine; set it in \
             DATABASE_URL, PGMILL_TASK_URL, a file (--database-url-file, --task-url-file) or \
             ~/.pgpass"
        );
    }
    let of_tasks = logins.iter().flat_map(|login| login.target.warnings());
    for warning in target.warnings().iter().chain(of_tasks) {
        tracing::warn!("{warning}");
    }
    let metrics = Metrics::new(logins.iter().map(|login| login.readers).sum())?;
    let wakeup: Arc<Wakeup> = Arc::default();
    let process = Process {
        worker: WorkerId::random(),
        control: Control::new(&target, &metrics)?,
        logins,
        in_flight: InFlight::new(Arc::clone(&wakeup)),
        wakeup,
        weights: watch::Sender::default(),
        metrics,
        fleet_metrics: FleetMetrics::new(config.fleet_metrics_interval),
        progress: ProgressReporter::default(),
        shutdown: Shutdown::default(),
        sd_notify: SdNotify::from_environment(),
        config,
    };
    process.run_until_shutdown(&mut signals).await
}

impl Process {
    async fn run_until_shutdown(self, signals: &mut Signals) -> anyhow::Result<()> {
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
            console::BoundConsole::new(options)
        });
        let bound = bound.transpose().map_err(console::startup_error)?;
        let first = self.start_control_session(signals, bound).await?;
        let Some((control_session, console)) = first else { return Ok(()) };
        let background = self.background(control_session, http);
        if let Some(console) = console {
            background.spawn(console.ended());
        }
        let readers = self.readers();
        tracing::info!(
            worker = %self.worker,
            readers = self.total_readers(),
            database = %self.control.target(),
            task_login = self.logins[0].target.user(),
            profiles = self.profiles()[1..].join(","),
            "ready"
        );
        self.sd_notify.ready(self.total_readers());
        tokio::select! {
            signal = signals.next() => tracing::info!(signal, "shutdown requested"),
            () = self.idle_timeout() => tracing::info!("idle, shutting down"),
        }
        self.shutdown.drain.cancel();
        self.sd_notify.stopping(
            self.in_flight.count(),
            self.config.shutdown_timeout + CANCEL_TIMEOUT + FINAL_HEARTBEAT_TIMEOUT,
        );
        wait_for_readers(&readers, &self.in_flight, signals, self.config.shutdown_timeout).await;
        self.shutdown.end.cancel();
        background.close();
        // Deregisters the worker; an unreachable database must not block the shutdown.
        let _ = tokio::time::timeout(FINAL_HEARTBEAT_TIMEOUT, background.wait()).await;
        tracing::info!("shut down");
        Ok(())
    }

    /// Runs the startup checks, registers the worker and opens the console. Returns the control
    /// session, or `None` if a signal arrives first.
    async fn start_control_session(
        &self,
        signals: &mut Signals,
        console: Option<console::BoundConsole>,
    ) -> anyhow::Result<Option<(DedicatedSession, Option<Console>)>> {
        let ready = async {
            self.check_poolers().await?;
            let registration = self.control.registration();
            let client = self.control.control_session().await?.client;
            let version = schema::check_version(&client).await;
            // A login without privileges cannot even read the version. Report the missing GRANT.
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
            anyhow::Ok((self.heartbeat().register().await?, console))
        };
        tokio::select! {
            session = ready => session.map(Some),
            _ = signals.next() => Ok(None),
        }
    }

    /// Checks every login for a pooler. An unreachable server of a profile is not an error: its
    /// readers wait for it.
    async fn check_poolers(&self) -> anyhow::Result<()> {
        let tracker = &self.metrics.tracker;
        pooler_check::check(self.control.target(), "--database-url", tracker).await?;
        let given = usize::from(self.config.task_url.is_none());
        for login in &self.logins[given..] {
            let what = match &*login.profile {
                "" => "--task-url".to_owned(),
                profile => format!("run_as.{profile}"),
            };
            match pooler_check::check(&login.target, &what, tracker).await {
                Err(error) if login.profile.is_empty() || error.refused() => {
                    return Err(anyhow::Error::from(error).context("no session for tasks"));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn total_readers(&self) -> u32 {
        self.logins.iter().map(|login| login.readers).sum()
    }

    fn profiles(&self) -> Vec<String> {
        self.logins.iter().map(|login| login.profile.to_string()).collect()
    }

    fn heartbeat(&self) -> Heartbeat {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Heartbeat {
            registration: WorkerRegistration {
                worker: self.worker,
                pid: std::process::id(),
                host,
                version: env!("CARGO_PKG_VERSION"),
                readers: self.total_readers(),
                profiles: readers_by_profile(&self.logins),
                queues: self.config.queues.clone(),
                heartbeat_interval: self.config.heartbeat_interval,
                orphan_timeout: self.config.orphan_timeout,
            },
            control: self.control.clone(),
            in_flight: self.in_flight.clone(),
            wakeup: Arc::clone(&self.wakeup),
            metrics: self.metrics.clone(),
            shutdown: self.shutdown.clone(),
            sd_notify: self.sd_notify.clone(),
        }
    }

    /// Starts the background services, which are all services but readers and claimer.
    fn background(
        &self,
        control_session: DedicatedSession,
        http: Option<TcpListener>,
    ) -> TaskTracker {
        let tasks = TaskTracker::new();
        let (control, wakeup, shutdown) = (&self.control, &self.wakeup, &self.shutdown);
        tasks.spawn(self.heartbeat().run(control_session));
        tasks.spawn(listener::run(control.clone(), Arc::clone(wakeup), shutdown.clone()));
        let (next_due, next_due_receiver) = watch::channel(None);
        let (next_tick, next_tick_receiver) = watch::channel(None);
        let (peer_snapshots, peer_snapshot_receiver) = watch::channel(PeerSnapshot::empty());
        let (limits_pending, limits_pending_receiver) = watch::channel(false);
        let poller = Poller {
            worker: self.worker,
            queues: self.config.queues.clone(),
            poll_interval: self.config.poll_interval,
            control: control.clone(),
            wakeup: Arc::clone(wakeup),
            shutdown: shutdown.clone(),
            next_due,
            next_tick,
            limits_pending,
            weights: self.weights.clone(),
            peer_snapshots,
        };
        tasks.spawn(poller.run());
        let promoted =
            promoter::run(control.clone(), Arc::clone(wakeup), next_due_receiver, shutdown.clone());
        tasks.spawn(promoted);
        tasks.spawn(maintenance::run(control.clone(), shutdown.clone()));
        tasks.spawn(self.schedules(next_tick_receiver));
        let progress = self.progress.clone();
        tasks.spawn(progress.run(self.worker, control.clone(), shutdown.clone()));
        let reclaimer = Reclaimer {
            orphan_timeout: self.config.orphan_timeout,
            control: control.clone(),
            wakeup: Arc::clone(wakeup),
            metrics: self.metrics.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(reclaimer.run(peer_snapshot_receiver));
        let permit_granter = PermitGranter {
            control: control.clone(),
            wakeup: Arc::clone(wakeup),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(permit_granter.run(limits_pending_receiver));
        let run_advancer = RunAdvancer {
            control: control.clone(),
            wakeup: Arc::clone(wakeup),
            metrics: self.metrics.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(run_advancer.run());
        if let Some(listener) = http {
            tasks.spawn(self.fleet_metrics.clone().run(control.clone(), shutdown.clone()));
            let served = HttpState {
                control: control.clone(),
                in_flight: self.in_flight.clone(),
                wakeup: Arc::clone(wakeup),
                metrics: self.metrics.clone(),
                fleet_metrics: self.fleet_metrics.clone(),
                shutdown: shutdown.clone(),
            };
            tasks.spawn(http::run(listener, served));
        }
        tasks
    }

    /// Synchronizes the schedules declared in comments of procedures, then ticks unless disabled.
    fn schedules(
        &self,
        ticks: watch::Receiver<Option<Instant>>,
    ) -> impl Future<Output = ()> + use<> {
        let (control, shutdown) = (self.control.clone(), self.shutdown.clone());
        let scheduler = (!self.config.no_scheduler).then(|| {
            Scheduler::new(
                control.clone(),
                self.logins[0].clone(),
                Arc::clone(&self.wakeup),
                self.metrics.clone(),
                shutdown.clone(),
            )
        });
        async move {
            schedule_sync::run(&control, &shutdown).await;
            if let Some(scheduler) = scheduler {
                scheduler.run(ticks).await;
            }
        }
    }

    /// Starts the readers and the claimer that serves them.
    fn readers(&self) -> TaskTracker {
        let tasks = TaskTracker::new();
        let (idle_readers, idle_reader_receiver) = mpsc::unbounded_channel();
        let batch_sizes = BatchSizes::default();
        let claimer = Claimer {
            worker: self.worker,
            queues: self.config.queues.clone(),
            profiles: self.profiles(),
            poll_interval: self.config.poll_interval,
            control: self.control.clone(),
            in_flight: self.in_flight.clone(),
            batch_sizes: batch_sizes.clone(),
            weights: self.weights.subscribe(),
            wakeup: Arc::clone(&self.wakeup),
            metrics: self.metrics.clone(),
            shutdown: self.shutdown.clone(),
        };
        tasks.spawn(claimer.run(idle_reader_receiver));
        let executor = Arc::new(Executor {
            control: self.control.clone(),
            fatal_sqlstates: self.config.fatal_sqlstates.clone(),
            progress: self.progress.clone(),
        });
        for (number, login) in (1..).zip(interleave(&self.logins)) {
            let reader = Reader {
                number,
                login: login.clone(),
                idle_readers: idle_readers.clone(),
                executor: Arc::clone(&executor),
                batch_sizes: batch_sizes.clone(),
                wakeup: Arc::clone(&self.wakeup),
                metrics: self.metrics.clone(),
                shutdown: self.shutdown.clone(),
            };
            tasks.spawn(reader.run());
        }
        tasks
    }

    /// Resolves once no task has been runnable or running for `exit_when_idle`. A sweep at the end
    /// of that time confirms that nothing is runnable.
    async fn idle_timeout(&self) {
        let Some(limit) = self.config.exit_when_idle else { return std::future::pending().await };
        let mut idle = self.wakeup.subscribe_idle();
        loop {
            if idle.wait_for(|idle| *idle).await.is_err() {
                return std::future::pending().await;
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                _ = idle.wait_for(|idle| !*idle) => continue,
            }
            idle.mark_unchanged();
            self.wakeup.request_sweep();
            if idle.changed().await.is_ok() && *idle.borrow() {
                return;
            }
        }
    }
}
