//! How fast a fleet of real worker processes runs tasks, beside the same SQL without a queue.

pub mod compare;
pub mod figure;
pub mod machine;
pub mod plot;
pub mod report;
pub mod result;
#[cfg(test)]
mod sample;
pub mod standing;
pub mod table;
