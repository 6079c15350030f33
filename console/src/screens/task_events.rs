//! What a task does as it goes on: the part of its page that changes, sent by the server as it
//! changes (server-sent events).
//!
//! Invariant: a stream holds no session of the database between its looks, and none outlives the server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures_util::stream::unfold;
use queue::TaskId;
use tokio::sync::OwnedSemaphorePermit;

use super::HandlerResult;
use super::task::{TaskStatusPanel, no_such_task, read_status, task_id};
use crate::app::App;
use crate::http_error::HttpError;
use crate::request::RequestContext;

/// Open at once; who comes later asks for the page again and again, as without streams.
pub(crate) const MAX_STREAMS: usize = 32;

/// Between looks at the task.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Then the browser asks for another stream, and is let in or not.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(600);

/// Until the browser asks again.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/events", get(events))
}

struct TaskStream {
    context: RequestContext,
    id: TaskId,
    begun: Instant,
    /// What was sent last.
    sent: String,
    /// Attempts that had ended by then.
    attempts: Option<usize>,
    over: bool,
    _permit: OwnedSemaphorePermit,
}

/// What there is to say.
enum StreamEvent {
    Unchanged,
    Status(String),
    AttemptEnded,
    TaskEnded,
}

async fn events(context: RequestContext, Path(id): Path<String>) -> HandlerResult {
    let id = task_id(&id)?;
    let permit = Arc::clone(&context.app.event_streams).try_acquire_owned().map_err(|_| {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "too many pages watch a task at once")
            .hint("the page asks for itself again every three seconds")
    })?;
    let mut stream = TaskStream {
        context,
        id,
        begun: Instant::now(),
        sent: String::new(),
        attempts: None,
        over: false,
        _permit: permit,
    };
    // What is not there, or may not be looked at, is an answer and no stream.
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
    /// What is new, once something is; `None`: it is over.
    async fn next(&mut self) -> Option<StreamEvent> {
        let app = Arc::clone(&self.context.app);
        while !self.over && self.begun.elapsed() < MAX_STREAM_DURATION {
            tokio::select! {
                () = app.shutdown.cancelled() => return None,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            match self.poll().await {
                Ok(StreamEvent::Unchanged) => {}
                Ok(news) => return Some(news),
                // Told to who asks for the page.
                Err(_) => return None,
            }
        }
        None
    }

    async fn poll(&mut self) -> Result<StreamEvent, HttpError> {
        let mut session = self.context.session().await?;
        let tx = session.begin_read().await?;
        let viewer = self.context.viewer(&tx).await?;
        let known = read_status(&tx, self.id).await?.ok_or_else(|| no_such_task(self.id))?;
        if known.task.state.is_none() {
            self.over = true;
            return Ok(StreamEvent::TaskEnded);
        }
        let ended = known.attempts.len();
        if self.attempts.replace(ended).is_some_and(|before| before != ended) {
            return Ok(StreamEvent::AttemptEnded);
        }
        let html = TaskStatusPanel::new(&known, &self.context.app.base, viewer.now).render()?;
        if html == self.sent {
            return Ok(StreamEvent::Unchanged);
        }
        self.sent.clone_from(&html);
        Ok(StreamEvent::Status(html))
    }

    fn event(&self, news: StreamEvent) -> Event {
        match news {
            StreamEvent::Unchanged => Event::default().comment("nothing new"),
            // A line of an event ends at a carriage return, too.
            StreamEvent::Status(html) => {
                Event::default().event("status").data(html.replace('\r', " "))
            }
            StreamEvent::AttemptEnded => Event::default().event("changed").data("attempts"),
            StreamEvent::TaskEnded => Event::default().event("end").data("ended"),
        }
        .retry(RECONNECT_DELAY)
    }
}
