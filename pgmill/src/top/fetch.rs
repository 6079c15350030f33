//! The session behind the screen: it looks, it does what was ordered, and it connects again.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use queue::{TaskId, WorkerId, bulk, operate};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

use crate::act;
use crate::args::Global;
use crate::failure::Failure;
use crate::session::Session;

use super::shot::{self, Shot};

/// What somebody wants done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// Look again at once.
    Look,
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
pub(super) struct Sight {
    /// The last look; none before the first.
    pub(super) shot: Option<Rc<Shot>>,
    /// The task that is looked at, and what is known of it.
    pub(super) task: Option<(TaskId, String)>,
    /// Why there is nothing newer.
    pub(super) trouble: Option<String>,
    /// What came of the last act, and its number.
    pub(super) answer: Option<(u64, String)>,
}

/// Looks at each interval and after each order, for ever: whoever shows it ends it.
pub(super) async fn serve(
    session: Session,
    global: &Global,
    (interval, mut ordered, sights): (Duration, mpsc::Receiver<Order>, watch::Sender<Sight>),
) -> Infallible {
    let mut session = Some(session);
    let mut open = None;
    let mut acts = 0;
    loop {
        let began = Instant::now();
        let looked = match &mut session {
            Some(session) if !session.client.is_closed() => {
                look(&session.client, open, &sights).await
            }
            lost => match Session::open_checked(global).await {
                Ok(again) => look(&lost.insert(again).client, open, &sights).await,
                Err(failure) => Err(failure),
            },
        };
        sights.send_modify(|sight| sight.trouble = looked.err().map(|failure| failure.to_string()));
        let order = tokio::select! {
            () = sleep_until(began + interval) => None,
            order = ordered.recv() => order,
        };
        match order {
            None | Some(Order::Look) => {}
            Some(Order::Open(id)) => open = Some(id),
            Some(Order::Close) => {
                open = None;
                sights.send_modify(|sight| sight.task = None);
            }
            Some(act) => {
                // Without a session the line below the screen says so already.
                let Some(session) = &session else { continue };
                let done = carry_out(&session.client, &act).await;
                let told = done.unwrap_or_else(|failure| {
                    failure.lacking(Some("mill_operator"), session.user()).told()
                });
                acts += 1;
                sights.send_modify(|sight| sight.answer = Some((acts, told)));
            }
        }
    }
}

async fn look(
    client: &Client,
    open: Option<TaskId>,
    sights: &watch::Sender<Sight>,
) -> Result<(), Failure> {
    if let Some(id) = open {
        let text = shot::task(client, id).await?;
        sights.send_modify(|sight| sight.task = Some((id, text)));
    }
    let last = sights.borrow().shot.clone();
    let shot = Shot::take(client, last.as_deref()).await?;
    sights.send_modify(|sight| sight.shot = Some(Rc::new(shot)));
    Ok(())
}

/// Does it, and says what came of it.
async fn carry_out(client: &Client, order: &Order) -> Result<String, Failure> {
    Ok(match order {
        Order::Look | Order::Open(_) | Order::Close => String::new(),
        Order::Cancel(id) => {
            let answers = bulk::cancel_chunk(client, &[*id], None).await?;
            answers.first().map(act::told).unwrap_or_default()
        }
        Order::Pause(queue) => {
            operate::pause(client, queue).await?;
            format!("queue {queue} is paused; running tasks go on")
        }
        Order::Resume(queue) => {
            operate::resume(client, queue).await?;
            format!("queue {queue} is served again")
        }
        Order::Drain(id, draining) => {
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
