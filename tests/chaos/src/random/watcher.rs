//! Watches running tasks while faults are injected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use checker::Watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::session::Session;

/// Time between two polls.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit for a poll: a frozen server does not answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The watchers of the queue's database and of the target.
pub(crate) struct Watchers {
    end: Arc<AtomicBool>,
    watching: JoinSet<Result<Watch>>,
}

impl Watchers {
    /// Starts one watcher per session.
    pub(crate) fn start(sessions: impl IntoIterator<Item = Session>) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let mut watching = JoinSet::new();
        for session in sessions {
            watching.spawn(watch(session, Arc::clone(&end)));
        }
        Self { end, watching }
    }

    /// Ends the watchers and returns what they saw.
    ///
    /// # Errors
    /// Returns an error if a server did not accept connections for a minute.
    pub(crate) async fn end(mut self) -> Result<Watch> {
        self.end.store(true, Ordering::Relaxed);
        let mut all = Watch::default();
        while let Some(ended) = self.watching.join_next().await {
            all.merge(ended??);
        }
        Ok(all)
    }
}

async fn watch(mut session: Session, end: Arc<AtomicBool>) -> Result<Watch> {
    let mut watch = Watch::default();
    while !end.load(Ordering::Relaxed) {
        let client = session.client().await.context("the watcher has no session")?;
        // A poll that fails is repeated: the server has crashed, or the session was terminated.
        let _ = timeout(ANSWER, watch.poll(client)).await;
        sleep(PAUSE).await;
    }
    Ok(watch)
}
