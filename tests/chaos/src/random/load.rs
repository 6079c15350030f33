//! Those who ask for tasks and runs, and remember what they were answered: in memory, where no crash
//! of the server reaches it.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use checker::{Answer, Op, What};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio_postgres::Row;

use super::item::{Item, Kind};
use super::session::{Asked, Session};

/// Sessions that ask at the same time.
const SESSIONS: usize = 8;
/// Items that wait for one of them.
const WAITING: usize = 100;
/// Of those that were answered last, operators choose.
const REMEMBERED: usize = 2000;

/// Ids that were answered.
#[derive(Default)]
pub(crate) struct Known {
    tasks: Mutex<Vec<i64>>,
    runs: Mutex<Vec<i64>>,
}

impl Known {
    /// One of the last tasks.
    pub(crate) fn task(&self, draw: u32) -> Option<i64> {
        Self::draw(&self.tasks, draw)
    }

    /// One of the last runs.
    pub(crate) fn run(&self, draw: u32) -> Option<i64> {
        Self::draw(&self.runs, draw)
    }

    fn draw(ids: &Mutex<Vec<i64>>, draw: u32) -> Option<i64> {
        let ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &ids[ids.len().saturating_sub(REMEMBERED)..];
        last.get(draw as usize % last.len().max(1)).copied()
    }

    fn learn(&self, op: &Op) {
        for (ids, id) in [(&self.tasks, op.task), (&self.runs, op.run)] {
            if let Some(id) = id {
                ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }
        }
    }
}

/// All of them.
pub(crate) struct Loaders {
    items: Vec<Sender<Item>>,
    sessions: JoinSet<Result<Vec<Op>>>,
    pub(crate) known: Arc<Known>,
}

impl Loaders {
    /// Connects to whoever takes writes.
    pub(crate) fn start(url: &str) -> Self {
        let known = Arc::new(Known::default());
        let (mut items, mut sessions) = (Vec::new(), JoinSet::new());
        for _ in 0..SESSIONS {
            let (sender, receiver) = channel(WAITING);
            items.push(sender);
            sessions.spawn(ask(Session::new(url, "chaos load"), receiver, known.clone()));
        }
        Self { items, sessions, known }
    }

    /// Hands an item to one of them; waits while that one has too many.
    pub(crate) async fn ask(&self, item: Item) -> Result<()> {
        self.items[item.n % self.items.len()].send(item).await.context("a session has given up")
    }

    /// Everything that was asked for, with the answers, once all are there.
    pub(crate) async fn end(&mut self) -> Result<Vec<Op>> {
        self.items.clear();
        let mut ops = Vec::new();
        while let Some(asked) = self.sessions.join_next().await {
            ops.extend(asked??);
        }
        Ok(ops)
    }
}

async fn ask(
    mut session: Session,
    mut items: Receiver<Item>,
    known: Arc<Known>,
) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    while let Some(item) = items.recv().await {
        let call = item.call();
        // With a key it is asked for twice in any case, and until there is an answer: that makes one
        // task.
        let mut left = if item.kind == Kind::Twin { 2 } else { 1 };
        while left > 0 {
            let asked = session.ask(&call).await?;
            if item.kind != Kind::Twin || !matches!(asked, Asked::Unknown) {
                left -= 1;
            }
            let noted = ops.len();
            note(&mut ops, &item, asked)?;
            ops[noted..].iter().for_each(|op| known.learn(op));
        }
    }
    Ok(ops)
}

/// One operation for each task, or for the run.
fn note(ops: &mut Vec<Op>, item: &Item, asked: Asked) -> Result<()> {
    let (answer, rows, said) = match asked {
        Asked::Rows(rows) => (Answer::Ok, rows, None),
        Asked::Refused(message) => (Answer::Refused, Vec::new(), Some(message)),
        Asked::Unknown => (Answer::Unknown, Vec::new(), None),
    };
    let what = if item.kind == Kind::Run { What::StartRun } else { What::Enqueue };
    let op = Op { said, key: item.key(), ..Op::new(what, answer) };
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
