//! The session behind the screen: it looks, it does what was ordered, and it connects again.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use queue::{TaskId, WorkerId, bulk, operate};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

use crate::args::Global;
use crate::failure::Failure;
use crate::session::Session;
use crate::task_actions;

use super::snapshot::{self, Snapshot};

/// What somebody wants done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Look again at once.
    Refresh,
    /// Show this task until told otherwise.
    Open(TaskId),
    /// Show the fleet.
    Close,
    Cancel(TaskId),
    Pause(String),
    Resume(String),
    /// Stop its claims, or let it claim again.
    Drain(WorkerId, bool),
}

/// What is known now.
#[derive(Default)]
pub(super) struct View {
    /// The last look; none before the first.
    pub(super) snapshot: Option<Rc<Snapshot>>,
    /// The task that is looked at, and what is known of it.
    pub(super) task: Option<(TaskId, String)>,
    /// Why there is nothing newer.
    pub(super) error: Option<String>,
    /// What came of the last act, and its number.
    pub(super) answer: Option<(u64, String)>,
}

/// Looks at each interval and after each action, for ever: whoever shows it ends it.
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
                // Without a session the line below the screen says so already.
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

/// Does it, and says what came of it.
async fn execute(client: &Client, action: &Action) -> Result<String, Failure> {
    Ok(match action {
        Action::Refresh | Action::Open(_) | Action::Close => String::new(),
        Action::Cancel(id) => {
            let answers = bulk::cancel_chunk(client, &[*id], None).await?;
            answers.first().map(task_actions::result_line).unwrap_or_default()
        }
        Action::Pause(queue) => {
            operate::pause(client, queue).await?;
            format!("queue {queue} is paused; running tasks go on")
        }
        Action::Resume(queue) => {
            operate::resume(client, queue).await?;
            format!("queue {queue} is served again")
        }
        Action::Drain(id, draining) => {
            let found = operate::drain(client, *id, *draining).await?;
            let what = match (found, draining) {
                (false, _) => "has left meanwhile",
                (true, true) => "claims no more; it runs its tasks to the end",
                (true, false) => "claims again",
            };
            format!("worker {} {what}", &id.to_string()[..8])
        }
    })
}
