//! Life cycle of the worker process: startup checks, background services, readers and shutdown.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use cli::duration::HumanDuration;
use conninfo::{ConnectionTarget, Environment};
use fleet_decisions::batch_size::BatchSizes;
use fleet_decisions::failure_detector::FailureDetector;
use fleet_decisions::scheduler_work::SchedulerWork;
use fleet_decisions::timing::{CANCEL_TIMEOUT, DEREGISTRATION_TIMEOUT, MAX_POLL_GAP};
use fleet_decisions::weights::Weights;
use queue::heartbeat::WorkerRegistration;
use queue::poll::Served;
use queue::{QueueError, WorkerId, citus, schema};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::call::handlers::Handlers;
use crate::attempt::execute::Executor;
use crate::attempt::in_target::recorder::Recorder;
use crate::attempt::output::progress::ProgressReporter;
use crate::attempt::reader::Reader;
use crate::claim::claimer::Claimer;
use crate::context::Context;
use crate::context::attempt_end::AttemptEndHook;
use crate::context::in_flight::InFlight;
use crate::context::reader_sessions::ReaderSessions;
use crate::control::Control;
use crate::duties::fleet_publisher::{FleetMetrics, FleetPublisher};
use crate::duties::heartbeat::Heartbeat;
use crate::duties::maintenance::Maintenance;
use crate::duties::notifier::{Destinations, Notifier};
use crate::duties::permit_granter::PermitGranter;
use crate::duties::poll::{PollChannels, Poller};
use crate::duties::progress_writer::ProgressWriter;
use crate::duties::promoter::Promoter;
use crate::duties::reclaimer::Reclaimer;
use crate::duties::run_advancer::RunAdvancer;
use crate::duties::schedule_sync::ScheduleSync;
use crate::duties::scheduler::Scheduler;
use crate::duties::trigger_evaluator::TriggerEvaluator;
use crate::duties::{duty, listener};
use crate::http::{self, HttpState};
use crate::login::Login;
use crate::shutdown::{Shutdown, Tasks};
use crate::startup::config::Config;
use crate::startup::console::{self, Console};
use crate::startup::logins::{logins, numbered_readers, readers, readers_by_profile};
use crate::startup::settings::Settings;
use crate::startup::shutdown::{Signals, wait_for_readers};
use crate::startup::{destinations, pooler_check, privileges, traces};
use crate::target::conditions::TargetConditions;
use crate::target::reclaim::TargetReclaimer;
use crate::target::upkeep::Upkeep;
use crate::target::{names, targets};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::sd_notify::SdNotify;
use crate::telemetry::traces::exporter::Exporter;
use crate::wakeup::Wakeup;

/// The program that runs the worker.
pub(crate) struct Program {
    signals: Signals,
    sd_notify: SdNotify,
    handlers: Handlers,
    on_attempt_end: Option<AttemptEndHook>,
}

impl Program {
    /// Returns the program `worker`. Installs its signal handlers.
    ///
    /// # Errors
    /// The operating system refuses a handler.
    pub(crate) fn worker() -> io::Result<Self> {
        Ok(Self {
            signals: Signals::new()?,
            sd_notify: SdNotify::from_environment(),
            handlers: Handlers::default(),
            on_attempt_end: None,
        })
    }

    /// Returns a program that embeds the worker, and that shuts it down when the future resolves.
    pub(crate) fn embedding(
        shutdown: impl Future<Output = ()> + Send + 'static,
        handlers: Handlers,
        on_attempt_end: Option<AttemptEndHook>,
    ) -> Self {
        Self {
            signals: Signals::OfProgram(Some(Box::pin(shutdown))),
            sd_notify: SdNotify::default(),
            handlers,
            on_attempt_end,
        }
    }
}

/// Ends what is still running if the program drops the worker's future.
struct DropGuard(Arc<Context>);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.shutdown.drain.cancel();
        self.0.in_flight.stop_all();
        self.0.shutdown.end.cancel();
    }
}

/// State that the services share.
struct Process {
    context: Arc<Context>,
    settings: Settings,
    /// Whether `--task-url` is set.
    separate_task_login: bool,
    /// Logins for task SQL, the login of tasks without a profile first.
    logins: Vec<Login>,
    weights: watch::Sender<Weights>,
    held_targets: watch::Sender<Vec<String>>,
    progress: ProgressReporter,
    sd_notify: SdNotify,
    destinations: Destinations,
    span_exporter: Option<Exporter>,
    handlers: Handlers,
}

