//! Drains a backlog of `SELECT 1`: the cost of the queue itself, compared with the same
//! transactions without it.

use anyhow::Result;

use super::drain::with_ceilings;
use crate::context::RunContext;
use crate::result::Scenario;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    with_ceilings(context, "noop", "SELECT 1", [None, None]).await
}
