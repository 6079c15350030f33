//! Simulates a fleet: the decisions of the workers (the crate `fleet-decisions`) on a simulated
//! clock and network and a queue in memory, with faults, all from a seed.
//!
//! | module | contents |
//! |---|---|
//! | `world` | clock, network, processes |
//! | `event` | events in the order of virtual time |
//! | `worker` | the state of a worker |
//! | `parts` | the parts of a worker: which decision they ask, which statements they send |
//! | `server`, `execution` | the queue with PostgreSQL's semantics, as far as they matter |
//! | `fault`, `faults` | kinds of faults; their plan and what each of them does |
//! | `checks`, `counts` | invariants; what the fleet has sent |
//! | `bug` | bugs that can be planted |
//! | `run`, `program` | one simulation; the command line |

mod bug;
mod checks;
mod counts;
mod event;
mod execution;
mod fault;
mod faults;
mod parts;
mod program;
mod run;
mod server;
mod worker;
mod world;

pub use bug::Bug;
pub use program::main;
pub use run::{Summary, simulate, statements_in_order};
pub use world::{Faults, Options};
