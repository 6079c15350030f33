//! Requests that read, with a database session and the layout of the page that answers.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::insight::viewer::Viewer;

use super::layout::Layout;
use crate::database::Session;
use crate::error::HttpError;
use crate::http::app::App;
use crate::http::request::RequestContext;

/// A request that reads, with a session that has the role of its user.
pub(crate) struct ReadRequest {
    pub(crate) context: RequestContext,
    session: Session,
}

/// The read-only transaction of a page.
pub(crate) struct PageRead<'a> {
    pub(crate) tx: Transaction<'a>,
    pub(crate) viewer: Viewer,
    pub(crate) context: &'a RequestContext,
}

impl ReadRequest {
    /// Begins a read-only transaction.
    pub(crate) async fn transaction(&mut self) -> Result<Transaction<'_>, QueueError> {
        self.session.begin_read().await
    }

    /// Begins the read-only transaction of a page.
    pub(crate) async fn begin(&mut self) -> Result<PageRead<'_>, QueueError> {
        let tx = self.session.begin_read().await?;
        let viewer = self.context.viewer(&tx).await?;
        Ok(PageRead { tx, viewer, context: &self.context })
    }
}

impl PageRead<'_> {
    /// Returns the layout of the page.
    pub(crate) fn layout(&self, title: impl Into<String>) -> Layout {
        Layout::new(self.context, title, self.viewer.clone())
    }
}

impl FromRequestParts<App> for ReadRequest {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let Ok(context) = RequestContext::from_request_parts(parts, app).await;
        let session = context.session().await?;
        Ok(Self { context, session })
    }
}
