//! Server-sent events of a task: pushes the status panel of the task page whenever it changes, and
//! reports each poll that found no change, so that the page knows the age of its data.
//!
//! Invariant: a stream holds no database session between polls, and no stream outlives the server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::status::{TaskStatusPanel, read_status, task_id};
use crate::options::AccessRules;
use crate::screens::prelude::*;

/// Maximum number of open streams. A page that is refused a stream polls instead.
pub(crate) const MAX_STREAMS: usize = 32;

/// Interval between polls of the task.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum duration of a stream. The browser then reconnects and may be refused.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(600);

/// Delay after which the browser reconnects.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/events", get(events))
}

struct TaskStream {
    context: RequestContext,
    id: TaskId,
    started: Instant,
    /// The last status sent.
    sent: String,
    /// Number of finished attempts at the last poll.
    attempts: Option<usize>,
    over: bool,
    rules: watch::Receiver<Arc<AccessRules>>,
    _permit: OwnedSemaphorePermit,
}

/// The result of a poll.
enum StreamEvent {
    Unchanged,
    Status(String),
    AttemptEnded,
    TaskEnded,
}

async fn events(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let permit = Arc::clone(&context.app.event_streams).try_acquire_owned().map_err(|_| {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "too many event streams are open")
            .hint("the page refreshes every three seconds instead")
    })?;
    let rules = context.app.frame.access.subscribe_rules();
    let mut stream = TaskStream {
        context,
        id,
        started: Instant::now(),
        sent: String::new(),
        attempts: None,
        over: false,
        rules,
        _permit: permit,
    };
    // Errors such as a missing task are returned as a response before the stream starts.
    let first = stream.poll().await?;
    let events = unfold((stream, Some(first)), |(mut stream, first)| async move {
        let news = match first {
            Some(news) => news,
            None => stream.next().await?,
        };
        let event = stream.event(news);
        Some((Ok::<_, Infallible>(event), (stream, None)))
    });
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(events).keep_alive(KeepAlive::default())).into_response())
}

impl TaskStream {
    /// Waits for the next poll and returns its result; `None` at the end of the stream.
    async fn next(&mut self) -> Option<StreamEvent> {
        if self.over || self.started.elapsed() >= MAX_STREAM_DURATION {
            return None;
        }
        let app = Arc::clone(&self.context.app);
        tokio::select! {
            () = app.shutdown.cancelled() => return None,
            // The browser reconnects, with the present rights of its user.
            _ = self.rules.changed() => return None,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        // An error ends the stream. The next request for the page reports the error.
        self.poll().await.ok()
    }

    async fn poll(&mut self) -> Result<StreamEvent, HttpError> {
        let mut session = self.context.session().await?;
        let tx = session.begin_read().await?;
        let viewer = self.context.viewer(&tx).await?;
        let known = read_status(&tx, self.id).await?;
        if known.task.state.is_none() {
            self.over = true;
            return Ok(StreamEvent::TaskEnded);
        }
        let ended = known.attempts.len();
        if self.attempts.replace(ended).is_some_and(|before| before != ended) {
            return Ok(StreamEvent::AttemptEnded);
        }
        let html =
            TaskStatusPanel::new(&known, &self.context.app.frame.base, viewer.now).render()?;
        if html == self.sent {
            return Ok(StreamEvent::Unchanged);
        }
        self.sent.clone_from(&html);
        Ok(StreamEvent::Status(html))
    }

    fn event(&self, news: StreamEvent) -> Event {
        match news {
            // A browser dispatches no event without data.
            StreamEvent::Unchanged => Event::default().event("unchanged").data("-"),
            // A carriage return would end a line of the event.
            StreamEvent::Status(html) => {
                Event::default().event("status").data(html.replace('\r', " "))
            }
            StreamEvent::AttemptEnded => Event::default().event("changed").data("attempts"),
            StreamEvent::TaskEnded => Event::default().event("end").data("ended"),
        }
        .retry(RECONNECT_DELAY)
    }
}
