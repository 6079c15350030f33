//! A backlog of `SELECT 1`: what the queue itself costs, beside the same transactions without it.

use anyhow::Result;

use super::drain::beside_ceilings;
use crate::bench::Bench;
use crate::result::Scenario;

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    beside_ceilings(bench, "noop", "SELECT 1", [None, None]).await
}
