//! Visits every reachable state in breadth-first order, so that the trace to a violation is the
//! shortest.

use std::collections::HashMap;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;

/// A system of states and steps between them.
pub(crate) trait System {
    type State: Clone + Eq + Hash;
    type Action: Copy + Debug;

    fn initial(&self) -> Self::State;

    /// Returns every step from this state. `Err` is a step that itself violates a rule.
    fn steps(&self, state: &Self::State) -> Vec<Step<Self>>;

    /// Returns the representative of all states that differ only in the names of workers and
    /// tokens.
    fn canonical(&self, state: Self::State) -> Self::State;

    /// Checks the rules. `Err` names the violated rule.
    fn broken(&self, state: &Self::State) -> Result<(), String>;

    /// Returns whether the state is an end. From every state, an end must be reachable.
    fn ended(&self, state: &Self::State) -> bool;
}

/// A step, and the state that it leads to.
pub(crate) type Step<S> = (<S as System>::Action, Result<<S as System>::State, String>);

/// Result of an exploration that visited all states and found no violation.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) steps: usize,
}

/// A violated rule.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) rule: String,
    /// The steps from the first state on.
    pub(crate) trace: Vec<String>,
    /// Number of states visited before the violation.
    pub(crate) states: usize,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({} states)", self.rule, self.states)?;
        self.trace.iter().try_for_each(|action| writeln!(f, "    {action}"))
    }
}

/// Visits all states; stops at the first violation.
pub(crate) fn explore<S: System>(system: &S) -> Result<Explored, Violation> {
    // Each state has a number. `from` contains the state from which it was first reached.
    let mut states = vec![system.canonical(system.initial())];
    let mut from = vec![0];
    let mut numbers = HashMap::from([(states[0].clone(), 0)]);
    let mut edges: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < states.len() {
        let state = states[at].clone();
        let with_trace = |rule, states: &[S::State]| {
            violation(system, rule, &way(states, &from, at), states.len())
        };
        system.broken(&state).map_err(|rule| with_trace(rule, &states))?;
        let mut reached = 0;
        for (_, next) in system.steps(&state) {
            let next = system.canonical(next.map_err(|rule| with_trace(rule, &states))?);
            let fresh = states.len();
            let number = *numbers.entry(next).or_insert_with_key(|next| {
                states.push(next.clone());
                reached += 1;
                fresh
            });
            edges.push((number, at));
        }
        from.extend(std::iter::repeat_n(at, reached));
        at += 1;
    }
    let ends = (0..states.len()).filter(|n| system.ended(&states[*n]));
    if let Some(stuck) = cut_off(states.len(), &mut edges, ends.collect()) {
        let rule = "no end is reachable from this state".to_owned();
        return Err(violation(system, rule, &way(&states, &from, stuck), states.len()));
    }
    Ok(Explored { states: states.len(), steps: edges.len() })
}

/// Returns the states on the path from the first state to this one.
fn way<'a, State>(states: &'a [State], from: &[usize], mut at: usize) -> Vec<&'a State> {
    let mut way = vec![&states[at]];
    while at > 0 {
        at = from[at];
        way.insert(0, &states[at]);
    }
    way
}

/// Repeats the steps of the path, this time without renaming in between.
fn violation<S: System>(system: &S, rule: String, way: &[&S::State], states: usize) -> Violation {
    let mut trace = Vec::new();
    let mut state = system.initial();
    for next in &way[1..] {
        let leads_there = |step: &Step<S>| match &step.1 {
            Ok(state) => system.canonical(state.clone()) == **next,
            Err(_) => false,
        };
        let step = system.steps(&state).into_iter().find(leads_there);
        let Some((action, Ok(after))) = step else { unreachable!("a step depends on names") };
        trace.push(format!("{action:?}"));
        state = after;
    }
    let breaks = |step: &Step<S>| step.1.as_ref().err() == Some(&rule);
    trace.extend(
        system.steps(&state).iter().find(|step| breaks(step)).map(|step| format!("{:?}", step.0)),
    );
    Violation { rule, trace, states }
}

/// Returns the first state from which no path leads to an end. Walks backwards. An edge is the pair
/// (target, source).
fn cut_off(states: usize, edges: &mut [(usize, usize)], mut ends: Vec<usize>) -> Option<usize> {
    edges.sort_unstable();
    let mut live = vec![false; states];
    ends.iter().for_each(|end| live[*end] = true);
    while let Some(to) = ends.pop() {
        let first = edges.partition_point(|edge| edge.0 < to);
        for (_, from) in edges[first..].iter().take_while(|edge| edge.0 == to) {
            if !std::mem::replace(&mut live[*from], true) {
                ends.push(*from);
            }
        }
    }
    live.iter().position(|live| !live)
}
