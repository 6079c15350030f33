//! What a statement raises below error, kept within bounds.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio_postgres::error::DbError;

/// Notices that history keeps per attempt.
const MOST: usize = 100;
/// Their text in all, in bytes.
const MOST_BYTES: usize = 32 * 1024;
/// One notice's text, in bytes.
const MOST_BYTES_EACH: usize = 2 * 1024;

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
}

impl Notices {
    /// Keeps a notice, or counts it. `owner`: what the session was called when it was raised.
    pub(crate) fn push(&self, owner: &str, notice: &DbError) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let message = cut(notice.message(), MOST_BYTES_EACH);
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
        let mut kept: Vec<Value> = log.kept.into_iter().map(|(_, notice)| notice).collect();
        if log.dropped > 0 {
            kept.push(json!({ "dropped": log.dropped }));
        }
        (!kept.is_empty()).then_some(Value::Array(kept))
    }

    /// What was raised since the last call, with what the session was called at each; `None` if
    /// some of it was not kept.
    pub(crate) fn take_owned(&self) -> Option<Vec<(String, Value)>> {
        let log = self.take_log();
        (log.dropped == 0).then_some(log.kept)
    }

    fn take_log(&self) -> Log {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
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
