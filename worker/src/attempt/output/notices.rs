//! Collects the notices of a statement, within limits.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_postgres::error::DbError;

/// Maximum number of notices in the history of an attempt.
const MAX_NOTICES: usize = 100;
/// Maximum size in bytes of the texts of these notices together.
const MAX_BYTES: usize = 32 * 1024;
/// Maximum size in bytes of a single text.
const MAX_BYTES_EACH: usize = 2 * 1024;

/// Number of notices that are shown while a task runs, the latest ones.
const MAX_LIVE_NOTICES: usize = 10;
/// Maximum size in bytes of the text of a notice that is shown while a task runs.
const MAX_BYTES_LIVE: usize = 512;

/// Notices raised in a session, shared with the Tokio task that drives the connection.
#[derive(Clone, Default)]
pub(crate) struct Notices {
    log: Arc<Mutex<NoticeLog>>,
}

#[derive(Default)]
struct NoticeLog {
    kept: Vec<(String, Value)>,
    bytes: usize,
    dropped: u64,
    /// The latest progress notice of each owner. Earlier progress notices are dropped, because they
    /// would leave no room for other notices.
    progress: Vec<(String, Value)>,
    live: Option<LiveNotices>,
}

/// Progress and latest notices of a running task.
struct LiveNotices {
    /// Notified when there are changes.
    notify: Arc<Notify>,
    changed: bool,
    percent: Option<f64>,
    message: Option<String>,
    last: VecDeque<Value>,
}

/// Progress reported by a task, and its latest other notices.
pub(crate) struct LiveUpdate {
    pub(crate) percent: Option<f64>,
    pub(crate) message: Option<String>,
    pub(crate) recent: Option<Value>,
}

/// Returns the severity in English, in any language of the server's messages.
fn severity(notice: &DbError) -> Option<String> {
    notice.parsed_severity().map(|severity| severity.to_string())
}

impl Notices {
    /// Keeps a notice, or counts it as dropped. `owner` is the application_name of the session when
    /// the notice was raised.
    pub(crate) fn push(&self, owner: &str, notice: &DbError) {
        let mut log = self.log.lock();
        let progress = parse_progress(notice.message());
        if let Some(live) = &mut log.live {
            live.record(progress, notice);
        }
        let message = truncate(notice.message(), MAX_BYTES_EACH);
        if progress.is_some() {
            let kept = json!({ "severity": severity(notice), "message": message });
            match log.progress.iter_mut().find(|(before, _)| before == owner) {
                Some((_, last)) => *last = kept,
                None => log.progress.push((owner.to_owned(), kept)),
            }
            return;
        }
        log.keep(owner, severity(notice).as_deref(), &message, [notice.detail(), notice.hint()]);
    }

    /// Returns the notices that arrived since the last call, as a JSON array; `None` if there are
    /// none.
    pub(crate) fn take(&self) -> Option<Value> {
        let log = self.take_log();
        let mut kept: Vec<Value> =
            log.kept.into_iter().chain(log.progress).map(|(_, notice)| notice).collect();
        if log.dropped > 0 {
            kept.push(json!({ "dropped": log.dropped }));
        }
        (!kept.is_empty()).then_some(Value::Array(kept))
    }

    /// Returns the notices that arrived since the last call, each with its owner; `None` if notices
    /// were dropped.
    pub(crate) fn take_owned(&self) -> Option<Vec<(String, Value)>> {
        let mut log = self.take_log();
        log.kept.append(&mut log.progress);
        (log.dropped == 0).then_some(log.kept)
    }

    /// Notifies `notify` of changes, until the next call of [`Notices::take`].
    pub(crate) fn subscribe(&self, notify: Arc<Notify>) {
        self.log.lock().live = Some(LiveNotices {
            notify,
            changed: false,
            percent: None,
            message: None,
            last: VecDeque::new(),
        });
    }

    /// Returns whether [`Notices::take_changes`] would return changes.
    pub(crate) fn has_changes(&self) -> bool {
        self.log.lock().live.as_ref().is_some_and(|live| live.changed)
    }

