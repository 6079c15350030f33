//! Tests of keys and drawing, without a terminal and a database.

use std::rc::Rc;

use crossterm::event::KeyCode;
use queue::{TaskId, WorkerId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw::draw;
use super::fetch::{Action, View};
use super::snapshot::Snapshot;
use super::state::{Pane, State, Step};

fn view() -> View {
    View { snapshot: Some(Rc::new(Snapshot::example())), ..View::default() }
}

fn typed(state: &mut State, view: &View, keys: &[KeyCode]) -> Step {
    let mut step = Step::Stay;
    for key in keys {
        state.restore_selection(view);
        step = state.key(*key, view);
    }
    step
}

#[test]
fn an_action_is_confirmed_first() {
    let view = view();
    let acts: [(&[KeyCode], Action); 4] = [
        (&[KeyCode::Char('c')], Action::Cancel(TaskId(7))),
        (&[KeyCode::BackTab, KeyCode::Char('p')], Action::Pause("default".to_owned())),
        (&[KeyCode::BackTab, KeyCode::Down, KeyCode::Char('p')], Action::Resume("etl".to_owned())),
        (
            &[KeyCode::Tab, KeyCode::Char('d')],
            Action::Drain(WorkerId(uuid::Uuid::from_u128(1)), true),
        ),
    ];
    for (keys, action) in acts {
        for (answer, step) in [('y', Step::Action(action.clone())), ('n', Step::Stay)] {
            let mut state = State::default();
            assert_eq!(typed(&mut state, &view, keys), Step::Stay);
            assert!(state.question.is_some(), "{action:?}");
            assert_eq!(typed(&mut state, &view, &[KeyCode::Char(answer)]), step);
            assert!(state.question.is_none());
        }
    }
    // If no queue is selected, the key `p` asks nothing.
    let mut state = State::default();
    typed(&mut state, &view, &[KeyCode::Char('p')]);
    assert!(state.question.is_none());
}

#[test]
fn the_selection_stays_with_its_row() {
    let mut state = State::default();
    typed(&mut state, &view(), &[KeyCode::End]);
    assert_eq!((state.pane, state.at), (Pane::Running, 1));
    let mut later = Snapshot::example();
    later.status.running.remove(0);
    let later = View { snapshot: Some(Rc::new(later)), ..View::default() };
    state.restore_selection(&later);
    assert_eq!(state.at, 0);
    assert_eq!(typed(&mut state, &later, &[KeyCode::Enter]), Step::Action(Action::Open(TaskId(8))));
}

#[test]
fn escape_leaves_a_task_first_and_then_the_program() {
    let mut view = view();
    view.task = Some((TaskId(7), "task 7".to_owned()));
    let mut state = State::default();
    assert_eq!(typed(&mut state, &view, &[KeyCode::Esc]), Step::Action(Action::Close));
    view.task = None;
    assert_eq!(typed(&mut state, &view, &[KeyCode::Char('?'), KeyCode::Esc]), Step::Stay);
    assert_eq!(typed(&mut state, &view, &[KeyCode::Esc]), Step::Leave);
}

fn screen(view: &View, state: &State, colour: bool) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
    terminal.draw(|frame| draw(frame, view, state, colour)).unwrap();
    terminal.backend().clone()
}

#[test]
fn the_screen_fits_80_columns_and_control_characters_are_escaped() {
    let view = view();
    let mut state = State::default();
    state.restore_selection(&view);
    let shown = screen(&view, &state, false).to_string();
    for part in [
        "1 worker alive, 2 of 8 readers busy, 1.5 tasks/s",
        "queue etl is paused, with 12 pending tasks",
        " queues: 2 ",
        "etl                  12        1m 30s",
        "[running tasks: 2]",
        "blocked by 99",
        "node\\u{1b}:42",
        " workers: 1 ",
        "? help  q quit",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

#[test]
fn colours_do_not_change_the_text() {
    let view = view();
    let mut state = State::default();
    state.restore_selection(&view);
    let (plain, coloured) = (screen(&view, &state, false), screen(&view, &state, true));
    assert_eq!(plain.to_string(), coloured.to_string());
    let colours = |backend: &TestBackend| {
        backend.buffer().content.iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(&plain), 0);
    assert!(colours(&coloured) > 0);
}

#[test]
fn an_error_is_shown_over_the_last_snapshot_and_an_answer_until_the_next_key() {
    let mut view = view();
    view.answer = Some((1, "task 7: cancelled".to_owned()));
    let mut state = State::default();
    state.restore_selection(&view);
    assert!(screen(&view, &state, false).to_string().contains("task 7: cancelled"));
    typed(&mut state, &view, &[KeyCode::Up]);
    assert!(!screen(&view, &state, false).to_string().contains("task 7: cancelled"));
    view.error = Some("connection lost".to_owned());
    let shown = screen(&view, &state, false).to_string();
    assert!(shown.contains("retrying: connection lost") && shown.contains("blocked by 99"));
}
