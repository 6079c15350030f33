//! `pgmill top`: a live view of the fleet on a terminal.
//!
//! | part | file |
//! |---|---|
//! | session: refreshes, executes actions, reconnects | `fetch` |
//! | data of one refresh | `snapshot` |
//! | key bindings, selection, confirmation | `state` |
//! | drawing | `draw`, its tables `panes`, its colours `paint` |
//!
//! The session and the screen are two futures that only exchange messages, so keys work while the
//! database does not answer.

mod draw;
mod fetch;
mod paint;
mod panes;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};

use cli::{Exit, Failure, exit};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::args::{Global, TopArgs};
use crate::output::Output;
use crate::session::Session;

use fetch::{Action, View};
use state::{State, Step};

/// Shows the fleet until the user quits.
///
/// # Errors
/// Fails without a terminal.
pub(crate) async fn run(session: Session, global: &Global, out: &Output, args: &TopArgs) -> Exit {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage("top requires a terminal")
            .hint("Use pgmill status, or pgmill status --json."));
    }
    let (actions, ordered) = mpsc::channel(8);
    let (views, seen) = watch::channel(View::default());
    let fetching = fetch::serve(session, global, (args.interval, ordered, views));
    let mut terminal = ratatui::try_init().map_err(Failure::from)?;
    // The terminal is restored below, also after an error in the loop.
    let shown = tokio::select! {
        shown = show(&mut terminal, out.colour(), (seen, actions)) => shown,
        never = fetching => match never {},
    };
    ratatui::try_restore().map_err(Failure::from)?;
    shown.map(|()| exit::OK).map_err(Failure::from)
}

/// Draws after each key and each refresh.
async fn show(
    terminal: &mut DefaultTerminal,
    colour: bool,
    (mut seen, actions): (watch::Receiver<View>, mpsc::Sender<Action>),
) -> io::Result<()> {
    let mut keys = EventStream::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut state = State::default();
    loop {
        {
            let view = seen.borrow_and_update();
            state.restore_selection(&view);
            terminal.draw(|frame| draw::draw(frame, &view, &state, colour))?;
        }
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return Ok(()) },
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            event = keys.next() => match event {
                None => return Ok(()),
                Some(Err(error)) => return Err(error),
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    let step = pressed(key).map(|key| state.key(key, &seen.borrow()));
                    match step {
                        Some(Step::Leave) => return Ok(()),
                        // The send cannot fail, because the receiver lives as long as this future.
                        Some(Step::Action(action)) => drop(actions.send(action).await),
                        Some(Step::Stay) | None => {}
                    }
                }
                // A resize event: draw again.
                Some(Ok(_)) => {}
            },
        }
    }
}

/// Maps Control-C to `q`, and ignores other key combinations.
fn pressed(key: KeyEvent) -> Option<KeyCode> {
    let chord = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    match key.code {
        KeyCode::Char('c') if chord => Some(KeyCode::Char('q')),
        _ if chord => None,
        code => Some(code),
    }
}
