//! Keys and pictures, without a terminal and without a database.

use std::rc::Rc;

use crossterm::event::KeyCode;
use queue::{TaskId, WorkerId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw::draw;
use super::fetch::{Order, Sight};
use super::shot::Shot;
use super::state::{Pane, State, Step};

fn sight() -> Sight {
    Sight { shot: Some(Rc::new(Shot::example())), ..Sight::default() }
}

fn typed(state: &mut State, sight: &Sight, keys: &[KeyCode]) -> Step {
    let mut step = Step::Stay;
    for key in keys {
        state.settle(sight);
        step = state.key(*key, sight);
    }
    step
}

#[test]
fn an_act_is_asked_for_and_only_a_yes_does_it() {
    let sight = sight();
    let acts: [(&[KeyCode], Order); 4] = [
        (&[KeyCode::Char('c')], Order::Cancel(TaskId(7))),
        (&[KeyCode::BackTab, KeyCode::Char('p')], Order::Pause("default".to_owned())),
        (&[KeyCode::BackTab, KeyCode::Down, KeyCode::Char('p')], Order::Resume("etl".to_owned())),
        (
            &[KeyCode::Tab, KeyCode::Char('d')],
            Order::Drain(WorkerId(uuid::Uuid::from_u128(1)), true),
        ),
    ];
    for (keys, order) in acts {
        for (answer, step) in [('y', Step::Order(order.clone())), ('n', Step::Stay)] {
            let mut state = State::default();
            assert_eq!(typed(&mut state, &sight, keys), Step::Stay);
            assert!(state.question.is_some(), "{order:?}");
            assert_eq!(typed(&mut state, &sight, &[KeyCode::Char(answer)]), step);
            assert!(state.question.is_none());
        }
    }
    // Where there is nothing of that kind, nothing is asked.
    let mut state = State::default();
    typed(&mut state, &sight, &[KeyCode::Char('p')]);
    assert!(state.question.is_none());
}

#[test]
fn the_selection_stays_with_its_row() {
    let mut state = State::default();
    typed(&mut state, &sight(), &[KeyCode::End]);
    assert_eq!((state.pane, state.at), (Pane::Running, 1));
    let mut later = Shot::example();
    later.running.remove(0);
    let later = Sight { shot: Some(Rc::new(later)), ..Sight::default() };
    state.settle(&later);
    assert_eq!(state.at, 0);
    assert_eq!(typed(&mut state, &later, &[KeyCode::Enter]), Step::Order(Order::Open(TaskId(8))));
}

#[test]
fn escape_leaves_a_task_first_and_then_the_program() {
    let mut sight = sight();
    sight.task = Some((TaskId(7), "task 7".to_owned()));
    let mut state = State::default();
    assert_eq!(typed(&mut state, &sight, &[KeyCode::Esc]), Step::Order(Order::Close));
    sight.task = None;
    assert_eq!(typed(&mut state, &sight, &[KeyCode::Char('?'), KeyCode::Esc]), Step::Stay);
    assert_eq!(typed(&mut state, &sight, &[KeyCode::Esc]), Step::Leave);
}

fn screen(sight: &Sight, state: &State, colour: bool) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
    terminal.draw(|frame| draw(frame, sight, state, colour)).unwrap();
    terminal.backend().clone()
}

#[test]
fn eighty_columns_hold_it_all_and_the_database_does_not_drive_the_terminal() {
    let sight = sight();
    let mut state = State::default();
    state.settle(&sight);
    let shown = screen(&sight, &state, false).to_string();
    for part in [
        "1 worker alive, 2 of 8 readers busy, 1.5 tasks/s",
        "queue etl is paused, with 12 pending tasks",
        " queues: 2 ",
        "etl                  12        1m 30s",
        "[running tasks: 2]",
        "blocked by 99",
        "node\\u{1b}:42",
        " workers: 1 ",
        "? help  q leave",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

#[test]
fn colours_only_add() {
    let sight = sight();
    let mut state = State::default();
    state.settle(&sight);
    let (plain, coloured) = (screen(&sight, &state, false), screen(&sight, &state, true));
    assert_eq!(plain.to_string(), coloured.to_string());
    let colours = |backend: &TestBackend| {
        backend.buffer().content.iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(&plain), 0);
    assert!(colours(&coloured) > 0);
}

#[test]
fn trouble_is_told_over_the_last_look_and_an_answer_until_the_next_key() {
    let mut sight = sight();
    sight.answer = Some((1, "task 7: cancelled".to_owned()));
    let mut state = State::default();
    state.settle(&sight);
    assert!(screen(&sight, &state, false).to_string().contains("task 7: cancelled"));
    typed(&mut state, &sight, &[KeyCode::Up]);
    assert!(!screen(&sight, &state, false).to_string().contains("task 7: cancelled"));
    sight.trouble = Some("the server is gone".to_owned());
    let shown = screen(&sight, &state, false).to_string();
    assert!(shown.contains("trying again: the server is gone") && shown.contains("blocked by 99"));
}
