//! Decisions of a worker: what it claims, whom it considers dead, when it polls, how long it waits
//! after a failure.
//!
//! Nothing here reads a clock, draws a random number of its own or performs I/O: callers pass the
//! time, a source of random numbers and what they have observed. The worker passes those of its
//! process, and `tests/simulation` those of a simulated fleet. So the simulation runs the decisions
//! of the product, and not a copy of them.
//!
//! | decision | file |
//! |---|---|
//! | intervals and time limits, and how they depend on each other | `timing` |
//! | the wait after a failure | `backoff` |
//! | which workers are dead | `failure_detector` |
//! | which polls read the other workers | `peer_sampling` |
//! | how far to go in a reclaim | `reclaim_effort` |
//! | which lanes a claim reads, and up to how many tasks | `lanes`, `weights`, `batch_size` |
//! | when the claimer sweeps, polls, watches its lanes and reconciles | `claim_cadence` |
//! | when the next poll starts, and whether an answer is outdated | `poll_cadence` |
//! | what the scheduler has to do, and when | `scheduler_work` |
//! | which sessions a registration closes | `registration_state` |
//! | what a notification asks for, and of how many workers | `notification_kind` |

pub mod backoff;
pub mod batch_size;
pub mod claim_cadence;
pub mod failure_detector;
pub mod lanes;
pub mod notification_kind;
pub mod peer_sampling;
pub mod poll_cadence;
pub mod reclaim_effort;
pub mod registration_state;
pub mod scheduler_work;
pub mod timing;
pub mod weights;
