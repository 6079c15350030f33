//! A backlog of `SELECT 1`: what the queue itself costs, beside the same transactions without it.

use anyhow::Result;

use super::drain::with_ceilings;
use crate::context::RunContext;
use crate::result::Scenario;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    with_ceilings(context, "noop", "SELECT 1", [None, None]).await
}
