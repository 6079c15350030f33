//! What running tasks say of themselves, brought to where people see it: about once a second, all
//! tasks of the process in one statement, and nothing at all for tasks that say nothing or are over
//! within a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use queue::progress::{Said, say};
use queue::{Claim, TaskId, Token, WorkerId};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::control::{Control, answered};
use crate::notices::Notices;
use crate::shutdown::Shutdown;

/// Between two statements; and nobody follows a task that is over sooner.
const EVERY: Duration = Duration::from_secs(1);

/// The tasks of this process that run alone in their transaction; those that share one are short.
#[derive(Clone, Default)]
pub(crate) struct Sayings {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Somebody has said something, or somebody who did has ended.
    news: Arc<Notify>,
}

#[derive(Default)]
struct Tasks {
    listened: HashMap<TaskId, Listened>,
    /// Ended, and something of them is written down.
    ended: Vec<TaskId>,
}

struct Listened {
    token: Token,
    begun: Instant,
    notices: Notices,
    written: bool,
}

/// An attempt is listened to until this is dropped.
pub(crate) struct Listening {
    shared: Arc<Shared>,
    id: TaskId,
}

impl Sayings {
    /// From now on what is raised in the session is said by this task.
    pub(crate) fn listen(&self, claim: &Claim, notices: &Notices) -> Listening {
        notices.tell(Arc::clone(&self.shared.news));
        let listened = Listened {
            token: claim.token(),
            begun: Instant::now(),
            notices: notices.clone(),
            written: false,
        };
        self.shared.lock().listened.insert(claim.id(), listened);
        Listening { shared: Arc::clone(&self.shared), id: claim.id() }
    }

    /// Writes down what is said until the worker has ended.
    pub(crate) async fn run(self, worker: WorkerId, control: Control, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.end.cancelled() => break,
                () = self.shared.news.notified() => {}
            }
            // What is said meanwhile goes out with it.
            tokio::select! {
                () = shutdown.end.cancelled() => break,
                () = sleep(EVERY) => {}
            }
            self.write(worker, &control).await;
        }
        self.write(worker, &control).await;
    }

    async fn write(&self, worker: WorkerId, control: &Control) {
        let (said, ended) = self.shared.collect();
        if said.is_empty() && ended.is_empty() {
            return;
        }
        let told = async { say(&*control.get().await?, worker, &said, &ended).await };
        if let Err(error) = answered(told).await {
            tracing::debug!(%error, "what tasks say of themselves could not be written down");
            self.shared.again(&said, ended);
        }
    }
}

impl Shared {
    /// What is new of tasks that have run for a while. Of younger ones it is asked for again.
    fn collect(&self) -> (Vec<Said>, Vec<TaskId>) {
        let mut tasks = self.lock();
        let mut said = Vec::new();
        let mut early = false;
        for (id, task) in &mut tasks.listened {
            if task.begun.elapsed() < EVERY {
                early |= task.notices.has_news();
            } else if let Some(news) = task.notices.news() {
                task.written = true;
                said.push(Said {
                    id: *id,
                    token: task.token,
                    percent: news.percent,
                    message: news.message,
                    notices: news.last,
                });
            }
        }
        if early {
            self.news.notify_one();
        }
        (said, std::mem::take(&mut tasks.ended))
    }

    /// It did not get through.
    fn again(&self, said: &[Said], ended: Vec<TaskId>) {
        let mut tasks = self.lock();
        for said in said {
            if let Some(task) = tasks.listened.get(&said.id) {
                task.notices.repeat_news();
            }
        }
        tasks.ended.extend(ended);
        self.news.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut tasks = self.shared.lock();
        if tasks.listened.remove(&self.id).is_some_and(|task| task.written) {
            tasks.ended.push(self.id);
            self.shared.news.notify_one();
        }
    }
}

/// `progress: 40% loading`: how far, and what it says beside that. `None`: the notice is another one.
pub(crate) fn parse(message: &str) -> Option<(Option<f64>, Option<&str>)> {
    let rest = message.strip_prefix("progress:")?.trim();
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let percent = rest[..digits].parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let after = rest[digits..].trim_start().strip_prefix('%');
    let (percent, rest) = match (percent, after) {
        (Some(percent), Some(after)) => (Some(percent), after.trim_start()),
        _ => (None, rest),
    };
    Some((percent, (!rest.is_empty()).then_some(rest)))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_notice_of_progress_has_a_number_and_words_or_one_of_them() {
        for (message, percent, words) in [
            ("progress: 40% loading", Some(40.0), Some("loading")),
            ("progress: 99.5 %", Some(99.5), None),
            ("progress:100%done", Some(100.0), Some("done")),
            ("progress: 3 of 7 files", None, Some("3 of 7 files")),
            ("progress: 101% of it", None, Some("101% of it")),
            ("progress: 1.2.3%", None, Some("1.2.3%")),
            ("progress: ", None, None),
        ] {
            assert_eq!(parse(message), Some((percent, words)), "{message}");
        }
        assert_eq!(parse("the progress: 40%"), None);
        assert_eq!(parse("Progress 40%"), None);
    }
}
