//! Starts the heartbeat, the other duties, and the servers of the worker.

use std::sync::Arc;

use fleet_decisions::failure_detector::FailureDetector;
use fleet_decisions::scheduler_work::SchedulerWork;
use fleet_decisions::timing::MAX_POLL_GAP;
use queue::heartbeat::WorkerRegistration;
use queue::poll::Served;
use queue::{QueueError, RunId};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::duties::duty::{self, Duty};
use crate::duties::fleet_publisher::{FleetMetrics, FleetPublisher};
use crate::duties::heartbeat::Heartbeat;
use crate::duties::listener::Listener;
use crate::duties::maintenance::Maintenance;
use crate::duties::notifier::Notifier;
use crate::duties::permit_granter::PermitGranter;
use crate::duties::poll::Poller;
use crate::duties::progress_writer::ProgressWriter;
use crate::duties::promoter::Promoter;
use crate::duties::reclaimer::Reclaimer;
use crate::duties::run_advancer::RunAdvancer;
use crate::duties::schedule_sync::ScheduleSync;
use crate::duties::scheduler::Scheduler;
use crate::duties::trigger_evaluator::TriggerEvaluator;
use crate::http::{self, HttpState};
use crate::shutdown::Tasks;
use crate::startup::logins::readers_by_profile;
use crate::startup::parts::{Channels, Parts};
use crate::target::conditions::TargetConditions;
use crate::target::reclaim::TargetReclaimer;
use crate::target::upkeep::Upkeep;
use crate::target::{names, targets};
use crate::telemetry::sd_notify::SdNotify;
use crate::wakeup::{ItemSender, Waker, Wakeup, wakeup};

/// The services that were started. They end after the readers.
pub(crate) struct Services {
    context: Arc<Context>,
    tasks: Tasks,
}

/// The heartbeat of a registered worker, and the other ends of its channels.
pub(crate) struct Registered {
    pub(crate) heartbeat: Heartbeat,
    waker: Waker,
    maintenance: Wakeup,
}

/// Registers the worker.
///
/// # Errors
/// The database is unreachable or refuses the registration.
pub(crate) async fn register(
    parts: &Parts,
    sd_notify: &SdNotify,
) -> Result<Registered, QueueError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let registration = WorkerRegistration {
        worker: parts.context.worker,
        pid: std::process::id(),
        host,
        version: env!("CARGO_PKG_VERSION"),
        readers: parts.readers(),
        profiles: readers_by_profile(&parts.logins),
        queues: parts.settings.queues.clone(),
        destinations: parts.destinations.keys().cloned().collect(),
        heartbeat_interval: parts.settings.heartbeat_interval.0,
        orphan_timeout: parts.settings.orphan_timeout.0,
    };
    let (context, sd_notify) = (Arc::clone(&parts.context), sd_notify.clone());
    let ((waker, wakeup), (maintenance_waker, maintenance)) = (wakeup(), wakeup());
    let channels = (wakeup, maintenance_waker);
    let heartbeat = Heartbeat::start(context, registration, sd_notify, channels).await?;
    Ok(Registered { heartbeat, waker, maintenance })
}

/// Starts all services.
pub(crate) fn start(
    parts: &mut Parts,
    channels: Channels,
    registered: Registered,
    http: Option<TcpListener>,
) -> Services {
    let services = Services { context: Arc::clone(&parts.context), tasks: Tasks::default() };
    let context = || Arc::clone(&parts.context);
    let destinations = std::mem::take(&mut parts.destinations);
    let targets = targets(&parts.logins);
    let served = Served {
        queues: parts.settings.queues.clone(),
        destinations: destinations.keys().cloned().collect(),
        targets: names(&targets),
    };
    let Channels { polls, released_limits, permits, ended_runs, polled_runs, .. } = channels;
    let Registered { heartbeat, waker, maintenance } = registered;
    let (orders, policy) = (heartbeat.orders(), polls.claim_policy.subscribe());
    let (run_end_waker, run_end) = wakeup();
    services.perform(heartbeat);
    services.spawn(Listener { context: context(), heartbeat: waker, policy }.run());
    services.perform(Promoter::new(context(), polls.next_due.subscribe()));
    let limits = polls.limits.subscribe();
    services.perform(PermitGranter::new(context(), released_limits, permits, limits));
    let detector = FailureDetector::new(parts.settings.orphan_timeout.0, MAX_POLL_GAP);
    let reclaimer = Reclaimer::new(context(), detector, polls.peer_snapshots.subscribe());
    for target in &targets {
        let dead_workers = reclaimer.dead_workers();
        services.perform(TargetReclaimer::new(context(), target.clone(), dead_workers));
    }
    services.perform(reclaimer);
    services.perform(Upkeep::new(context(), targets.clone()));
    let to_check = polls.targets_to_check.subscribe();
    services.perform(TargetConditions::new(context(), targets, to_check));
    services.perform(RunAdvancer::new(context(), ended_runs, polled_runs, run_end_waker));
    services.perform(Maintenance::new(context(), maintenance));
    services.perform(ProgressWriter::new(context(), parts.progress.clone()));
    let work = polls.scheduler_work.subscribe();
    services.spawn(schedules(parts, work, (run_end, channels.timed_out_runs)));
    let due = polls.notifications_due.subscribe();
    services.perform(Notifier::new(context(), destinations, due));
    if let Some(listener) = http {
        let metrics = FleetMetrics::default();
        let interval = parts.settings.fleet_metrics_interval.0;
        services.perform(FleetPublisher::new(context(), metrics.clone(), interval));
        services.spawn(http::run(listener, HttpState::new(context(), orders, metrics)));
    }
    services.perform(Poller::new(context(), served, parts.settings.poll_interval.0, polls));
    if let Some(exporter) = parts.span_exporter.take() {
        services.spawn(exporter.run());
    }
    services
}

impl Services {
    fn perform(&self, duty: impl Duty) {
        self.spawn(duty::run(duty, Arc::clone(&self.context)));
    }

    /// Adds a service.
    pub(crate) fn spawn(&self, service: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(service);
    }

    /// Resolves once all services have ended.
    pub(crate) async fn ended(&self) {
        self.tasks.ended().await;
    }
}

/// Synchronizes the schedules that are declared in comments of procedures. After the first
/// attempt, ticks schedules, unless `--no-scheduler` is set.
fn schedules(
    parts: &Parts,
    work: watch::Receiver<SchedulerWork>,
    runs: (Wakeup, ItemSender<RunId>),
) -> impl Future<Output = ()> + use<> {
    let context = Arc::clone(&parts.context);
    let attempted = CancellationToken::new();
    let sync = ScheduleSync::new(Arc::clone(&context), attempted.clone().drop_guard());
    let scheduler = (!parts.settings.no_scheduler).then(|| {
        let triggers = TriggerEvaluator::new(Arc::clone(&context), parts.logins[0].clone());
        Scheduler::new(Arc::clone(&context), triggers, work, runs)
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
