//! Starts the readers and the claimer that serves them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fleet_decisions::batch_size::BatchSizes;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::attempt::execute::Executor;
use crate::attempt::in_target::recorder::Recorder;
use crate::attempt::reader::Reader;
use crate::claim::claimer::Claimer;
use crate::claim::policy::{ClaimPolicy, Orders};
use crate::startup::logins::numbered_readers;
use crate::startup::parts::Parts;
use crate::target::{names, targets};
use crate::wakeup::claimer::ClaimerWakeup;

/// Starts the claimer and all readers.
pub(crate) fn start(
    parts: &mut Parts,
    wakeup: ClaimerWakeup,
    policy: watch::Receiver<ClaimPolicy>,
    orders: watch::Receiver<Orders>,
) -> TaskTracker {
    let tasks = TaskTracker::new();
    let context = &parts.context;
    let (idle_readers, idle_reader_receiver) = mpsc::unbounded_channel();
    let batch_sizes = BatchSizes::default();
    let claimer = Claimer {
        queues: parts.settings.queues.clone(),
        profiles: parts.profiles(),
        targets: names(&targets(&parts.logins)),
        poll_interval: parts.settings.poll_interval.0,
        batch_sizes: batch_sizes.clone(),
        wakeup,
        policy,
        orders,
        context: Arc::clone(context),
        tasks: tasks.clone(),
    };
    tasks.spawn(claimer.run(idle_reader_receiver));
    let executor = Arc::new(Executor {
        control: Arc::clone(&context.control),
        fatal_sqlstates: parts.settings.fatal_sqlstates.clone(),
        progress: parts.progress.clone(),
        batch_sizes: batch_sizes.clone(),
        recorder: Recorder::start(Arc::clone(&context.control), &context.tasks),
        handlers: std::mem::take(&mut parts.handlers),
    });
    for (number, (login, number_in_profile)) in (1..).zip(numbered_readers(&parts.logins)) {
        let reader = Reader {
            number,
            number_in_profile,
            login: login.clone(),
            idle_readers: idle_readers.clone(),
            executor: Arc::clone(&executor),
            batch_sizes: batch_sizes.clone(),
            context: Arc::clone(context),
            recording: TaskTracker::new(),
            lost: AtomicBool::new(false),
        };
        tasks.spawn(reader.run());
    }
    tasks
}
