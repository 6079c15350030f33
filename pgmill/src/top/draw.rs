//! The screen: a head, the worst problems, three lists or one task, and what can be typed.

use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};
use terminal::visible;

use crate::output::Tone;
use crate::status::{ended, fleet};
use crate::words::span;

use super::fetch::Sight;
use super::panes;
use super::shot::Shot;
use super::state::{Pane, State};

/// Problems that are shown at most, the oldest of them.
const PROBLEMS: usize = 4;
/// A list that is not selected has at least so many lines, if it needs them.
const LEAST: u16 = 5;

const KEYS: &str = "tab list  ↑↓ row  ⏎ task  c cancel  p pause  d drain  r look  ? help  q leave";
const KEYS_IN_TASK: &str = "↑↓ scroll  c cancel  r look  ? help  esc back";

const HELP: &str = "\
tab, ← →        the next list, the one before
↑ ↓, j k        the next row, the one before; page up, page down, home, end
enter           everything about the selected task
c               cancel the selected task
p               pause the selected queue, or resume it
d               stop the claims of the selected worker, or let it claim again
r               look now, and not when the interval is over
?               this
q, esc          leave; in a task: back

Each act asks first: y does it, any other key does not. Acting takes the role
mill_operator. OLDEST is how long the task has waited that has waited longest.";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, sight: &Sight, state: &State, colour: bool) {
    let paint = Paint { colour };
    let problems = sight.shot.as_ref().map_or(0, |shot| shot.problems.len().clamp(1, PROBLEMS));
    let problems = u16::try_from(problems).unwrap_or(0);
    let [head, trouble, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(problems),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    match &sight.shot {
        Some(shot) => {
            frame.render_widget(heading(shot), head);
            frame.render_widget(worst(shot, paint), trouble);
            match &sight.task {
                Some((_, text)) => task(frame, body, text, state.scrolled),
                None => lists(frame, body, (shot, state), paint),
            }
        }
        None => frame.render_widget("looking …", head),
    }
    frame.render_widget(last_line(sight, state, paint), foot);
    if state.help {
        let area = frame.area().inner(ratatui::layout::Margin { horizontal: 0, vertical: 3 });
        frame.render_widget(Clear, area);
        let block = Block::new().borders(Borders::TOP | Borders::BOTTOM).title("keys");
        frame.render_widget(Paragraph::new(HELP).block(block), area);
    }
}

/// What a tone looks like.
#[derive(Clone, Copy)]
pub(super) struct Paint {
    colour: bool,
}

impl Paint {
    pub(super) fn style(self, tone: Tone) -> Style {
        match tone {
            _ if !self.colour => Style::new(),
            Tone::Plain => Style::new(),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Odd => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }
}

fn heading(shot: &Shot) -> Text<'static> {
    let clock = shot.now.to_zoned(TimeZone::system()).strftime("%T").to_string();
    let per_second = format!("{:.1} tasks/s", shot.rate);
    let plain = crate::output::Output::plain();
    Text::from(vec![
        Line::from(vec![
            Span::styled("pgmill top", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!("  {clock}  {}, {per_second}", fleet(&shot.workers))),
        ]),
        Line::raw(ended(&plain, &shot.ended)),
    ])
}

fn worst(shot: &Shot, paint: Paint) -> Text<'static> {
    if shot.problems.is_empty() {
        return Line::styled("no problem", paint.style(Tone::Good)).into();
    }
    let more = shot.problems.len().saturating_sub(PROBLEMS);
    let line = |(at, problem): (usize, &crate::status::Problem)| {
        let rest = match at + 1 {
            PROBLEMS if more > 0 => format!(" (and {more} more)"),
            _ => String::new(),
        };
        let text = format!("{:>8}  {}{rest}", span(problem.age_seconds), problem.message);
        Line::styled(visible(&text), paint.style(Tone::Bad))
    };
    shot.problems.iter().take(PROBLEMS).enumerate().map(line).collect::<Vec<_>>().into()
}

/// The selected list has what the others leave.
fn lists(frame: &mut Frame<'_>, area: Rect, (shot, state): (&Shot, &State), paint: Paint) {
    let share = LEAST.max(area.height / 4);
    let height = |pane: Pane| {
        let rows = match pane {
            Pane::Queues => shot.queues.len(),
            Pane::Running => shot.running.len(),
            Pane::Workers => shot.workers.len(),
        };
        // With its title and its headings.
        let wanted = u16::try_from(rows + 2).unwrap_or(u16::MAX);
        if pane == state.pane { Constraint::Fill(1) } else { Constraint::Length(wanted.min(share)) }
    };
    let areas: [Rect; 3] = Layout::vertical(Pane::ALL.map(height)).areas(area);
    for (pane, area) in Pane::ALL.into_iter().zip(areas) {
        let selected = (pane == state.pane).then_some(state.at);
        panes::draw(frame, area, (pane, shot, selected), paint);
    }
}

fn task(frame: &mut Frame<'_>, area: Rect, text: &str, scrolled: u16) {
    let block = Block::new().borders(Borders::TOP);
    let most = u16::try_from(text.lines().count()).unwrap_or(u16::MAX).saturating_sub(1);
    let shown = Paragraph::new(text.to_owned())
        .block(block)
        .wrap(Wrap { trim: false })
        .scroll((scrolled.min(most), 0));
    frame.render_widget(shown, area);
}

/// A question before anything else, then trouble, then what came of the last act.
fn last_line(sight: &Sight, state: &State, paint: Paint) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    if let Some((question, _)) = &state.question {
        return Line::styled(format!("{} [y/N]", visible(question)), bold);
    }
    if let Some(trouble) = &sight.trouble {
        let text = format!("trying again: {}", visible(trouble).replace('\n', " "));
        return Line::styled(text, paint.style(Tone::Bad).add_modifier(Modifier::BOLD));
    }
    if let Some((_, answer)) = sight.answer.as_ref().filter(|(number, _)| *number != state.read) {
        return Line::styled(visible(answer).replace('\n', "; "), bold);
    }
    Line::raw(if sight.task.is_some() { KEYS_IN_TASK } else { KEYS })
}
