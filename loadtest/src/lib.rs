//! How fast a fleet of real worker processes runs tasks, beside the same SQL without a queue.

pub mod result;
