//! The parts of a worker, from its configuration, before anything is connected or started.

use std::sync::Arc;

use conninfo::{ConnectionTarget, Environment};
use queue::{LimitId, RunId, WorkerId};

use crate::attempt::call::handlers::Handlers;
use crate::attempt::output::progress::ProgressReporter;
use crate::context::Context;
use crate::context::attempt_end::AttemptEndHook;
use crate::context::in_flight::InFlight;
use crate::context::reader_sessions::ReaderSessions;
use crate::control::Control;
use crate::duties::notifier::Destinations;
use crate::duties::poll::PollChannels;
use crate::login::Login;
use crate::shutdown::{Shutdown, Tasks};
use crate::startup::config::Config;
use crate::startup::logins::{logins, readers};
use crate::startup::settings::Settings;
use crate::startup::{destinations, traces};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::exporter::Exporter;
use crate::wakeup::claimer::{ClaimerWakeup, claimer};
use crate::wakeup::{ItemSender, Items, Wakeup, items, wakeup};

/// What readers and services are made of.
pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) settings: Settings,
    /// Whether `--task-url` is not set.
    pub(crate) own_login: bool,
    /// Logins for task SQL, the login of tasks without a profile first.
    pub(crate) logins: Vec<Login>,
    pub(crate) progress: ProgressReporter,
    pub(crate) destinations: Destinations,
    pub(crate) span_exporter: Option<Exporter>,
    pub(crate) handlers: Handlers,
}

/// Ends of channels that the services own.
pub(crate) struct Channels {
    /// For the permit granter.
    pub(crate) permits: Wakeup,
    pub(crate) released_limits: Items<LimitId>,
    /// For the run advancer.
    pub(crate) ended_runs: Items<RunId>,
    pub(crate) polled_runs: Items<RunId>,
    /// For the scheduler.
    pub(crate) timed_out_runs: ItemSender<RunId>,
    /// For the poller.
    pub(crate) polls: PollChannels,
}

impl Parts {
    /// Makes the parts of a worker that runs calls with these handlers, and the channels between them.
    ///
    /// # Errors
    /// A connection string, a destination or a setting of traces is invalid, or its file cannot be
    /// read.
    pub(crate) fn new(
        config: Config,
        environment: &Environment,
        handlers: Handlers,
        on_attempt_end: Option<AttemptEndHook>,
    ) -> anyhow::Result<(Self, ClaimerWakeup, Channels)> {
        let target = ConnectionTarget::from_source(config.database.clone(), environment)?;
        let metrics = Metrics::new(readers(&config))?;
        let worker = WorkerId::random();
        let tasks = Tasks::default();
        let control = Arc::new(Control::new(&target, worker, &metrics, &tasks)?);
        let logins = logins(&config, &target, &control, environment)?;
        let destinations = destinations::open(&config)?;
        warn_of_connection_strings(&config, &target, &logins);
        let shutdown = Shutdown::default();
        let (traces, span_exporter) =
            traces::open(&config.settings, worker, &metrics, shutdown.end.clone())?;
        let (permit_waker, permits) = wakeup();
        let (claimer, claimer_wakeup) = claimer(permit_waker);
        let (released, released_limits) = items();
        let (ended, ended_runs) = items();
        let (polled, polled_runs) = items();
        let channels = Channels {
            permits,
            released_limits,
            ended_runs,
            polled_runs,
            timed_out_runs: ended.clone(),
            polls: PollChannels::new(polled),
        };
        let context = Context {
            worker,
            control,
            in_flight: InFlight::new(released, ended),
            reader_sessions: ReaderSessions::default(),
            claimer,
            metrics,
            traces,
            shutdown,
            tasks,
            on_attempt_end,
        };
        let parts = Self {
            context: Arc::new(context),
            own_login: config.task.is_none(),
            logins,
            progress: ProgressReporter::default(),
            destinations,
            span_exporter,
            handlers,
            settings: config.settings,
        };
        Ok((parts, claimer_wakeup, channels))
    }

    /// Returns the number of all readers.
    pub(crate) fn readers(&self) -> u32 {
        self.logins.iter().map(|login| login.readers).sum()
    }

    /// Returns the profiles of the logins.
    pub(crate) fn profiles(&self) -> Vec<String> {
        self.logins.iter().map(|login| login.profile.to_string()).collect()
    }
}

fn warn_of_connection_strings(config: &Config, target: &ConnectionTarget, logins: &[Login]) {
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
}