    /// Returns the current progress and notices, if they have changed since the last call.
    pub(crate) fn take_changes(&self) -> Option<LiveUpdate> {
        let mut log = self.log.lock();
        let live = log.live.as_mut().filter(|live| live.changed)?;
        live.changed = false;
        let last: Vec<Value> = live.last.iter().cloned().collect();
        Some(LiveUpdate {
            percent: live.percent,
            message: live.message.clone(),
            recent: (!last.is_empty()).then_some(Value::Array(last)),
        })
    }

    /// Makes the next call of [`Notices::take_changes`] return the last changes again.
    pub(crate) fn mark_changed(&self) {
        if let Some(live) = &mut self.log.lock().live {
            live.changed = true;
        }
    }

    fn take_log(&self) -> NoticeLog {
        std::mem::take(&mut *self.log.lock())
    }
}

impl NoticeLog {
    /// Keeps a notice if it fits, with all its texts. `further`: detail and hint.
    fn keep(
        &mut self,
        owner: &str,
        severity: Option<&str>,
        message: &str,
        further: [Option<&str>; 2],
    ) {
        let further = further.map(|text| text.map(|text| truncate(text, MAX_BYTES_EACH)));
        let bytes = message.len() + further.iter().flatten().map(String::len).sum::<usize>();
        if self.kept.len() >= MAX_NOTICES || self.bytes + bytes > MAX_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        let mut kept = json!({ "severity": severity, "message": message });
        for (key, text) in ["detail", "hint"].into_iter().zip(further) {
            if let Some(text) = text {
                kept[key] = Value::from(text);
            }
        }
        self.kept.push((owner.to_owned(), kept));
    }
}

impl LiveNotices {
    fn record(&mut self, progress: Option<(Option<f64>, Option<&str>)>, notice: &DbError) {
        match progress {
            Some((percent, message)) => {
                self.percent = percent;
                self.message = message.map(|text| truncate(text, MAX_BYTES_LIVE));
            }
            None => {
                if self.last.len() == MAX_LIVE_NOTICES {
                    self.last.pop_front();
                }
                self.last.push_back(json!({
                    "severity": severity(notice), "message": truncate(notice.message(), MAX_BYTES_LIVE),
                }));
            }
        }
        // Until the changes are taken, one notification is enough.
        if !std::mem::replace(&mut self.changed, true) {
            self.notify.notify_one();
        }
    }
}

/// Returns at most `max_bytes` bytes of the text. Replaces NUL, which JSON in PostgreSQL cannot
/// contain.
pub(crate) fn truncate(text: &str, max_bytes: usize) -> String {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut kept = text[..end].replace('\0', "\u{fffd}");
    if end < text.len() {
        kept.push('…');
    }
    kept
}

/// Parses a notice such as `progress: 40% loading` into percentage and message. Returns `None` for
/// other notices.
fn parse_progress(message: &str) -> Option<(Option<f64>, Option<&str>)> {
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
    use super::*;

    #[test]
    fn all_texts_of_the_notices_count_towards_their_size() {
        let (mut log, text) = (NoticeLog::default(), "x".repeat(MAX_BYTES_EACH));
        for _ in 0..MAX_NOTICES {
            log.keep("", None, &"y".repeat(512), [Some(&text), Some(&text)]);
        }
        let texts = log.kept.iter().flat_map(|(_, kept)| kept.as_object().unwrap().values());
        let bytes: usize = texts.filter_map(Value::as_str).map(str::len).sum();
        assert!((MAX_BYTES / 2..=MAX_BYTES).contains(&bytes), "{bytes} bytes");
    }

    #[test]
    fn a_progress_notice_has_a_percentage_or_a_message_or_both() {
        for (message, percent, words) in [
            ("progress: 40% loading", Some(40.0), Some("loading")),
            ("progress: 99.5 %", Some(99.5), None),
            ("progress:100%done", Some(100.0), Some("done")),
            ("progress: 3 of 7 files", None, Some("3 of 7 files")),
            ("progress: 101% of it", None, Some("101% of it")),
            ("progress: 1.2.3%", None, Some("1.2.3%")),
            ("progress: ", None, None),
        ] {
            assert_eq!(parse_progress(message), Some((percent, words)), "{message}");
        }
        assert_eq!(parse_progress("the progress: 40%"), None);
        assert_eq!(parse_progress("Progress 40%"), None);
    }
}
