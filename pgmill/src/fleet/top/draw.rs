//! Draws the screen: header, most severe problems, three lists or one task, and a footer with the keys.

use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};
use terminal::visible;

use crate::fleet::status::{finished, fleet, severity_tone};
use crate::output::Tone;
use crate::output::format::span;

use super::fetch::View;
use super::paint::Paint;
use super::panes;
use super::snapshot::Snapshot;
use super::state::{Pane, State};

/// Maximum number of problems shown, most severe first.
const MAX_PROBLEMS: usize = 4;
/// Number of lines that a list may use even on a small screen when it is not selected.
const MIN_PANE_ROWS: u16 = 5;

const KEYS: &str =
    "tab list  ↑↓ row  ⏎ task  c cancel  p pause  d drain  r refresh  ? help  q quit";
const KEYS_IN_TASK: &str = "↑↓ scroll  c cancel  r refresh  ? help  esc back";

const HELP: &str = "\
tab, ← →        next or previous list
↑ ↓, j k        previous or next row; also page up, page down, home, end
enter           show the selected task
c               cancel the selected task
p               pause or resume the selected queue
d               drain the selected worker, or end its drain
r               refresh now
?               show this help
q, esc          quit; in a task: back

Every action asks for confirmation: y confirms, any other key aborts. Actions
require the role mill_operator. OLDEST: longest wait of a pending task.";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, state: &State, colour: bool) {
    let paint = Paint::new(colour);
    let problems =
        view.snapshot.as_ref().map_or(0, |snapshot| snapshot.problems.len().clamp(1, MAX_PROBLEMS));
    let problems = u16::try_from(problems).unwrap_or(0);
    let [head, problem_area, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(problems),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    match &view.snapshot {
        Some(snapshot) => {
            frame.render_widget(heading(snapshot), head);
            frame.render_widget(top_problems(snapshot, paint), problem_area);
            match &view.task {
                Some((_, text)) => task(frame, body, text, state.scrolled),
                None => lists(frame, body, (snapshot, state), paint),
            }
        }
        None => frame.render_widget("loading …", head),
    }
    frame.render_widget(footer(view, state, paint), foot);
    if state.help {
        let area = frame.area().inner(ratatui::layout::Margin { horizontal: 0, vertical: 3 });
        frame.render_widget(Clear, area);
        let block = Block::new().borders(Borders::TOP | Borders::BOTTOM).title("keys");
        frame.render_widget(Paragraph::new(HELP).block(block), area);
    }
}

fn heading(snapshot: &Snapshot) -> Text<'static> {
    let clock = snapshot.status.now.to_zoned(TimeZone::system()).strftime("%T").to_string();
    let per_second = format!("{:.1} tasks/s", snapshot.rate);
    let plain = crate::output::Output::plain();
    Text::from(vec![
        Line::from(vec![
            Span::styled("pgmill top", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!("  {clock}  {}, {per_second}", fleet(&snapshot.status.workers))),
        ]),
        Line::raw(finished(&plain, &snapshot.status.finished)),
    ])
}

fn top_problems(snapshot: &Snapshot, paint: Paint) -> Text<'static> {
    if snapshot.problems.is_empty() {
        return Line::styled("no problems", paint.style(Tone::Success)).into();
    }
    let more = snapshot.problems.len().saturating_sub(MAX_PROBLEMS);
    let line = |(at, problem): (usize, &crate::fleet::status::Problem)| {
        let rest = match at + 1 {
            MAX_PROBLEMS if more > 0 => format!(" (and {more} more)"),
            _ => String::new(),
        };
        let (severity, age) = (problem.severity, span(problem.age_seconds));
        let text = format!("{severity:<8} {age:>8}  {}{rest}", problem.message);
        Line::styled(visible(&text), paint.style(severity_tone(severity)))
    };
    snapshot.problems.iter().take(MAX_PROBLEMS).enumerate().map(line).collect::<Vec<_>>().into()
}

/// Draws the three lists; the selected list gets the remaining space.
fn lists(frame: &mut Frame<'_>, area: Rect, (snapshot, state): (&Snapshot, &State), paint: Paint) {
    let share = MIN_PANE_ROWS.max(area.height / 4);
    let height = |pane: Pane| {
        // Two more lines for the title and the headings.
        let wanted = u16::try_from(pane.rows(snapshot).len() + 2).unwrap_or(u16::MAX);
        if pane == state.pane { Constraint::Fill(1) } else { Constraint::Length(wanted.min(share)) }
    };
    let areas: [Rect; 3] = Layout::vertical(Pane::ALL.map(height)).areas(area);
    for (pane, area) in Pane::ALL.into_iter().zip(areas) {
        let selected = (pane == state.pane).then_some(state.at);
        panes::draw(frame, area, (pane, snapshot, selected), paint);
    }
}

fn task(frame: &mut Frame<'_>, area: Rect, text: &str, scrolled: u16) {
    let block = Block::new().borders(Borders::TOP);
    let max_scroll = u16::try_from(text.lines().count()).unwrap_or(u16::MAX).saturating_sub(1);
    let shown = Paragraph::new(text.to_owned())
        .block(block)
        .wrap(Wrap { trim: false })
        .scroll((scrolled.min(max_scroll), 0));
    frame.render_widget(shown, area);
}

/// Draws the footer. It shows the first of these that exists: the open question, the error, the
/// result of the last action, the keys.
fn footer(view: &View, state: &State, paint: Paint) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    if let Some((question, _)) = &state.question {
        return Line::styled(format!("{} [y/N]", visible(question)), bold);
    }
    if let Some(error) = &view.error {
        let text = format!("retrying: {}", visible(error).replace('\n', " "));
        return Line::styled(text, paint.style(Tone::Error).add_modifier(Modifier::BOLD));
    }
    if let Some((_, answer)) = view.answer.as_ref().filter(|(number, _)| *number != state.read) {
        return Line::styled(visible(answer).replace('\n', "; "), bold);
    }
    Line::raw(if view.task.is_some() { KEYS_IN_TASK } else { KEYS })
}
