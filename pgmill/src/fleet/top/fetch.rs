//! The session of the screen: refreshes the snapshot, executes actions, and reconnects.

use cli::Failure;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use conninfo::Client;
use queue::{TaskId, WorkerId, bulk, operate};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::args::Global;
use crate::session::Session;
use crate::tasks::actions;

use super::snapshot::{self, Snapshot};

/// A request of the user.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Refresh now.
    Refresh,
    /// Show this task until [`Self::Close`].
    Open(TaskId),
    /// Show the fleet again.
    Close,
    Cancel(TaskId),
    Pause(String),
    Resume(String),
    /// Start (`true`) or end (`false`) the drain of a worker.
    Drain(WorkerId, bool),
}

/// The data to show.
#[derive(Default)]
pub(super) struct View {
    /// The last snapshot; `None` before the first refresh.
    pub(super) snapshot: Option<Rc<Snapshot>>,
    /// The open task and its text.
    pub(super) task: Option<(TaskId, String)>,
    /// The error of the last refresh.
    pub(super) error: Option<String>,
    /// The number and the result of the last action.
    pub(super) answer: Option<(u64, String)>,
}

/// Refreshes at each interval and after each action. Never returns: the caller drops the future.
pub(super) async fn serve(
    session: Session,
    global: &Global,
    (interval, mut ordered, views): (Duration, mpsc::Receiver<Action>, watch::Sender<View>),
) -> Infallible {
    let mut session = Some(session);
    let mut open = None;
    let mut acts = 0;
    loop {
        let began = Instant::now();
        let refreshed = match &mut session {
            Some(session) if !session.client.is_closed() => {
                refresh(&session.client, open, &views).await
            }
            lost => match Session::open_checked(global).await {
                Ok(again) => refresh(&lost.insert(again).client, open, &views).await,
                Err(failure) => Err(failure),
            },
        };
        views.send_modify(|view| view.error = refreshed.err().map(|failure| failure.to_string()));
        let action = tokio::select! {
            () = sleep_until(began + interval) => None,
            action = ordered.recv() => action,
        };
        match action {
            None | Some(Action::Refresh) => {}
            Some(Action::Open(id)) => open = Some(id),
            Some(Action::Close) => {
                open = None;
                views.send_modify(|view| view.task = None);
            }
            Some(act) => {
                // Without a session, ignore the action: the footer already shows the error.
                let Some(session) = &session else { continue };
                let done = execute(&session.client, &act).await;
                let message = done.unwrap_or_else(|failure| {
                    failure.with_missing_role(Some("mill_operator"), session.user()).summary()
                });
                acts += 1;
                views.send_modify(|view| view.answer = Some((acts, message)));
            }
        }
    }
}

async fn refresh(
    client: &Client,
    open: Option<TaskId>,
    views: &watch::Sender<View>,
) -> Result<(), Failure> {
    if let Some(id) = open {
        let text = snapshot::task(client, id).await?;
        views.send_modify(|view| view.task = Some((id, text)));
    }
    let last = views.borrow().snapshot.clone();
    let snapshot = Snapshot::take(client, last.as_deref()).await?;
    views.send_modify(|view| view.snapshot = Some(Rc::new(snapshot)));
    Ok(())
}

/// Executes an action, and returns its result as text.
async fn execute(client: &Client, action: &Action) -> Result<String, Failure> {
    Ok(match action {
        Action::Refresh | Action::Open(_) | Action::Close => String::new(),
        Action::Cancel(id) => {
            let answers = bulk::cancel_chunk(client, &[*id], None).await?;
            answers.first().map(actions::result_line).unwrap_or_default()
        }
        Action::Pause(queue) => {
            operate::pause(client, queue).await?;
            format!("queue {queue} paused; running tasks continue")
        }
        Action::Resume(queue) => {
            operate::resume(client, queue).await?;
            format!("queue {queue} resumed")
        }
        Action::Drain(id, draining) => {
            let found = operate::drain(client, *id, *draining).await?;
            let what = match (found, draining) {
                (false, _) => "is no longer registered",
                (true, true) => "is draining; its running tasks continue",
                (true, false) => "claims again",
            };
            format!("worker {} {what}", &id.to_string()[..8])
        }
    })
}
