//! Key bindings and selection, without a terminal and a database.

use crossterm::event::KeyCode;
use queue::{TaskId, WorkerId};

use super::fetch::{Action, View};
use super::snapshot::Snapshot;

/// A list on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// Running tasks, the default.
    #[default]
    Running,
    Queues,
    Workers,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Queues, Self::Running, Self::Workers];

    fn neighbour(self, step: usize) -> Self {
        let at = Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Self::ALL[(at + step) % Self::ALL.len()]
    }

    /// Returns the subjects of the rows.
    pub(super) fn rows(self, snapshot: &Snapshot) -> Vec<Row> {
        let status = &snapshot.status;
        match self {
            Self::Queues => status.queues.iter().map(|it| Row::Queue(it.queue.clone())).collect(),
            Self::Running => status.running.iter().map(|task| Row::Task(task.id)).collect(),
            Self::Workers => status.workers.iter().map(|it| Row::Worker(it.id)).collect(),
        }
    }
}

/// The subject of the selected row. Its position would not identify the row, because rows come and
/// go.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    Queue(String),
    Task(TaskId),
    Worker(WorkerId),
}

/// The effect of a key.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Stay,
    Leave,
    Action(Action),
}

/// State of the screen in addition to the data.
#[derive(Default)]
pub(super) struct State {
    pub(super) pane: Pane,
    /// Position of the selected row in its list.
    pub(super) at: usize,
    row: Option<Row>,
    /// An action that waits for confirmation, with its question.
    pub(super) question: Option<(String, Action)>,
    pub(super) help: bool,
    /// Number of the last result that the user has read: any key removes a result from the screen.
    pub(super) read: u64,
    /// Number of lines of the open task that are scrolled off the top.
    pub(super) scrolled: u16,
}

impl State {
    /// Restores the selection after a refresh: to the same row, or else to the same position.
    pub(super) fn restore_selection(&mut self, view: &View) {
        let Some(snapshot) = &view.snapshot else { return };
        let rows = self.pane.rows(snapshot);
        let found = rows.iter().position(|row| self.row.as_ref() == Some(row));
        self.at = found.unwrap_or(self.at).min(rows.len().saturating_sub(1));
        self.row = rows.get(self.at).cloned();
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyCode, view: &View) -> Step {
        self.read = view.answer.as_ref().map_or(0, |(number, _)| *number);
        if let Some((_, action)) = self.question.take() {
            // Any key other than y aborts.
            return if key == KeyCode::Char('y') { Step::Action(action) } else { Step::Stay };
        }
        if self.help {
            self.help = false;
            return Step::Stay;
        }
        match key {
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('r') => return Step::Action(Action::Refresh),
            KeyCode::Char('c') => self.question = self.cancel(view),
            _ if view.task.is_some() => return self.key_in_task(key),
            KeyCode::Char('q') | KeyCode::Esc => return Step::Leave,
            KeyCode::Tab | KeyCode::Right => self.switch_pane(self.pane.neighbour(1)),
            KeyCode::BackTab | KeyCode::Left => self.switch_pane(self.pane.neighbour(2)),
            KeyCode::Enter => {
                if let Some(Row::Task(id)) = self.row {
                    self.scrolled = 0;
                    return Step::Action(Action::Open(id));
                }
            }
            KeyCode::Char('p') => self.question = self.pause(view),
            KeyCode::Char('d') => self.question = self.drain(view),
            _ => self.move_row(key, view),
        }
        Step::Stay
    }

    fn key_in_task(&mut self, key: KeyCode) -> Step {
        match key {
            KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter | KeyCode::Backspace => {
                return Step::Action(Action::Close);
            }
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(10),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        Step::Stay
    }

    fn switch_pane(&mut self, pane: Pane) {
        (self.pane, self.at, self.row) = (pane, 0, None);
    }

    fn move_row(&mut self, key: KeyCode, view: &View) {
        let Some(snapshot) = &view.snapshot else { return };
        let rows = self.pane.rows(snapshot);
        let last = rows.len().saturating_sub(1);
        self.at = match key {
            KeyCode::Down | KeyCode::Char('j') => self.at + 1,
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::PageDown => self.at + 10,
            KeyCode::PageUp => self.at.saturating_sub(10),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => return,
        }
        .min(last);
        self.row = rows.get(self.at).cloned();
    }

    /// Returns the question and the action that cancel the open task, or else the selected task.
    fn cancel(&self, view: &View) -> Option<(String, Action)> {
        let id = match (&view.task, &self.row) {
            (Some((id, _)), _) | (None, Some(Row::Task(id))) => *id,
            _ => return None,
        };
        Some((format!("cancel task {id}?"), Action::Cancel(id)))
    }

    fn pause(&self, view: &View) -> Option<(String, Action)> {
        let Some(Row::Queue(name)) = &self.row else { return None };
        let queue =
            view.snapshot.as_ref()?.status.queues.iter().find(|queue| queue.queue == *name)?;
        Some(if queue.paused {
            (format!("resume queue {name}?"), Action::Resume(name.clone()))
        } else {
            (format!("pause queue {name}?"), Action::Pause(name.clone()))
        })
    }

    fn drain(&self, view: &View) -> Option<(String, Action)> {
        let Some(Row::Worker(id)) = &self.row else { return None };
        let worker =
            view.snapshot.as_ref()?.status.workers.iter().find(|worker| worker.id == *id)?;
        let what = if worker.draining { "end the drain of worker" } else { "drain worker" };
        let question = format!("{what} {}?", worker.label());
        Some((question, Action::Drain(*id, !worker.draining)))
    }
}