/// Runs the worker until a signal, or until it has been idle for `exit_when_idle`.
///
/// # Errors
/// At startup: the database is unreachable or refuses this worker, or the HTTP address is in use.
/// After startup, database errors do not end the worker, which waits until they are over.
pub(crate) async fn run(
    config: Config,
    environment: &Environment,
    program: Program,
) -> anyhow::Result<()> {
    let Program { mut signals, sd_notify, handlers, on_attempt_end } = program;
    let target = ConnectionTarget::from_source(config.database.clone(), environment)?;
    let metrics = Metrics::new(readers(&config))?;
    let worker = WorkerId::random();
    let tasks = Tasks::default();
    let control = Arc::new(Control::new(&target, worker, &metrics, &tasks)?);
    let logins = logins(&config, &target, &control, environment)?;
    let destinations = destinations::open(&config)?;
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
    let shutdown = Shutdown::default();
    let (traces, span_exporter) =
        traces::open(&config.settings, worker, &metrics, shutdown.end.clone())?;
    let wakeup: Arc<Wakeup> = Arc::default();
    let context = Context {
        worker,
        control,
        in_flight: InFlight::new(Arc::clone(&wakeup)),
        reader_sessions: ReaderSessions::default(),
        wakeup,
        metrics,
        traces,
        shutdown,
        tasks,
        on_attempt_end,
    };
    let process = Process {
        context: Arc::new(context),
        logins,
        weights: watch::Sender::default(),
        held_targets: watch::Sender::default(),
        progress: ProgressReporter::default(),
        sd_notify,
        handlers,
        separate_task_login: config.task.is_some(),
        destinations,
        span_exporter,
        settings: config.settings,
    };
    let _guard = DropGuard(Arc::clone(&process.context));
    process.run_until_shutdown(&mut signals).await
}

