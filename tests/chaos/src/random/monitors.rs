//! Monitors running tasks while faults are injected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use checker::Monitor;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::session::Session;

/// Time between two polls.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit for a poll: a frozen server does not answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The monitors of the queue's database and of the target.
pub(crate) struct Monitors {
    end: Arc<AtomicBool>,
    monitoring: JoinSet<Result<Monitor>>,
}

impl Monitors {
    /// Starts one monitor per session.
    pub(crate) fn start(sessions: impl IntoIterator<Item = Session>) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let mut monitoring = JoinSet::new();
        for session in sessions {
            monitoring.spawn(monitor(session, Arc::clone(&end)));
        }
        Self { end, monitoring }
    }

    /// Ends the monitors and returns what they saw.
    ///
    /// # Errors
    /// Returns an error if a server did not accept connections for a minute.
    pub(crate) async fn end(mut self) -> Result<Monitor> {
        self.end.store(true, Ordering::Relaxed);
        let mut all = Monitor::default();
        while let Some(ended) = self.monitoring.join_next().await {
            all.merge(ended??);
        }
        Ok(all)
    }
}

async fn monitor(mut session: Session, end: Arc<AtomicBool>) -> Result<Monitor> {
    let mut monitor = Monitor::default();
    while !end.load(Ordering::Relaxed) {
        let client = session.connected().await.context("the monitor has no session")?;
        // A poll that fails is repeated: the server has crashed, or the session was terminated.
        let _ = timeout(ANSWER, monitor.poll(client)).await;
        sleep(PAUSE).await;
    }
    Ok(monitor)
}
