//! The parts of a worker. Each asks the product's decision what to do, and sends the statements that the product sends.
//!
//! | part | file |
//! |---|---|
//! | registration, heartbeats, LISTEN | `heartbeat` |
//! | polls, reclaims | `peers` |
//! | claims | `claimer` |
//! | tasks, one after another in a session | `reader` |
//! | ticks of schedules | `scheduler` |

mod claimer;
mod heartbeat;
mod peers;
mod reader;
mod scheduler;
