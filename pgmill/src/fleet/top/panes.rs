//! Draws the three lists: queues, running tasks, workers.

use jiff::Timestamp;
use queue::queue_status::QueueStatus;
use queue::task_queries::Running;
use queue::workers::{Worker, worker_label};
use ratatui::Frame;
use ratatui::layout::Constraint::{self, Fill, Length};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Borders, Cell, Row, Table, TableState};
use terminal::visible;

use crate::fleet::workers;
use crate::output::Tone;
use crate::output::format::{activity, span};

use super::paint::Paint;
use super::snapshot::Snapshot;
use super::state::Pane;

/// Draws one list, with the selected row highlighted.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    (pane, snapshot, selected): (Pane, &Snapshot, Option<usize>),
    paint: Paint,
) {
    let status = &snapshot.status;
    let (title, headings, widths, rows): (_, &[&'static str], &[Constraint], Vec<Row<'_>>) =
        match pane {
            Pane::Queues => {
                let rows = status.queues.iter().map(|it| queue(it, paint)).collect();
                ("queues", &QUEUE, &QUEUE_WIDTHS, rows)
            }
            Pane::Running => {
                let rows = status.running.iter().map(|it| running(it, status.now, paint)).collect();
                ("running tasks", &RUNNING, &RUNNING_WIDTHS, rows)
            }
            Pane::Workers => {
                let rows = status.workers.iter().map(|it| worker_row(it, paint)).collect();
                ("workers", &WORKER, &WORKER_WIDTHS, rows)
            }
        };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let emphasis = if selected.is_some() { bold } else { Style::new() };
    let title = match (rows.len(), selected.is_some()) {
        (count, true) => format!("[{title}: {count}]"),
        (count, false) => format!(" {title}: {count} "),
    };
    let block = Block::new().borders(Borders::TOP).title(title).title_style(emphasis);
    let table = Table::new(rows, widths.to_vec())
        .header(Row::new(headings.to_vec()))
        .block(block)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

const QUEUE: [&str; 7] = ["QUEUE", "PENDING", "OLDEST", "RUNNING", "SCHEDULED", "BLOCKED", ""];
const QUEUE_WIDTHS: [Constraint; 7] =
    [Fill(1), Length(9), Length(8), Length(9), Length(9), Length(9), Length(10)];

fn queue(it: &QueueStatus, paint: Paint) -> Row<'static> {
    let count = |count: i64| if count == 0 { String::new() } else { count.to_string() };
    let (state, tone) = match (it.paused, it.max_running) {
        (true, _) => ("paused".to_owned(), Tone::Warning),
        (false, _) if it.held_back.is_some() => ("held back".to_owned(), Tone::Warning),
        (false, Some(limit)) => (format!("limit {limit}"), Tone::Plain),
        (false, None) => (String::new(), Tone::Plain),
    };
    Row::new([
        Cell::from(visible(&it.queue)),
        Cell::from(count(it.pending)),
        Cell::from(it.oldest_pending_seconds.map(span).unwrap_or_default()),
        Cell::from(count(it.running)),
        Cell::from(count(it.scheduled)),
        Cell::from(count(it.blocked)),
        Cell::from(state).style(paint.style(tone)),
    ])
}

const RUNNING: [&str; 5] = ["TASK", "NAME", "DURATION", "ACTIVITY", "WORKER"];
const RUNNING_WIDTHS: [Constraint; 5] = [Length(10), Fill(2), Length(8), Fill(3), Fill(2)];

fn running(it: &Running, now: Timestamp, paint: Paint) -> Row<'static> {
    let (activity, tone) = activity(it);
    let name = it.name.as_deref().unwrap_or(&it.queue);
    let worker = worker_label(it.host.as_deref(), it.worker_pid, Some(it.worker_id));
    Row::new([
        Cell::from(it.id.to_string()),
        Cell::from(visible(name)),
        Cell::from(span(now.duration_since(it.started_at).as_secs_f64())),
        Cell::from(visible(&activity)).style(paint.style(tone)),
        Cell::from(visible(&worker.unwrap_or_default())),
    ])
}

const WORKER: [&str; 6] = ["WORKER", "STATE", "BUSY", "HEARTBEAT", "VERSION", "QUEUES"];
const WORKER_WIDTHS: [Constraint; 6] =
    [Fill(2), Length(12), Length(8), Length(10), Length(8), Fill(1)];

fn worker_row(it: &Worker, paint: Paint) -> Row<'static> {
    let (state, tone) = workers::state(it);
    let queues = it.queues.as_ref().map_or_else(|| "all".to_owned(), |all| all.join(", "));
    Row::new([
        Cell::from(visible(&it.label())),
        Cell::from(state).style(paint.style(tone)),
        Cell::from(format!("{} of {}", it.running, it.readers)),
        Cell::from(format!("{} ago", span(it.heartbeat_age_seconds))),
        Cell::from(visible(it.version.as_deref().unwrap_or_default())),
        Cell::from(visible(&queues)),
    ])
}
