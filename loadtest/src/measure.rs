//! Measuring: timed rounds of the fleet and of its ceiling, samples, latencies, the environment of
//! a run, and the check that every task had its effect once.

pub(crate) mod ceiling;
pub(crate) mod drain;
pub mod effects;
pub(crate) mod fleet_time;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod rounds;
pub(crate) mod sample;
