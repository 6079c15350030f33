//! Bodies of requests, with a time limit, and bodies of responses. Both record the activity of their
//! connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::activity::{Activity, CLIENT_TIMEOUT};
use crate::refusal::{Refusal, RefusalObserver};

/// Body of a request. Fails if it is not complete in time.
pub(crate) struct RequestBody {
    body: Incoming,
    activity: Arc<Activity>,
    observer: RefusalObserver,
    /// Begins with the first attempt to read.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, activity: Arc<Activity>, observer: RefusalObserver) -> Self {
        if body.is_end_stream() {
            activity.request_complete();
        }
        Self { body, activity, observer, deadline: None }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if frame.is_none() || self.body.is_end_stream() {
                self.activity.request_complete();
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(CLIENT_TIMEOUT)));
        if deadline.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        (self.observer)(Refusal::Timeout);
        let message = format!("it was not complete after {} s", CLIENT_TIMEOUT.as_secs());
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, message).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Body of a response. The response is complete when hyper drops the body.
pub(crate) struct ResponseBody {
    body: Body,
    activity: Arc<Activity>,
}

impl ResponseBody {
    pub(crate) fn new(body: Body, activity: Arc<Activity>) -> Self {
        Self { body, activity }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.activity.response_complete();
    }
}
