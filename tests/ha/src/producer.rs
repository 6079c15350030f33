//! Enqueues tasks at a steady rate. Each request is repeated until it is answered.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use checker::{Answer, Op, OpKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::session::{Reply, Session};

/// Number of concurrent sessions.
const SESSIONS: usize = 4;
/// Time between two requests of a session: 120 requests per second in all sessions together.
const PERIOD: Duration = Duration::from_micros(33_333);
/// Time limit for the answer to one request: longer than every fault.
const LIMIT: Duration = Duration::from_secs(120);

/// All sessions that enqueue.
pub(crate) struct Producer {
    stop: watch::Sender<bool>,
    sessions: JoinSet<Result<Vec<Op>>>,
}

impl Producer {
    /// Connects to the server that accepts writes, and starts to enqueue.
    pub(crate) fn start(url: &str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut sessions = JoinSet::new();
        for number in 0..SESSIONS {
            sessions.spawn(enqueue(number, Session::new(url), stopped.clone()));
        }
        Self { stop, sessions }
    }

    /// Stops, and returns all requests once the last one is answered.
    ///
    /// # Errors
    /// Returns an error if a request was refused or not answered.
    pub(crate) async fn end(mut self) -> Result<Vec<Op>> {
        self.stop.send_replace(true);
        let mut ops = Vec::new();
        while let Some(ended) = self.sessions.join_next().await {
            ops.extend(ended??);
        }
        Ok(ops)
    }
}

async fn enqueue(
    number: usize,
    mut session: Session,
    stopped: watch::Receiver<bool>,
) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    let mut ticks = interval(PERIOD);
    // After a pause the rate is the same as before.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut request = 0_u64;
    while !*stopped.borrow() {
        ticks.tick().await;
        request += 1;
        let name = format!("{number}.{request}");
        let call = format!(
            "SELECT mill.enqueue('SELECT chaos.work()', name => '{name}', key => '{name}')"
        );
        let begun = Instant::now();
        loop {
            ensure!(begun.elapsed() < LIMIT, "the request to enqueue {name} is not answered");
            let op = |answer, task| Op {
                name: Some(name.clone()),
                key: Some(name.clone()),
                task,
                ..Op::new(OpKind::Enqueue, answer)
            };
            match session.query(&call).await? {
                Reply::Rows(rows) => {
                    let id = rows.first().context("no id")?.try_get(0)?;
                    ops.push(op(Answer::Ok, Some(id)));
                    break;
                }
                Reply::Unknown => ops.push(op(Answer::Unknown, None)),
                Reply::NotExecuted => {}
            }
        }
    }
    Ok(ops)
}
