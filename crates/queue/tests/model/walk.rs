//! Walks at random through systems that have too many states to visit all.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::explore::{System, Violation};

/// Takes up to `count` steps from the first state. Returns the number of steps; fewer than `count` only
/// if an end has no further steps.
pub(crate) fn walk<S: System>(
    system: &S,
    random: &mut StdRng,
    count: usize,
) -> Result<usize, Violation> {
    let mut state = system.initial();
    let mut trace = Vec::new();
    for taken in 0..count {
        let violated = |rule, trace| Violation { rule, trace, states: taken };
        if let Err(rule) = system.broken(&state) {
            return Err(violated(rule, trace));
        }
        let steps = system.steps(&state);
        let Some((action, next)) = steps.choose(random) else {
            let rule = "no step is possible".to_owned();
            return if system.ended(&state) { Ok(taken) } else { Err(violated(rule, trace)) };
        };
        trace.push(format!("{action:?}"));
        match next {
            Ok(next) => state = next.clone(),
            Err(rule) => return Err(violated(rule.clone(), trace)),
        }
    }
    Ok(count)
}
