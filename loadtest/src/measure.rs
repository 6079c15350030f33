//! Measuring: timed rounds of the fleet and of its ceiling, samples, latencies, the environment of
//! a run, and the check that every task had its effect once.
//!
//! | measurement | file |
//! |---|---|
//! | rounds of all cases in alternating order | `rounds` |
//! | one round of the fleet, from the resume of the queue | `drain` |
//! | one round of the same transactions without a queue | `ceiling` |
//! | curves of sizes, sessions and memory during a round | `sample` |
//! | memory, open files and processor time of a process, from `/proc` | `process` |
//! | processor time per task: readers' backends, claimer's backend, worker process | `processor_time` |
//! | histogram of latencies, and its percentile curve | `latency` |
//! | check that every task had its effect exactly once | `effects` |
//! | machine, server settings and duration of a durable commit | `machine` |

pub(crate) mod ceiling;
pub(crate) mod drain;
pub mod effects;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod processor_time;
pub(crate) mod rounds;
pub(crate) mod sample;
