//! Output of a statement: rows, notices and progress.

pub mod decode;
pub(crate) mod notices;
pub(crate) mod progress;
pub(crate) mod rows;
