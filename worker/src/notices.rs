//! What a statement raises below error, kept within bounds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_postgres::error::DbError;

use crate::progress;

/// Notices that history keeps per attempt.
const MOST: usize = 100;
/// Their text in all, in bytes.
const MOST_BYTES: usize = 32 * 1024;
/// One notice's text, in bytes.
const MOST_BYTES_EACH: usize = 2 * 1024;

/// Last notices of a running task that are shown while it runs.
const MOST_LIVE: usize = 10;
/// The text of one of them, in bytes.
const MOST_BYTES_LIVE: usize = 512;

/// The notices of what runs in a session; shared with the connection's driver.
#[derive(Clone, Default)]
pub(crate) struct Notices {
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    kept: Vec<(String, Value)>,
    bytes: usize,
    dropped: u64,
    /// The last word of each owner on how far it is. Of these only the last one is kept: they would
    /// leave no room for others.
    progress: Vec<(String, Value)>,
    live: Option<Live>,
}

/// What is shown of a task while it runs.
struct Live {
    /// Told of each notice.
    told: Arc<Notify>,
    fresh: bool,
    percent: Option<f64>,
    message: Option<String>,
    last: VecDeque<Value>,
}

/// How far a task says that it is, and its last notices of other kinds.
pub(crate) struct News {
    pub(crate) percent: Option<f64>,
    pub(crate) message: Option<String>,
    pub(crate) last: Option<Value>,
}

impl Notices {
    /// Keeps a notice, or counts it. `owner`: what the session was called when it was raised.
    pub(crate) fn push(&self, owner: &str, notice: &DbError) {
        let mut log = self.lock();
        let said = progress::parse(notice.message());
        if let Some(live) = &mut log.live {
            live.hear(said, notice);
        }
        let message = cut(notice.message(), MOST_BYTES_EACH);
        if said.is_some() {
            let kept = json!({ "severity": notice.severity(), "message": message });
            match log.progress.iter_mut().find(|(before, _)| before == owner) {
                Some((_, last)) => *last = kept,
                None => log.progress.push((owner.to_owned(), kept)),
            }
            return;
        }
        if log.kept.len() >= MOST || log.bytes + message.len() > MOST_BYTES {
            log.dropped += 1;
            return;
        }
        log.bytes += message.len();
        let mut kept = json!({ "severity": notice.severity(), "message": message });
        for (key, text) in [("detail", notice.detail()), ("hint", notice.hint())] {
            if let Some(text) = text {
                let text = cut(text, MOST_BYTES_EACH);
                log.bytes += text.len();
                kept[key] = Value::from(text);
            }
        }
        log.kept.push((owner.to_owned(), kept));
    }

    /// What was raised since the last call; `None` if nothing was.
    pub(crate) fn take(&self) -> Option<Value> {
        let log = self.take_log();
        let mut kept: Vec<Value> =
            log.kept.into_iter().chain(log.progress).map(|(_, notice)| notice).collect();
        if log.dropped > 0 {
            kept.push(json!({ "dropped": log.dropped }));
        }
        (!kept.is_empty()).then_some(Value::Array(kept))
    }

    /// What was raised since the last call, with what the session was called at each; `None` if
    /// some of it was not kept.
    pub(crate) fn take_owned(&self) -> Option<Vec<(String, Value)>> {
        let mut log = self.take_log();
        log.kept.append(&mut log.progress);
        (log.dropped == 0).then_some(log.kept)
    }

    /// From now until the next call of [`Notices::take`] somebody wants to hear what is raised.
    pub(crate) fn tell(&self, told: Arc<Notify>) {
        self.lock().live =
            Some(Live { told, fresh: false, percent: None, message: None, last: VecDeque::new() });
    }

    /// Whether something was raised that [`Notices::news`] has not told.
    pub(crate) fn has_news(&self) -> bool {
        self.lock().live.as_ref().is_some_and(|live| live.fresh)
    }

    /// What is to be shown now, if it differs from the last time.
    pub(crate) fn news(&self) -> Option<News> {
        let mut log = self.lock();
        let live = log.live.as_mut().filter(|live| live.fresh)?;
        live.fresh = false;
        let last: Vec<Value> = live.last.iter().cloned().collect();
        Some(News {
            percent: live.percent,
            message: live.message.clone(),
            last: (!last.is_empty()).then_some(Value::Array(last)),
        })
    }

    /// The last news did not get through.
    pub(crate) fn repeat_news(&self) {
        if let Some(live) = &mut self.lock().live {
            live.fresh = true;
        }
    }

    fn take_log(&self) -> Log {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn hear(&mut self, said: Option<(Option<f64>, Option<&str>)>, notice: &DbError) {
        match said {
            Some((percent, message)) => {
                self.percent = percent;
                self.message = message.map(|text| cut(text, MOST_BYTES_LIVE));
            }
            None => {
                if self.last.len() == MOST_LIVE {
                    self.last.pop_front();
                }
                self.last.push_back(json!({
                    "severity": notice.severity(), "message": cut(notice.message(), MOST_BYTES_LIVE),
                }));
            }
        }
        // One wake-up is enough until somebody has come.
        if !std::mem::replace(&mut self.fresh, true) {
            self.told.notify_one();
        }
    }
}

/// The first bytes of a text, without a NUL, which JSON in PostgreSQL cannot hold.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut kept = text[..end].replace('\0', "\u{fffd}");
    if end < text.len() {
        kept.push('…');
    }
    kept
}
