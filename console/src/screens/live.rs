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
use futures_util::stream;
use queue::TaskId;
use tokio::sync::OwnedSemaphorePermit;

use super::Shown;
use super::task::{Now, known, no_such_task, task_id};
use crate::app::App;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// Open at once; who comes later asks for the page again and again, as without streams.
pub(crate) const MOST_STREAMS: usize = 32;

/// Between looks at the task.
const PACE: Duration = Duration::from_secs(1);

/// Then the browser asks for another stream, and is let in or not.
const LONGEST: Duration = Duration::from_secs(600);

/// Until the browser asks again.
const AGAIN: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/tasks/{id}/events", get(events))
}

struct Watch {
    visit: Visit,
    id: TaskId,
    begun: Instant,
    /// What was sent last.
    sent: String,
    /// Attempts that had ended by then.
    attempts: Option<usize>,
    over: bool,
    _seat: OwnedSemaphorePermit,
}

/// What there is to say.
enum News {
    Nothing,
    Now(String),
    Changed,
    End,
}

async fn events(visit: Visit, Path(id): Path<String>) -> Shown {
    let id = task_id(&id)?;
    let seat = Arc::clone(&visit.app.streams).try_acquire_owned().map_err(|_| {
        Trouble::new(StatusCode::SERVICE_UNAVAILABLE, "too many pages watch a task at once")
            .hint("the page asks for itself again every three seconds")
    })?;
    let mut watch = Watch {
        visit,
        id,
        begun: Instant::now(),
        sent: String::new(),
        attempts: None,
        over: false,
        _seat: seat,
    };
    // What is not there, or may not be looked at, is an answer and no stream.
    let first = watch.look().await?;
    let events = stream::unfold((watch, Some(first)), |(mut watch, first)| async move {
        let news = match first {
            Some(news) => news,
            None => watch.next().await?,
        };
        let event = watch.event(news);
        Some((Ok::<_, Infallible>(event), (watch, None)))
    });
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(events).keep_alive(KeepAlive::default())).into_response())
}

impl Watch {
    /// What is new, once something is; `None`: it is over.
    async fn next(&mut self) -> Option<News> {
        let app = Arc::clone(&self.visit.app);
        while !self.over && self.begun.elapsed() < LONGEST {
            tokio::select! {
                () = app.ending.cancelled() => return None,
                () = tokio::time::sleep(PACE) => {}
            }
            match self.look().await {
                Ok(News::Nothing) => {}
                Ok(news) => return Some(news),
                // Told to who asks for the page.
                Err(_) => return None,
            }
        }
        None
    }

    async fn look(&mut self) -> Result<News, Trouble> {
        let mut session = self.visit.session().await?;
        let look = session.look().await?;
        let viewer = self.visit.viewer(&look).await?;
        let known = known(&look, self.id).await?.ok_or_else(|| no_such_task(self.id))?;
        if known.task.state.is_none() {
            self.over = true;
            return Ok(News::End);
        }
        let ended = known.attempts.len();
        if self.attempts.replace(ended).is_some_and(|before| before != ended) {
            return Ok(News::Changed);
        }
        let html = Now::new(&known, &self.visit.app.base, viewer.now).render()?;
        if html == self.sent {
            return Ok(News::Nothing);
        }
        self.sent.clone_from(&html);
        Ok(News::Now(html))
    }

    fn event(&self, news: News) -> Event {
        match news {
            News::Nothing => Event::default().comment("nothing new"),
            // A line of an event ends at a carriage return, too.
            News::Now(html) => Event::default().event("now").data(html.replace('\r', " ")),
            News::Changed => Event::default().event("changed").data("attempts"),
            News::End => Event::default().event("end").data("ended"),
        }
        .retry(AGAIN)
    }
}