impl Process {
    async fn run_until_shutdown(mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let http = match self.settings.http {
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .with_context(|| format!("could not listen on {address}"))?,
            ),
            None => None,
        };
        let bound =
            console::bind(&self.settings, self.context.metrics.refusal_observer("console"))?;
        let started = self.start(signals, bound).await?;
        let Some((heartbeat, console)) = started else { return Ok(()) };
        let destinations = std::mem::take(&mut self.destinations);
        let background = self.background(heartbeat, http, destinations);
        if let Some(console) = console {
            background.spawn(console.ended());
        }
        if let Some(exporter) = self.span_exporter.take() {
            background.spawn(exporter.run());
        }
        let readers = self.readers();
        tracing::info!(
            worker = %self.context.worker,
            readers = self.total_readers(),
            database = %self.context.control.target(),
            task_login = self.logins[0].target.user(),
            profiles = self.profiles()[1..].join(","),
            "ready"
        );
        self.sd_notify.ready(self.total_readers());
        tokio::select! {
            signal = signals.next() => tracing::info!(signal, "shutdown requested"),
            () = self.idle_timeout() => tracing::info!("idle, shutting down"),
        }
        let deadline = Instant::now() + self.settings.shutdown_timeout.0;
        self.context.shutdown.drain.cancel();
        self.sd_notify.stopping(
            self.context.in_flight.count(),
            self.settings.shutdown_timeout.0 + CANCEL_TIMEOUT + DEREGISTRATION_TIMEOUT,
        );
        wait_for_readers(
            &readers,
            &self.context.in_flight,
            signals,
            self.settings.shutdown_timeout.0,
            self.context.control.registration(),
        )
        .await;
        self.context.shutdown.end.cancel();
        // Deregisters the worker. The time limit keeps an unreachable database from blocking the
        // shutdown.
        let limit = match self.context.control.registration().server() {
            Some(_) => DEREGISTRATION_TIMEOUT,
            None => DEREGISTRATION_TIMEOUT.min(deadline.saturating_duration_since(Instant::now())),
        };
        let ended = async {
            background.ended().await;
            // A reader that was left running keeps its session.
            if readers.is_empty() {
                self.context.tasks.ended().await;
            }
        };
        let _ = tokio::time::timeout(limit, ended).await;
        tracing::info!("shut down");
        Ok(())
    }

    /// Runs the startup checks, opens the console and registers the worker. Returns `None` if a
    /// signal arrives first.
    async fn start(
        &self,
        signals: &mut Signals,
        console: Option<console::BoundConsole>,
    ) -> anyhow::Result<Option<(Heartbeat, Option<Console>)>> {
        let ready = async {
            self.check_poolers().await?;
            let client = self.context.control.control_session().await?.client;
            let version = schema::check_version(&client).await;
            // A login without privileges cannot even read the version. In that case the missing
            // GRANT is the error to report.
            let denied = version
                .as_ref()
                .is_err_and(|error| error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE));
            if denied {
                privileges::check(&client, &self.logins, &self.context.tasks).await?;
            }
            version?;
            privileges::check(&client, &self.logins, &self.context.tasks).await?;
            citus::check(&client).await?;
            drop(client);
            let console = match console {
                Some(bound) => {
                    let end = self.context.shutdown.end.clone();
                    Some(console::open(bound, self.context.control.target(), end).await?)
                }
                None => None,
            };
            anyhow::Ok((self.start_heartbeat().await?, console))
        };
        tokio::select! {
            started = ready => started.map(Some),
            _ = signals.next() => Ok(None),
        }
    }

    /// Checks every login for a pooler. It is not an error if the server of a profile is
    /// unreachable: the readers of the profile wait for it.
    async fn check_poolers(&self) -> anyhow::Result<()> {
        let tasks = &self.context.tasks;
        pooler_check::check(self.context.control.target(), "--database-url", tasks).await?;
        let given = usize::from(!self.separate_task_login);
        for login in &self.logins[given..] {
            match pooler_check::check(&login.target, &login.setting, tasks).await {
                Err(error) if login.profile.is_empty() || error.refused() => {
                    return Err(
                        anyhow::Error::from(error).context("could not open a session for tasks")
                    );
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

    /// Registers the worker.
    async fn start_heartbeat(&self) -> Result<Heartbeat, QueueError> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let registration = WorkerRegistration {
            worker: self.context.worker,
            pid: std::process::id(),
            host,
            version: env!("CARGO_PKG_VERSION"),
            readers: self.total_readers(),
            profiles: readers_by_profile(&self.logins),
            queues: self.settings.queues.clone(),
            destinations: self.destinations.keys().cloned().collect(),
            heartbeat_interval: self.settings.heartbeat_interval.0,
            orphan_timeout: self.settings.orphan_timeout.0,
        };
        Heartbeat::start(Arc::clone(&self.context), registration, self.sd_notify.clone()).await
    }

    /// Starts the duties and the other background services.
    fn background(
        &self,
        heartbeat: Heartbeat,
        http: Option<TcpListener>,
        destinations: Destinations,
    ) -> Tasks {
        let tasks = Tasks::default();
        let context = || Arc::clone(&self.context);
        let poll_interval = self.settings.poll_interval.0;
        tasks.spawn(duty::run(heartbeat, context()));
        tasks.spawn(listener::run(context()));
        let channels = PollChannels {
            weights: self.weights.clone(),
            held_targets: self.held_targets.clone(),
            ..PollChannels::default()
        };
        let promoter = Promoter::new(context(), channels.next_due.subscribe());
        tasks.spawn(duty::run(promoter, context()));
        let permit_granter = PermitGranter::new(context(), channels.limits_pending.subscribe());
        tasks.spawn(duty::run(permit_granter, context()));
        let detector = FailureDetector::new(self.settings.orphan_timeout.0, MAX_POLL_GAP);
        let targets = targets(&self.logins);
        let peers = channels.peer_snapshots.subscribe();
        let reclaimer = Reclaimer::new(context(), detector, peers);
        for target in &targets {
            let dead_workers = reclaimer.dead_workers();
            let in_target = TargetReclaimer::new(context(), target.clone(), dead_workers);
            tasks.spawn(duty::run(in_target, context()));
        }
        tasks.spawn(duty::run(reclaimer, context()));
        tasks.spawn(duty::run(Upkeep::new(context(), targets.clone()), context()));
        let to_check = channels.targets_to_check.subscribe();
        let conditions = TargetConditions::new(context(), targets.clone(), to_check);
        tasks.spawn(duty::run(conditions, context()));
        tasks.spawn(duty::run(RunAdvancer::new(context()), context()));
        tasks.spawn(duty::run(Maintenance::new(context()), context()));
        tasks.spawn(duty::run(ProgressWriter::new(context(), self.progress.clone()), context()));
        tasks.spawn(self.schedules(channels.scheduler_work.subscribe()));
        let served = Served {
            queues: self.settings.queues.clone(),
            destinations: destinations.keys().cloned().collect(),
            targets: names(&targets),
        };
        let due = channels.notifications_due.subscribe();
        tasks.spawn(duty::run(Notifier::new(context(), destinations, due), context()));
        if let Some(listener) = http {
            let metrics = FleetMetrics::default();
            let interval = self.settings.fleet_metrics_interval.0;
            let publisher = FleetPublisher::new(context(), metrics.clone(), interval);
            tasks.spawn(duty::run(publisher, context()));
            let state = HttpState::new(context(), metrics);
            tasks.spawn(http::run(listener, state));
        }
        let poller = Poller::new(context(), served, poll_interval, channels);
        tasks.spawn(duty::run(poller, context()));
        tasks
    }

    /// Synchronizes the schedules that are declared in comments of procedures. After the first
    /// attempt, ticks schedules, unless `--no-scheduler` is set.
    fn schedules(&self, work: watch::Receiver<SchedulerWork>) -> impl Future<Output = ()> + use<> {
        let context = Arc::clone(&self.context);
        let attempted = CancellationToken::new();
        let sync = ScheduleSync::new(Arc::clone(&context), attempted.clone().drop_guard());
        let scheduler = (!self.settings.no_scheduler).then(|| {
            let triggers = TriggerEvaluator::new(Arc::clone(&context), self.logins[0].clone());
            Scheduler::new(Arc::clone(&context), triggers, work)
        });
        async move {
            let ticks = async {
                attempted.cancelled().await;
                if let Some(scheduler) = scheduler {
                    duty::run(scheduler, Arc::clone(&context)).await;
                }
            };
            tokio::join!(duty::run(sync, Arc::clone(&context)), ticks);
        }
    }

    /// Starts the readers and the claimer that serves them.
    fn readers(&mut self) -> TaskTracker {
        let tasks = TaskTracker::new();
        let (idle_readers, idle_reader_receiver) = mpsc::unbounded_channel();
        let batch_sizes = BatchSizes::default();
        let claimer = Claimer {
            queues: self.settings.queues.clone(),
            profiles: self.profiles(),
            targets: names(&targets(&self.logins)),
            held_targets: self.held_targets.subscribe(),
            poll_interval: self.settings.poll_interval.0,
            batch_sizes: batch_sizes.clone(),
            weights: self.weights.subscribe(),
            context: Arc::clone(&self.context),
            tasks: tasks.clone(),
        };
        tasks.spawn(claimer.run(idle_reader_receiver));
        let executor = Arc::new(Executor {
            control: Arc::clone(&self.context.control),
            fatal_sqlstates: self.settings.fatal_sqlstates.clone(),
            progress: self.progress.clone(),
            batch_sizes: batch_sizes.clone(),
            recorder: Recorder::start(Arc::clone(&self.context.control), &self.context.tasks),
            handlers: std::mem::take(&mut self.handlers),
        });
        for (number, (login, number_in_profile)) in (1..).zip(numbered_readers(&self.logins)) {
            let reader = Reader {
                number,
                number_in_profile,
                login: login.clone(),
                idle_readers: idle_readers.clone(),
                executor: Arc::clone(&executor),
                batch_sizes: batch_sizes.clone(),
                context: Arc::clone(&self.context),
                recording: TaskTracker::new(),
            };
            tasks.spawn(reader.run());
        }
        tasks
    }

    /// Resolves once no task has been runnable or running for `exit_when_idle`. At the end of that
    /// time, a sweep confirms that nothing is runnable.
    async fn idle_timeout(&self) {
        let Some(HumanDuration(limit)) = self.settings.exit_when_idle else {
            return std::future::pending().await;
        };
        let mut idle = self.context.wakeup.subscribe_idle();
        loop {
            if idle.wait_for(|idle| *idle).await.is_err() {
                return std::future::pending().await;
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                _ = idle.wait_for(|idle| !*idle) => continue,
            }
            idle.mark_unchanged();
            self.context.wakeup.request_sweep();
            if idle.changed().await.is_ok() && *idle.borrow() {
                return;
            }
        }
    }
}
