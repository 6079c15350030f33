//! Enqueues tasks and starts runs, and records the replies in memory, where no server crash can
//! lose them.

use std::sync::Arc;

use anyhow::{Context, Result};
use checker::{Answer, Op, OpKind};
use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio_postgres::Row;

use super::work_item::{Kind, WorkItem};
use crate::session::{Reply, Session};

/// Number of concurrent sessions.
const SESSIONS: usize = 8;
/// Maximum number of items that wait for one session.
const WAITING: usize = 100;
/// Number of acknowledged ids, the latest ones, among which operators choose.
const REMEMBERED: usize = 2000;

/// Acknowledged ids.
#[derive(Default)]
pub(crate) struct KnownIds {
    tasks: Mutex<Vec<i64>>,
    runs: Mutex<Vec<i64>>,
}

impl KnownIds {
    /// Returns one of the last tasks.
    pub(crate) fn task(&self, draw: u32) -> Option<i64> {
        Self::draw(&self.tasks, draw)
    }

    /// Returns one of the last runs.
    pub(crate) fn run(&self, draw: u32) -> Option<i64> {
        Self::draw(&self.runs, draw)
    }

    fn draw(ids: &Mutex<Vec<i64>>, draw: u32) -> Option<i64> {
        let ids = ids.lock();
        let last = &ids[ids.len().saturating_sub(REMEMBERED)..];
        last.get(draw as usize % last.len().max(1)).copied()
    }

    fn remember(&self, op: &Op) {
        for (ids, id) in [(&self.tasks, op.task), (&self.runs, op.run)] {
            if let Some(id) = id {
                ids.lock().push(id);
            }
        }
    }
}

/// All sessions of the load.
pub(crate) struct LoadGenerator {
    items: Vec<Sender<WorkItem>>,
    sessions: JoinSet<Result<Vec<Op>>>,
    pub(crate) known: Arc<KnownIds>,
}

impl LoadGenerator {
    /// Connects to the server that accepts writes.
    pub(crate) fn start(url: &str) -> Self {
        let known = Arc::new(KnownIds::default());
        let (mut items, mut sessions) = (Vec::new(), JoinSet::new());
        for _ in 0..SESSIONS {
            let (sender, receiver) = channel(WAITING);
            items.push(sender);
            sessions.spawn(run_session(Session::new(url, "chaos load"), receiver, known.clone()));
        }
        Self { items, sessions, known }
    }

    /// Passes an item to one of the sessions; waits while its queue is full.
    pub(crate) async fn submit(&self, item: WorkItem) -> Result<()> {
        self.items[item.n % self.items.len()]
            .send(item)
            .await
            .context("a session of the load generator has ended, because no server was available")
    }

    /// Returns all operations with their replies, once all replies have arrived.
    pub(crate) async fn end(&mut self) -> Result<Vec<Op>> {
        self.items.clear();
        let mut ops = Vec::new();
        while let Some(asked) = self.sessions.join_next().await {
            ops.extend(asked??);
        }
        Ok(ops)
    }
}

async fn run_session(
    mut session: Session,
    mut items: Receiver<WorkItem>,
    known: Arc<KnownIds>,
) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    while let Some(item) = items.recv().await {
        let call = item.call();
        // An item with a deduplication key is enqueued until two replies have arrived, and there is
        // only one task at a time.
        let mut left = if item.kind == Kind::Duplicate { 2 } else { 1 };
        while left > 0 {
            let reply = session.ask(&call).await?;
            if item.kind != Kind::Duplicate || !matches!(reply, Reply::Unknown) {
                left -= 1;
            }
            let noted = ops.len();
            note(&mut ops, &item, reply)?;
            ops[noted..].iter().for_each(|op| known.remember(op));
        }
    }
    Ok(ops)
}

/// Records one operation per task, or one for the run.
fn note(ops: &mut Vec<Op>, item: &WorkItem, reply: Reply) -> Result<()> {
    let (answer, rows, reply) = match reply {
        Reply::Rows(rows) => (Answer::Ok, rows, None),
        Reply::Refused(message) => (Answer::Refused, Vec::new(), Some(message)),
        Reply::Unknown => (Answer::Unknown, Vec::new(), None),
    };
    let what = if item.kind == Kind::Run { OpKind::StartRun } else { OpKind::Enqueue };
    let op = Op { reply, key: item.key(), ..Op::new(what, answer) };
    let id = |row: Option<&Row>| row.map(|row| row.try_get(0)).transpose();
    match item.kind {
        Kind::Many(count) => {
            for i in 0..count {
                let name = Some(format!("{}.{}", item.name(), i + 1));
                ops.push(Op { name, task: id(rows.get(i))?, ..op.clone() });
            }
        }
        Kind::Run => {
            ops.push(Op { name: Some(item.name()), run: id(rows.first())?, ..op });
        }
        _ => ops.push(Op { name: Some(item.name()), task: id(rows.first())?, ..op }),
    }
    Ok(())
}
